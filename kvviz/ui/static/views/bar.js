// The selection bar: which two methods, at which budget, which layer, head and tokens.
import {chooser, h, put} from '../lib/dom.js';
import {fmt, shown, spanName} from '../lib/format.js';
import {page, say} from '../lib/page.js';
import {GRAINS, S, choose, isDecoded, isOne, label, stepIndex, textOf, toggleMark} from '../lib/state.js';
import {playButton} from './play.js';
import {addButton} from './story.js';

const bar = {};
const NAMED = 11, LAST_NAMED = 89;  // % of the slider between two labels; beyond the second, only the end's

export function buildBar() {
  bar.a = chooser('A', [], '', value => choose({a: value}, 'bar'), {id: 'kv-a', title: 'Method A'});
  bar.b = chooser('B', [], '', value => choose({b: value || null}, 'bar'), {id: 'kv-b', title: 'Method B'});
  bar.a.classList.add('kv-is-a');
  bar.b.classList.add('kv-is-b');
  bar.swap = h('button', {class: 'kv-button kv-small', id: 'kv-swap', title: 'Swap A and B',
    onclick: () => S.sel.b && choose({a: S.sel.b, b: S.sel.a}, 'bar')}, 'swap');
  bar.slider = h('input', {type: 'range', id: 'kv-budget', min: 0, max: 1, step: 1, value: 0,
    'aria-label': 'Budget: share of the cache kept', oninput: slide});
  bar.ticks = h('div', {class: 'kv-ticks', 'aria-hidden': 'true'});
  bar.triple = h('output', {class: 'kv-triple', id: 'kv-triple', for: 'kv-budget'}, '\u00a0');
  const number = v => v === '' ? null : Number(v);
  bar.layer = chooser('Layer', [], '', v => choose({layer: number(v)}, 'bar'), {id: 'kv-layer'});
  bar.head = chooser('KV head', [], '', v => choose({head: number(v)}, 'bar'), {id: 'kv-head-choice'});
  bar.grain = chooser('Text by', [], 'token', v => choose({grain: v}, 'bar'),
    {id: 'kv-grain', title: 'What the text and its maps are seen by'});
  bar.tokens = h('span', {class: 'kv-tokens', id: 'kv-tokens'});
  bar.marks = h('span', {class: 'kv-tokens', id: 'kv-marks'});
  bar.clear = h('button', {class: 'kv-button kv-small', id: 'kv-clear',
    onclick: () => choose({tok: null, layer: null, head: null, marks: []}, 'bar')}, 'Clear');
  for (const box of [bar.a, bar.b, bar.layer, bar.head, bar.grain]) box.select.disabled = page.offline;
  document.addEventListener('kv:run', fill);
  document.addEventListener('kv:text', () => { fillGrains(); sync(); });
  document.addEventListener('kv:sel', sync);
  return h('section', {class: 'kv-bar', 'aria-label': 'Selection'},
    h('div', {class: 'kv-bar-row'}, bar.a, bar.b, bar.swap,
      h('div', {class: 'kv-budget'}, h('span', {class: 'kv-label'}, 'Budget'),
        h('div', {class: 'kv-slide'}, bar.slider, bar.ticks), playButton, bar.triple)),
    h('div', {class: 'kv-bar-row'}, bar.layer, bar.head, bar.grain, bar.tokens, bar.marks,
      bar.clear, addButton));
}

function slide() {
  const index = Number(bar.slider.value);
  say('');
  showBudget(index);
  choose({budget: S.meta.steps[index]}, 'slider');
}

// Share, entries and bytes at a stop, in the server's words: they came with the run.
function showBudget(index) {
  const {steps, budget_words: words, memory_words: memory} = S.meta, text = words[S.sel.a][index];
  put(bar.triple, text);
  bar.triple.title = memory[S.sel.a][index];
  bar.slider.setAttribute('aria-valuetext',
    `${text}, answers ${isDecoded(S.sel.a, steps[index]) ? '' : 'not '}decoded`);
}

function fill() {
  const m = S.meta, all = m.methods.map(x => [x.id, x.label]), last = m.steps.length - 1;
  const numbers = count => [['', 'all'], ...Array.from({length: count}, (_, i) => [i, i])];
  bar.a.select.fill(all, S.sel.a);
  bar.b.select.fill([...all, ['', 'none']], S.sel.b || '');
  bar.layer.select.fill(numbers(m.model.layers), '');
  bar.head.select.fill(numbers(m.model.kv_heads), '');
  bar.slider.max = last;
  let free = -1;  // labels keep a distance; both ends always have theirs
  put(bar.ticks, m.steps.map((share, i) => {
    const at = last ? 100 * i / last : 0, decoded = m.methods.some(x => isDecoded(x.id, share));
    const named = i === 0 || i === last || (decoded && at >= free && at <= LAST_NAMED);
    if (named) free = at + NAMED;
    const side = i === 0 ? ' kv-first' : i === last ? ' kv-last' : '';
    return h('i', {style: `left:${at}%`, class: `kv-tick${decoded ? ' kv-decoded' : ''}${side}`},
      named ? h('b', {}, fmt.budget(share)) : null);
  }));
  fillGrains();
  sync();
}

// By page and heading where the text has any.
function fillGrains() {
  const parted = S.doc?.sections.length > 0;
  bar.grain.select.fill(GRAINS.filter(one => one !== 'section' || parted || S.sel.grain === one)
    .map(one => [one, one === 'section' ? 'page or heading' : one]), S.sel.grain);
}

function sync() {
  if (!S.meta) return;
  const s = S.sel, index = stepIndex(s.budget);
  bar.a.select.value = s.a;
  bar.b.select.value = s.b || '';
  bar.layer.select.value = s.layer ?? '';
  bar.head.select.value = s.head ?? '';
  bar.grain.select.value = s.grain;
  bar.swap.disabled = !s.b || page.offline;
  bar.slider.value = index;
  showBudget(index);
  put(bar.tokens, h('span', {class: 'kv-label'}, s.tok && s.tok[1] - s.tok[0] > 1 ? 'Tokens' : 'Token'), ' ',
    s.tok ? chosenTokens(s.tok) : h('span', {class: 'kv-muted'}, 'all'));
  put(bar.marks, (s.marks || []).length ? h('span', {class: 'kv-label'}, 'Marks') : null,
    S.meta.marks.filter(m => m.byHand).map(markChip));
  for (const line of document.querySelectorAll('.kv-echo')) put(line, selectionWords());
}

function chosenTokens(tok) {
  const marked = S.meta.marks.some(m => tok[0] >= m.start && tok[0] < m.end);
  return [h('b', {}, spanName(tok)), ' ', h('q', {dir: 'auto'}, shown(textOf(tok), 32)),
    h('button', {class: 'kv-x', 'aria-label': 'Clear tokens', onclick: () => choose({tok: null}, 'bar')},
      '×'),
    marked ? null : h('button', {class: 'kv-button kv-small', id: 'kv-mark', onclick: () => toggleMark(tok),
      title: 'Follow these tokens in every view'}, 'Mark')];
}

function markChip(m) {
  return h('span', {class: 'kv-chip kv-mark-chip'},
    h('button', {class: 'kv-word', onclick: () => choose({tok: [m.start, m.end]}, 'mark')}, m.name),
    h('button', {class: 'kv-x', 'aria-label': `Remove ${m.name}`,
      onclick: () => toggleMark([m.start, m.end])}, '×'));
}

export function selectionWords() {
  const s = S.sel;
  return [`A ${label(s.a)}`, s.b ? `B ${label(s.b)}` : 'no B', `${fmt.budget(s.budget)} kept`,
    isOne(s.layer) ? `layer ${s.layer}` : 'all layers', isOne(s.head) ? `KV head ${s.head}` : 'all KV heads',
    s.tok && `${s.tok[1] - s.tok[0] > 1 ? 'tokens'
      : 'token'} ${spanName(s.tok)} “${shown(textOf(s.tok), 24)}”`,
  ].filter(Boolean).join(' · ');
}
