// The run: what is happening, what is left, answers as they are written, how it ended.
import {h, progressBar, put, reveal} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {alive, ask, connection, page} from '../lib/page.js';
import {S} from '../lib/state.js';
import {findingBox, tellStatus} from '../lib/status.js';
import {showCalibration, showUnavailable} from './calibration.js';
import {openRun} from './opening.js';

const WAITING = {state: 'running', number: 1, of: 5, title: 'Waiting for its turn', message: ''};
const LOST = 'The server does not answer, so nothing was started. Try again when the connection is back.';
const CHECK_MS = 4000;  // how often a run without news looks whether the server is still there

export const jobLine = () => h('div', {class: 'kv-job', 'aria-live': 'polite'});
export const runBox = h('div', {class: 'kv-run', id: 'kv-run', 'aria-live': 'polite'});
const stop = () => page.trigger('stop_run', {});
export const runButton = h('button', {class: 'kv-button kv-primary', id: 'kv-run-button'}, 'Run');
export const stopButton = h('button', {class: 'kv-button', id: 'kv-stop-button', disabled: true,
  onclick: stop}, 'Stop');
const livePart = h('div', {}), liveAsked = h('div', {});
// The button stays the same element while statuses come: a click must not fall between two of them.
export const liveBox = h('section',
  {class: 'kv-live', id: 'kv-live', hidden: true, 'aria-label': 'Run in progress'},
  h('div', {class: 'kv-live-head'}, h('b', {}, 'Your run'),
    h('button', {class: 'kv-button kv-small', onclick: stop}, 'Stop')), livePart, liveAsked);
let running = false;
let job = null;  // the line beside the button that was pressed on a finished run; null for a run of the form
let jobThen = {};  // what is chosen once the job is done
let own = null;  // the fields of the run that is made
let from = null;  // of a run that was not asked for in the form: {line, sel, ended}
let liveText = {};

// Ask Python for more of the run that is shown. What comes of it is told in `line`, beside its button.
// `after` is what is chosen once it is there.
export async function startJob(event, data, line, after = {}) {
  if (running) {
    put(line, h('p', {class: 'kv-failed', role: 'alert'},
      'Something is being computed. Stop it, or wait for its end.'));
    return;
  }
  job = line;
  jobThen = after;
  showStatus(WAITING);
  if (await alive()) page.trigger(event, data);
  else refuse();
}

function refuse() {
  showStatus({state: 'failed', message: LOST});
  ask('finding');  // says on the page that nobody answers
}

export const isRunning = () => running;

// What the form says is run. The page shows the visitor's own text from here on, not the run before it.
// `asked` is given where something else than the form asks: where it is told (an element), what is chosen in
// it then, and who is handed its id.
export async function startRun(fields, asked = null) {
  if (running) return;
  job = null;
  own = fields;
  from = asked;
  showStatus(WAITING);
  if (!from) reveal(runButton.parentElement);
  if (!connection.lost && await alive()) page.trigger('run_form', fields);
  else refuse();
}

function busy(on) {
  const [from, to] = on ? [runButton, stopButton] : [stopButton, runButton];
  const held = document.activeElement === from;  // a button that is no longer there gives its focus on
  running = on;
  to.disabled = false;
  if (held) to.focus({preventScroll: true});
  from.disabled = true;
  page.app.classList.toggle('kv-previous', on && job !== null);
  page.app.classList.toggle('kv-running', on && job === null);
}

const showBeside = s => document.dispatchEvent(new CustomEvent('kv:beside', {detail: s.run}));
const showGrid = s => document.dispatchEvent(new CustomEvent('kv:grid', {detail: s}));
const told = {calibrate: showCalibration, methods: showUnavailable, beside: showBeside, grid: showGrid};
document.addEventListener('kv:status', event => {
  let status = null;
  try { status = JSON.parse(event.detail || 'null'); } catch (error) { return; }
  if (status?.state) (told[status.state] || showStatus)(status);
});

function progressLine(s) {
  if (s.stage === 'wait') return [h('p', {class: 'kv-stage-line', id: 'kv-waiting'},
    `Waiting: ${s.message}`)];
  const left = s.seconds_left ? `, about ${fmt.seconds(s.seconds_left)} left` : '';
  return [h('p', {class: 'kv-stage-line'}, h('b', {}, `${s.number} of ${s.of} `), s.message || s.title, left),
    progressBar(s.fraction, s.title || 'Run')];
}

let watch = 0;
function keepWatch(on) {
  clearInterval(watch);
  if (on) watch = setInterval(async () => { if (!(await alive())) ask('finding'); }, CHECK_MS);
}

function showStatus(s) {
  const on = s.state === 'running', line = job || from?.line || runBox;
  busy(on);
  keepWatch(on);
  if (on) {
    if (!from) put(line, progressLine(s));  // else the box below has it
    showLive(s);
    return;
  }
  liveBox.hidden = true;
  document.dispatchEvent(new CustomEvent('kv:ran'));
  const failed = s.state === 'failed';
  put(line, s.message ? h('p', failed ? {class: 'kv-failed', role: 'alert'} : {class: 'kv-stage-line'},
    s.message) : '');
  if (failed && !job) reveal(line, 'nearest');
  if (job ? !failed : s.place || (s.run && !from)) tellStatus(s.message, failed);
  const stay = s.run === S.run || s.experiment || job;
  const then = job ? jobThen : {}, asked = job ? null : from;
  job = from = null;
  if (!s.run) return;
  const sel = stay ? {...S.sel, ...(s.state === 'done' ? then : {})} : asked?.sel || {};
  openRun(s.run, sel, stay ? S.tab : 'kept').then(() => {
    if (asked) asked.ended(s.run);
    else if (!stay) put(line, '');
    if (s.state !== 'done' || stay || asked) return;
    reveal(findingBox);
    if (document.activeElement === runButton) findingBox.focus({preventScroll: true});
  });
}

// The visitor's own text and question at once, answers while they are written: one small card each, without
// scores until the run is over.
function showLive(s) {
  if (liveBox.hidden) {
    liveText = {};
    put(liveAsked, job ? null : [h('p', {class: 'kv-question'}, h('span', {class: 'kv-label'}, 'Question '),
      h('b', {dir: 'auto'}, own?.question || '')), h('div', {class: 'kv-live-text', dir: 'auto', tabindex: 0},
      own?.document || '')]);
  }
  liveBox.hidden = false;
  Object.assign(liveText, s.answers || {});
  const names = Object.keys(liveText);
  put(livePart, job ? null : h('div', {class: 'kv-live-told'}, progressLine(s)), names.length
    ? h('div', {class: 'kv-live-grid'}, names.map(name =>
    h('article', {class: 'kv-live-card'}, h('h4', {}, name),
      h('p', {dir: 'auto'}, liveText[name] || '…')))) : null);
}

