// The run: what is happening, what is left, answers as they are written, how it ended.
const runBox = h('div', {class: 'kv-run', 'aria-live': 'polite'});
const liveBox = h('section', {class: 'kv-live', id: 'kv-live', hidden: true, 'aria-label': 'Run in progress'});
// The button stays the same element while statuses come: a click must not fall between two of them.
const livePart = h('div', {});
liveBox.append(h('div', {class: 'kv-live-head'}, h('b', {}, 'Your run'),
  h('button', {class: 'kv-button kv-small', onclick: () => trigger('stop_run', {})}, 'Stop')), livePart);
let runKind = '';  // 'more' while a budget is decoded for the run on the page
let runState = {state: 'idle'}, runPlan = null;

function mountRun() {
  const place = document.getElementById('kv-run');
  if (!place) { setTimeout(mountRun, 100); return; }
  place.append(runBox);
  const button = document.getElementById('kv-run-button');
  button?.addEventListener('click', () => {
    if (runState.state !== 'running') showStatus({state: 'running', number: 1, of: 5, title: 'Waiting for its turn', message: ''});
  });
  busyButtons(false);
}

function busyButtons(busy) {
  const run = document.getElementById('kv-run-button'), stop = document.getElementById('kv-stop-button');
  if (run) run.disabled = busy;
  if (stop) stop.disabled = !busy;
}

document.addEventListener('kv:status', event => {
  let status = null;
  try { status = JSON.parse(event.detail || 'null'); } catch (error) { return; }
  if (status?.state === 'estimate') showEstimate(status.seconds);
  else if (status?.state === 'calibrate') showCalibration(status);
  else if (status?.state === 'methods') showUnavailable(status);
  else if (status && status.state) showStatus(status);
});

function showEstimate(seconds) {
  if (runState.state === 'running') return;
  put(runBox, seconds ? h('p', {class: 'kv-guide'}, `This run should take about ${fmt.seconds(Math.max(1, seconds))}.`) : '');
}

function progressLine(s) {
  const left = s.seconds_left ? `, about ${fmt.seconds(s.seconds_left)} left` : '';
  if (s.stage === 'wait') return [h('p', {class: 'kv-stage-line', id: 'kv-waiting'}, `Waiting: ${s.message}`)];
  return [h('p', {class: 'kv-stage-line'}, h('b', {}, `${s.number} of ${s.of} `), s.message || s.title, left),
  h('div', {class: 'kv-progress', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100,
    'aria-valuenow': Math.round(100 * (s.fraction || 0)), 'aria-label': s.title || 'Run'},
    h('i', {style: `width:${s.fraction === null || s.fraction === undefined ? 100 : 100 * s.fraction}%`,
      class: s.fraction === null || s.fraction === undefined ? 'kv-unknown' : ''}))];
}

function showStatus(s) {
  runState = s;
  runPlan = s.plan || runPlan;
  const running = s.state === 'running';
  busyButtons(running);
  app.classList.toggle('kv-previous', running);
  if (running) {
    put(runBox, progressLine(s));
    showLive(s);
    return;
  }
  liveBox.hidden = true;
  if (s.state === 'failed') put(runBox, h('p', {class: 'kv-failed', role: 'alert'}, s.message));
  else put(runBox, s.message ? h('p', {class: 'kv-stage-line'}, s.message) : '');
  put(statusLine, s.state === 'failed' || s.message ? s.message : '');
  statusLine.className = `kv-status${s.state === 'failed' ? ' kv-failed' : ''}`;
  statusLine.hidden = !s.message;
  const stay = s.run === S.run || s.experiment || runKind === 'more';
  runKind = '';
  if (s.run) openRun(s.run, stay ? {...S.sel} : {}, stay ? S.tab : 'kept').then(() => {
    if (s.experiment) showExperiment();
    if (s.state === 'done' && !stay) findingBox.scrollIntoView({block: 'start', behavior: calm() ? 'auto' : 'smooth'});
  });
}

const statusLine = h('p', {class: 'kv-status', hidden: true, role: 'status'});
const calm = () => window.matchMedia('(prefers-reduced-motion: reduce)').matches;

// Answers while they are written: one small card each, without scores until the run is over.
let liveText = {};
function showLive(s) {
  if (liveBox.hidden) liveText = {};
  liveBox.hidden = false;
  Object.assign(liveText, s.answers || {});
  const keys = Object.keys(liveText);
  const name = key => {
    if (key.startsWith('full')) return 'Full cache';
    const [method, budget] = key.split('@');
    const share = Number(budget);
    return `${methodNames[method] || method} · ${share <= 1 && budget.includes('.') ? fmt.share(share) : budget}`;
  };
  put(livePart, progressLine(s), keys.length ? h('div', {class: 'kv-live-grid'}, keys.map(key =>
    h('article', {class: 'kv-live-card'}, h('h4', {}, name(key)), h('p', {dir: 'auto'}, liveText[key] || '…')))) : null);
}
const methodNames = boot.methods || {};

// Methods that this model cannot run, each with the reason, and what makes them possible.
let unavailable = {methods: [], model: '', dtype: '', calibrates: false};
function showUnavailable(s) {
  unavailable = s;
  const place = document.getElementById('kv-unavailable');
  if (!place) return;
  put(place, s.methods.length ? h('details', {class: 'kv-more', open: s.methods.length < 3},
    h('summary', {}, `${s.methods.length === 1 ? '1 method' : `${s.methods.length} methods`} not available for this model`),
    h('ul', {class: 'kv-edits'}, s.methods.map(m => h('li', {}, h('b', {}, m.label), `: ${m.reason} `,
      s.calibrates && m.artefact ? h('button', {class: 'kv-button kv-small', onclick: () => trigger('calibrate',
        {method: m.id, model: s.model, dtype: s.dtype})}, 'Calibrate for this model') : null)))) : null,
  calibrationBox);
}

const calibrationPart = h('div', {'aria-live': 'polite'});
const calibrationStop = h('button', {class: 'kv-button kv-small', onclick: () => trigger('stop_calibration', {})}, 'Stop calibrating');
const calibrationBox = h('div', {class: 'kv-calibration', hidden: true}, calibrationPart, calibrationStop);
function showCalibration(s) {
  const running = s.inner === 'running';
  calibrationBox.hidden = false;
  if (!calibrationBox.isConnected) document.getElementById('kv-unavailable')?.append(calibrationBox);
  calibrationStop.hidden = !running;
  put(calibrationPart, h('p', {class: s.inner === 'failed' ? 'kv-failed' : 'kv-stage-line'}, h('b', {}, `${s.label}: `), s.message),
    running && Number.isFinite(s.fraction) ? h('div', {class: 'kv-progress'}, h('i', {style: `width:${100 * s.fraction}%`})) : null);
}
