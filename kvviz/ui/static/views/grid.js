// The needle grid: one sentence hidden in texts of several lengths, at several depths. Its form and its
// progress stand here; what is measured fills the grid of the sweep that is shown.
import {debounce, h, progressBar, put, reveal} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {alive, ask, page} from '../lib/page.js';
import {S} from '../lib/state.js';
import {labelled} from './form_settings.js';

const line = (id, text, value, attrs = {}) => {
  const input = h('input', {type: 'text', id, value, ...attrs});
  return [input, labelled(text, input, `${id}-field`)];
};
const [lengths, lengthsField] = line('kv-grid-lengths', 'Lengths of the texts, tokens', '500, 1000');
const [depths, depthsField] = line('kv-grid-depths', 'Depths: 0% is the start, 100% the end',
  '10%, 50%, 90%');
const [budgets, budgetsField] = line('kv-grid-budgets', 'Budgets kept', '20%, 10%');
const [seeds, seedsField] = line('kv-grid-seeds', 'Texts a place and sentence', '1',
  {type: 'number', min: 1, max: 10, step: 1});
const HIDDEN = ['a code (58213)', 'a name (Pepperpot)', 'a colour (magenta)'];
const box = (value, text, checked, title) => {
  const input = h('input', {type: 'checkbox', value, checked});
  return [input, h('label', {class: 'kv-method', title}, input, text)];
};
const needles = HIDDEN.map((text, i) => box(String(i), text, i === 0));
const later = h('input', {type: 'checkbox'});
const [same, sameLabel] = box('same',
  'Same settings for all: window, pooling and joining of query heads', true);
const told = h('p', {class: 'kv-estimate', id: 'kv-grid-estimate', 'aria-live': 'polite'}, '\u00a0');
const status = h('div', {id: 'kv-grid-status', 'aria-live': 'polite'});
const run = h('button', {class: 'kv-button kv-primary', id: 'kv-grid-run', onclick: start}, 'Fill the grid');
const stop = h('button', {class: 'kv-button', id: 'kv-grid-stop', disabled: true,
  onclick: () => page.trigger('stop_grid', {})}, 'Stop');
const panel = h('div', {class: 'kv-form', id: 'kv-grid-form', hidden: true});
const opener = h('button', {class: 'kv-button', id: 'kv-grid-button', 'aria-expanded': 'false',
  'aria-controls': 'kv-grid-form', onclick: () => show(panel.hidden)}, 'Run a needle grid');
let methods = [], model = null, grown = () => {}, shown = 0;

const fields = () => ({lengths: lengths.value, depths: depths.value, budgets: budgets.value,
  seeds: Number(seeds.value), methods: methods.filter(m => m[0].checked).map(m => m[0].value),
  needles: needles.filter(n => n[0].checked).map(n => Number(n[0].value)), model: model.value,
  protocol: later.checked ? 'question-agnostic' : 'question-aware', controlled: same.checked});

function show(on) {
  panel.hidden = !on;
  opener.setAttribute('aria-expanded', String(on));
  if (on) { reveal(panel); estimate(); }
}

let turn = 0;
async function estimate() {
  const mine = turn += 1, reply = await ask('grid_estimate', fields());
  if (mine !== turn || reply.lost) return;
  told.classList.toggle('kv-over', Boolean(reply.error));
  put(told, reply.error || [`${fmt.count(reply.texts)} texts`, `${fmt.count(reply.answers)} answers`,
    reply.seconds && `about ${fmt.seconds(Math.max(1, reply.seconds))}`].filter(Boolean).join(' · '));
}

async function start() {
  if (stop.disabled === false) return;
  shown = 0;
  tell({inner: 'running', message: 'Waiting for its turn'});
  if (await alive()) page.trigger('run_grid', fields());
  else tell({inner: 'failed', message: 'The server does not answer, so nothing was started.'});
}

function tell(s) {
  const on = s.inner === 'running';
  run.disabled = on;
  stop.disabled = !on;
  if (!on) {
    put(status, h('p', s.inner === 'failed' ? {class: 'kv-failed', role: 'alert'}
      : {class: 'kv-stage-line'}, s.message));
  } else {
    const left = s.seconds_left ? `, about ${fmt.seconds(s.seconds_left)} left` : '';
    put(status, h('p', {class: 'kv-stage-line'}, s.stage === 'wait' ? `Waiting: ${s.message}`
      : s.message || 'Getting the model ready', left),
    progressBar(s.fraction, 'Needle grid'));
  }
  if (s.grid && (s.done > shown || !on)) grown(s.grid, s.done === 1 && shown === 0, !on);
  shown = s.done || shown;
}

// {button, panel}; `onGrown(id, first, ended)` shows what has come.
export function buildGrid(onGrown) {
  grown = onGrown;
  const offer = page.boot.form;
  methods = offer.groups.flatMap(group => group.methods).map(m => box(m.id, m.label,
    offer.first.methods.includes(m.id), m.idea));
  model = offer.any_model ? h('input', {type: 'text', list: 'kv-model-names', value: offer.first.model})
    : h('select', {}, offer.models.map(one => h('option', {value: one.id}, one.label)));
  model.value = offer.first.model;
  const group = (name, boxes) => h('fieldset', {class: 'kv-group'}, h('legend', {}, name),
    boxes.map(one => one[1]));
  put(panel, h('p', {class: 'kv-guide'}, 'A sentence is hidden in texts of these lengths, at these depths, '
    + 'and asked for. Each text is read once for all methods and budgets; the grid fills as texts are done.'),
  h('div', {class: 'kv-fields'}, lengthsField, depthsField, budgetsField, seedsField,
    labelled('Model', model, 'kv-grid-model-field')),
  group('What is hidden', needles), group('Methods', methods),
  h('div', {class: 'kv-tools'},
    h('label', {class: 'kv-check'}, later, 'The question comes later'), sameLabel),
  h('div', {class: 'kv-form-run'}, run, stop, told), status);
  const soon = debounce(estimate, 400);
  panel.addEventListener('input', soon);
  panel.addEventListener('change', soon);
  document.addEventListener('kv:grid', event => tell(event.detail));
  document.addEventListener('kv:page', () => { if (S.page === 'evidence' && !panel.hidden) estimate(); });
  return {button: opener, panel};
}
