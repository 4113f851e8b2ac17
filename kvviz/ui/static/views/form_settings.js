// What is folded away in the form: model, answer length, sampling, settings for all methods, saved runs.
import {h} from '../lib/dom.js';
import {NOT_SENT, page, sent} from '../lib/page.js';
import {tellStatus} from '../lib/status.js';
import {variantField} from './form_methods.js';

const inputs = {};  // field of the server -> its control

export const labelled = (text, control, id, hint) => h('label', {class: 'kv-field', id},
  h('span', {class: 'kv-label'}, text), control, hint ? h('span', {class: 'kv-guide'}, hint) : null);

const field = (name, text, control, id, hint) => {
  inputs[name] = control;
  return labelled(text, control, id, hint);
};
const number = attrs => h('input', {type: 'number', ...attrs});

// {same, folds, saved}: the switch in plain sight, the folded parts, the way to a saved run.
export function moreSettings(offer, modelChanged) {
  const models = h('datalist', {id: 'kv-model-names'},
    offer.models.map(one => h('option', {value: one.id}, `${one.label} (${one.needs})`)));
  const model = offer.any_model ? h('input', {type: 'text', list: 'kv-model-names'})
    : h('select', {}, offer.models.map(one => h('option', {value: one.id}, `${one.label} (${one.needs})`)));
  const dtype = h('select', {}, offer.dtypes.map(one => h('option', {value: one}, one)));
  for (const one of [model, dtype]) one.addEventListener('change', modelChanged);
  const same = inputs.controlled = h('input', {type: 'checkbox'});
  const check = (name, text, id) => h('label', {class: 'kv-check', id},
    inputs[name] = h('input', {type: 'checkbox'}), text);
  const fold = (id, title, ...nodes) => h('details', {class: 'kv-more', id}, h('summary', {}, title),
    h('div', {class: 'kv-fields'}, nodes));
  return {
    same: h('label', {class: 'kv-check kv-same', id: 'kv-controlled-field'}, same,
      'Same settings for all: window, pooling and joining of query heads'),
    folds: [fold('kv-more', 'Model and settings',
      field('model', offer.any_model ? 'Model: a name, a hub id, a folder or a .gguf file' : 'Model', model,
        'kv-model-field'), models,
      field('dtype', 'Number format', dtype, 'kv-dtype-field', 'bfloat16 reads two to three times as fast '
        + 'where the processor has it; with the built-in model it moves answers by 0.001 nats a token'),
      field('max_new_tokens', 'Answer length, tokens at most',
        number({min: 1, max: offer.most_new_tokens, step: 1}), 'kv-new-tokens-field'),
      field('window', 'Observation window, tokens (empty: each method’s own)', number({min: 1, step: 1}),
        'kv-window-field')),
    fold('kv-prompt', 'Prompt', field('system', 'System message (optional)', h('input', {type: 'text'}),
      'kv-system-field'),
    field('cue', 'The answer begins with (optional)', h('input', {type: 'text'}), 'kv-cue-field',
      'Every cache goes on from there; what follows is shown and judged'),
    field('turns', 'Turns before the document’s (optional)', h('textarea', {rows: 3, spellcheck: false,
      placeholder: '[{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'}),
    'kv-turns-field'),
    field('raw', 'A raw prompt in place of the chat template (optional)', h('textarea', {rows: 3,
      spellcheck: false, placeholder: '… {document} … {question} …'}), 'kv-raw-field',
    'Read as it stands, control tokens too'),
    check('template', 'Use the model’s chat template', 'kv-template-field'),
    check('thinking', 'Let a model that can think before it answers', 'kv-thinking-field')),
    fold('kv-advanced', 'Advanced', variantField(offer),
      field('evict_every', 'Evict again after every so many new tokens (0: never)',
        number({min: 0, step: 1}), 'kv-every-field', `Only methods that can: ${offer.decodes.join(', ')}`),
      field('temperature', 'Temperature (0: greedy)', number({min: 0, max: 2, step: 0.05}),
        'kv-temperature-field'),
      field('top_p', 'Top-p', number({min: 0.05, max: 1, step: 0.05}), 'kv-top-p-field'),
      field('seed', 'Seed', number({step: 1}), 'kv-seed-field'))],
    saved: savedRun()};
}

const DEFAULTS = {model: '', dtype: 'auto', max_new_tokens: 64, window: '', system: '', evict_every: 0,
  temperature: 0, top_p: 1, seed: 0, cue: '', turns: '', raw: ''};
const CHECKS = {controlled: false, template: true, thinking: false};

export function setSettings(fields) {
  for (const [name, otherwise] of Object.entries(DEFAULTS)) {
    if (name in fields) inputs[name].value = fields[name] ?? otherwise;
    else if (inputs[name].value === '') inputs[name].value = otherwise;
  }
  for (const [name, otherwise] of Object.entries(CHECKS)) {
    inputs[name].checked = Boolean(name in fields ? fields[name] : inputs[name].dataset.set
      ? inputs[name].checked : otherwise);
    inputs[name].dataset.set = 'yes';  // an example leaves what it does not name
  }
}

export function readSettings() {
  const read = Object.entries(inputs).map(([name, control]) => [name, control.type === 'checkbox'
    ? control.checked : control.type !== 'number' ? control.value
      : control.value === '' ? null : Number(control.value)]);
  return Object.fromEntries(read);
}

// A saved run is sent as any upload is, then opened by its place on the server; `more` says where.
export function savedRun(id = 'kv-open-saved', words = 'Open a saved run', more = {}) {
  const chooser = h('input', {type: 'file', accept: '.zip,.json', hidden: true, onchange: async () => {
    const [file] = chooser.files;
    chooser.value = '';
    tellStatus(`Opening ${file.name}`);
    const path = await sent(file);
    if (path) page.trigger('open_saved', {path, ...more});
    else tellStatus(NOT_SENT, true);
  }});
  return h('span', {}, h('button', {class: 'kv-button', id, onclick: () => chooser.click()}, words), chooser);
}
