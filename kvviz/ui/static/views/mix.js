// Mix: a score of what the run stores of every entry, tried with sliders, decoded, taken along as a file.
import {chooser, copied, h, put, save} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask} from '../lib/page.js';
import {S, addView, redo} from '../lib/state.js';
import {layerMap} from './kept.js';
import {jobLine, startJob} from './run.js';

const POOLS = [['avg', 'average'], ['max', 'maximum'], ['none', 'none']];
const HEADS = [['', 'each head gets the same'], ['across', 'heads of a layer compete']];
const FINE = 0.25;  // between two powers of a slider
const asked = {mix: {}};  // goes with every request; {} is what a mix starts from
const line = jobLine(), box = h('div', {class: 'kv-box kv-mix'}), lacks = h('p', {class: 'kv-guide'});
const score = h('p', {class: 'kv-mix-score', id: 'kv-mix-score'});
const shares = h('p', {class: 'kv-guide', id: 'kv-mix-shares', 'aria-live': 'polite'});
const hint = h('span', {class: 'kv-muted'}), code = h('pre', {class: 'kv-mix-code', tabindex: 0});
let told = null;  // the last answer about the mix
let start = null;

export function buildMix() {
  const map = layerMap('mix-map', 'What this mix keeps', 'mix', asked,
    {tab: 'mix', reads: ['a', 'b', 'marks'], after: show});
  const change = patch => {
    Object.assign(asked.mix, patch);
    redo(map.view);
  };
  addView({id: 'mixes', tab: 'mix', reads: ['run'], async refresh() {
    const reply = await ask('mixes');
    if (reply.lost || reply.error) return;
    const gone = Object.fromEntries(reply.ingredients.filter(one => one.lacks).map(one => [one.id, 0]));
    start = {...reply.start, ...gone};
    asked.mix = {...start, ...asked.mix, ...gone};
    put(lacks, reply.lacks);
    put(box, fields(reply, change));
    redo(map.view);
  }});
  const go = h('button', {class: 'kv-button kv-primary', id: 'kv-mix-decode',
    onclick: () => startJob('decode_mix', {run: S.run, sel: S.sel, mix: asked.mix}, line,
      S.sel.a === told.name ? {} : {b: told.name})}, 'Decode');
  const again = h('button', {class: 'kv-button kv-small', id: 'kv-mix-reset', onclick: () => {
    asked.mix = {...start};
    for (const field of box.querySelectorAll('[data-of]')) field.set(asked.mix[field.dataset.of]);
    redo(map.view);
  }}, 'Start again');
  function show(reply) {
    told = reply;
    put(score, 'Score = ', h('b', {}, reply.score));
    put(shares, reply.shares.join(' · '));
    put(code, reply.file);
    go.disabled = Boolean(reply.decoded);
    put(go, `Decode at ${fmt.budget(S.sel.budget)}`);
    put(hint, reply.decoded ? `Decoded at this budget already: it is ${reply.decoded}.`
      : S.meta.origin === 'own' ? '' : 'Decoding loads the model first.');
  }
  return [h('h3', {class: 'kv-panel-title'}, 'Mix a method of your own'),
    h('p', {class: 'kv-guide'}, 'Each slider is the power of one number that the run stores of every entry; '
      + '0 leaves it out. What scores highest is kept, at the budget chosen above.'), lacks, box,
    score, shares, h('div', {class: 'kv-tools'}, go, again, hint), line, map.el, asPython()];
}

function asPython() {
  const said = h('span', {class: 'kv-muted', role: 'status'});
  const copy = async () => put(said, await copied(told.file) ? 'Copied.'
    : 'The browser did not let it be copied. Save it instead.');
  return h('details', {class: 'kv-more', id: 'kv-mix-python'}, h('summary', {}, 'As Python'),
    h('p', {class: 'kv-guide'}, 'A method file that keeps the very same entries: kvviz compare --plugin '
      + 'my_mix.py --methods my_mix,snapkv'),
    h('div', {class: 'kv-tools'},
      h('button', {class: 'kv-button kv-small', id: 'kv-mix-copy', onclick: copy}, 'Copy'),
      h('button', {class: 'kv-button kv-small', id: 'kv-mix-save',
        onclick: () => save('my_mix.py', told.file, 'text/x-python')}, 'Save as my_mix.py'), said), code);
}

function fields(reply, change) {
  const power = one => slider(one.id, one.label, `power of ${one.label}`, {min: one.low, max: one.high,
    step: FINE, disabled: one.lacks}, v => v === 0 ? 'left out' : String(v).replace('-', '−'), change);
  const tokens = v => v === 1 ? '1 token' : `${v} tokens`;
  const choose = (id, name, options, value, read) => {
    const field = chooser(name, options, value, v => change({[id]: read(v)}));
    field.dataset.of = id;
    field.set = v => { field.select.value = v === true ? 'across' : v || ''; };
    return field;
  };
  return [h('div', {class: 'kv-mix-rows'}, reply.ingredients.map(power),
    slider('pool', 'pooled over', 'attention is pooled over', {min: 1, max: reply.most.pool, step: 2},
      tokens, change),
    slider('sinks', 'kept by rule', 'first tokens that are kept by rule', {min: 0, max: reply.most.sinks,
      step: 1}, v => `first ${v}`, change)),
  h('div', {class: 'kv-tools'},
    choose('pool_kind', 'Pooling', POOLS, asked.mix.pool_kind, v => v),
    choose('across', 'Budget', HEADS, asked.mix.across ? 'across' : '', v => v === 'across'))];
}

// A labelled slider of one field of the mix, its value beside it in words.
function slider(id, name, title, range, words, change) {
  const value = h('output', {}), input = h('input', {type: 'range', ...range, 'aria-label': title, title,
    oninput() { say(); change({[id]: Number(input.value)}); }});
  const say = () => {
    put(value, words(Number(input.value)));
    input.setAttribute('aria-valuetext', value.textContent);
  };
  const row = h('label', {class: 'kv-mix-row', 'data-of': id}, h('span', {}, name), input, value);
  row.set = v => { input.value = v; say(); };
  row.set(asked.mix[id]);
  return row;
}
