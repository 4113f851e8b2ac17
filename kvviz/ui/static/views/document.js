// The document, shaded by who still holds each word: hover reads out, click and drag select.
import {chooser, debounce, h, put} from '../lib/dom.js';
import {fmt, shown, typed} from '../lib/format.js';
import {ask, say} from '../lib/page.js';
import {LOOK, S, addView, choose, label, redo, sectionOf,
  textOf} from '../lib/state.js';
import {selectionWords} from './bar.js';
import {blocks, charAt, charUnder, cutBlocks, docBox, fillBlock, foldBlocks, forgetUnfolded, repaint,
  setCrossed, tokensOf} from './blocks.js';
import {docMap, drawMinimap} from './minimap.js';

const FOLDS_FROM = 32768;  // tokens from which what A and B agree on is folded at first
const docRead = h('p', {class: 'kv-readout', 'aria-live': 'polite'}, '\u00a0');
const docLegend = h('div', {class: 'kv-legend'});
const docExtra = h('div', {class: 'kv-doc-extra'});
const guide = h('p', {class: 'kv-guide', id: 'kv-doc-guide'}, '\u00a0');
const foldNote = h('p', {class: 'kv-guide', hidden: true});
let cursor = null;

const tell = text => put(docRead, text);

const colourBy = chooser('Colour by', [['ab', 'A against B'], ['a', 'A'], ['b', 'B']], 'ab', v => {
  LOOK.colourBy = v;
  redo(docView);
}, {id: 'kv-colour-by'});

const foldBox = h('input', {type: 'checkbox', id: 'kv-fold',
  onchange: () => { forgetUnfolded(); repaintDoc(); }});
const foldLabel = h('label', {class: 'kv-check', title: 'Fold the stretches in which A and B agree'}, foldBox,
  'Fold agreement');

const find = h('input', {type: 'search', class: 'kv-find', placeholder: 'Find in text',
  'aria-label': 'Find in text',
  onkeydown: event => { if (event.key === 'Enter') { event.preventDefault(); findText(find.value); } }});
const findNote = h('p', {class: 'kv-notice', role: 'status', hidden: true});

export function buildDocument() {
  docBox.addEventListener('mousemove', hover);
  docBox.addEventListener('mouseup', pick);
  docBox.addEventListener('keydown', keys);
  docBox.addEventListener('scroll', debounce(drawMinimap, 60), {passive: true});
  new ResizeObserver(debounce(drawMinimap, 60)).observe(docBox);
  find.addEventListener('input', () => { findNote.hidden = true; });
  document.addEventListener('kv:sel', mark);
  document.addEventListener('kv:theme', drawMinimap);
  document.addEventListener('kv:unfold', repaintDoc);
  return h('section', {class: 'kv-panel kv-doc', id: 'kv-document', 'aria-label': 'Document'},
    h('div', {class: 'kv-panel-head'},
      h('h3', {class: 'kv-panel-title'}, 'Your text, shaded by who still holds it')),
    h('div', {class: 'kv-panel-head'}, colourBy, find, foldLabel), guide, foldNote, findNote, crossNote,
    h('div', {class: 'kv-doc-frame'}, docMap, docBox), docRead, docLegend, docExtra);
}

// The text and where each token lies in it, asked once a run.
export async function loadText() {
  const d = await ask('text');
  if (d.error) { put(docBox, d.error); return; }
  const steps = typed(d.steps), lengths = typed(d.lengths);  // starts as differences: a third of the bytes
  d.starts = new Int32Array(steps.length);
  d.ends = new Int32Array(steps.length);
  for (let i = 0, at = 0; i < steps.length; i += 1) {
    at += steps[i];
    d.starts[i] = at;
    d.ends[i] = at + lengths[i];
  }
  const place = new Map((d.index || []).map((t, i) => [t, i]));
  d.at = t => d.index ? place.get(t) ?? -1 : t >= d.first && t - d.first < d.starts.length ? t - d.first : -1;
  d.token = i => d.index ? d.index[i] : i + d.first;
  d.pages = new Map();  // first token -> "page 3", drawn beside the text and no part of it
  for (const [i, [first, , page]] of d.sections.entries()) {
    if (page && page !== d.sections[i - 1]?.[2]) d.pages.set(first, `page ${page}`);
  }
  S.doc = d;
  foldBox.checked = S.meta.n > FOLDS_FROM;
  cutBlocks(d);
  document.dispatchEvent(new CustomEvent('kv:text'));
}

const BY = {
  ab: {classes: ['kv-neither', 'kv-both', 'kv-only-a', 'kv-only-b', 'kv-mixed'], rank: [0, 1, 3, 3, 4],
    tones: ['evicted', 'step-4', 'a', 'b', 'mixed']},
  step: {classes: [0, 1, 2, 3, 4].map(i => `kv-step-${i}`), rank: [0, 1, 2, 3, 4],
    tones: [0, 1, 2, 3, 4].map(i => `step-${i}`)},
  effect: {classes: ['kv-neither', 'kv-gain-1', 'kv-gain-2', 'kv-gain-3', 'kv-gain-4', 'kv-against',
    'kv-neither'],
    rank: [0, 1, 2, 3, 4, 1, 0],
    tones: ['evicted', 'amount-3', 'amount-6', 'amount-9', 'amount-12', 'against-3', 'evicted']}};

// How each token is drawn and what is read out of it, from one reply.
function shading(reply) {
  const {classes, rank, tones} = BY[reply.by in BY ? reply.by : 'step'], ab = reply.by === 'ab';
  const a = typed(reply.held_a), b = reply.held_b ? typed(reply.held_b) : null, heads = typed(reply.heads);
  const code = t => reply.codes.charCodeAt(t) - 48, of = reply.units ? `entries of this ${S.sel.grain}`
    : 'KV heads';
  const place = t => !units ? t : t < S.meta.n ? unitOf(t) : units.length + t - S.meta.n;
  const differs = t => ab && code(t) >= 2;
  return {ab, rank, tones, code, differs,
    cls: t => `kv-t ${classes[code(t)] || ''}${reply.partial[t] ? ' kv-partial' : ''}`,
    nextDifference: from => [...Array(S.meta.n).keys()].map(i => (from + i) % S.meta.n).find(differs),
    words: t => [`A ${fmt.count(a[place(t)])} of ${fmt.count(heads[place(t)])} ${of}`, b
      && `B ${fmt.count(b[place(t)])} of ${fmt.count(heads[place(t)])}`,
      reply.partial[t],
      sectionOf(t),
      reply.passages?.find(([from, to]) => t >= from && t < to)?.[2]].filter(Boolean).join(' · ')};
}

function legend(ab, by) {
  const a = label(S.sel.a), b = S.sel.b ? label(S.sel.b) : '';
  const rows = ab ? [['kv-both', 'held by both'], ['kv-only-a', `more by A ${a}`],
    ['kv-only-b', `more by B ${b}`], ['kv-neither', 'dropped by most']]
    : [['kv-step-4', 'every head'], ['kv-step-3', 'most'], ['kv-step-1', 'few'],
      ['kv-step-0', 'dropped by every head']];
  if (by === 'effect') {
    rows.splice(0, rows.length, ['kv-gain-4', 'most'], ['kv-gain-2', 'some'],
      ['kv-neither', 'under 0.01 nats'],
      ['kv-against', 'the other way']);
  }
  return rows.map(([c, text]) =>
    h('span', {class: 'kv-key'}, h('span', {class: `kv-t ${c}`}, 'word'), ' ', text));
}

const docView = addView({id: 'document',
  reads: ['run', 'a', 'b', 'budget', 'layer', 'head', 'grain', 'direction'],
  el: docBox,
  async refresh() {
  if (!S.doc) return;
  const {doc} = S, reply = await ask('document', {direction: LOOK.direction,
    by: S.sel.b || LOOK.colourBy === 'effect' ? LOOK.colourBy : 'a'});
  if (reply.lost || doc !== S.doc) return;
  if (reply.error) { tell(reply.error); return; }
  units = reply.units ? unitStarts(reply.units) : null;
  S.codes = shading(reply);
  own = null;
  const known = Object.values(S.meta.causes).some(list => list.length);
  colourBy.select.fill([...(S.sel.b ? [['ab', 'A against B'], ['a', 'A'], ['b', 'B']] : [['a', 'A']]),
    ...(known ? [['effect', 'effect on the answer']] : [])], reply.by);
  colourBy.hidden = !S.sel.b && !known;
  foldLabel.hidden = !S.codes.ab || blocks.length < 3;
  put(docLegend, legend(S.codes.ab, reply.by));
  put(guide, S.codes.ab
    ? 'A colour marks words that one method holds in more heads than the other. Grey: most heads dropped it.'
    : reply.guide);
  showExtra(reply.rules);
  repaintDoc();
}});

// First tokens of the units that the text is seen by; null where each token is its own.
let units = null;
function unitStarts(steps) {
  let at = 0;
  return Int32Array.from(typed(steps), step => (at += step));
}

function unitOf(t) {  // the last one that does not begin behind t
  let low = 0, high = units.length;
  while (low < high) { const mid = (low + high) >> 1; if (units[mid] <= t) low = mid + 1; else high = mid; }
  return low - 1;
}

// The whole units in which these tokens lie; what follows the last of them is under no compression.
const wholeUnits = ([from, to]) => !units || from >= S.meta.n ? [from, to]
  : [units[unitOf(from)], Math.max(to, units[unitOf(to - 1) + 1] ?? S.meta.n)];

// So many tokens or units on, inside the document.
function onwards(now, step) {
  const d = S.doc, last = d.starts.length - 1, place = i => d.token(Math.max(0, Math.min(last, i)));
  if (!units) return place(d.at(now) + step);
  const start = units[Math.max(0, Math.min(units.length - 1, unitOf(now) + step))];
  return d.at(start) < 0 ? place(step < 0 ? 0 : last) : start;
}

// Another shading for a while, the own one again with null.
let own = null;
export function lightUp(look) {
  if (!S.codes) return;
  own ??= S.codes;
  if (look) S.codes = {...own, ...look, ab: false, partial: {}};
  else [S.codes, own] = [own, null];
  repaint();
}

export const shade = () => redo(docView);

function repaintDoc() {
  if (!S.doc || !S.codes) return;
  const on = foldBox.checked && S.codes.ab && !foldLabel.hidden, folded = foldBlocks(on);
  foldNote.hidden = !on || folded > 0;
  if (on && !folded) put(foldNote,
    'Nothing is folded: in every stretch of this text some word tells A and B apart.');
  repaint();
  drawMinimap();
}

// A new selection: its frame moves, and it is brought into sight where it was not chosen here.
function mark(event) {
  const {changed, src} = event.detail;
  if (!S.doc || !S.codes || !(changed.includes('tok') || changed.includes('marks'))) return;
  repaintDoc();
  if (changed.includes('tok') && S.sel.tok && src !== 'document') scrollToToken(S.sel.tok[0]);
}

export function scrollToToken(t) {
  const i = S.doc?.at(t) ?? -1, b = i < 0 ? null : blocks.find(one => one.first <= i && i <= one.last);
  if (!b) return;
  if (b.el.classList.contains('kv-folded')) { b.open = true; repaintDoc(); }
  fillBlock(b);
  const el = b.el.querySelector('.kv-chosen') || b.el;
  const top = el.getBoundingClientRect().top - docBox.getBoundingClientRect().top + docBox.scrollTop;
  docBox.scrollTop = Math.max(0, top - docBox.clientHeight / 3);
}

// Tokens crossed out in the text, with a line that says what they are; null for none.
const crossNote = h('p', {class: 'kv-notice', role: 'status', hidden: true});
export function crossOut(tokens, words) {
  setCrossed(tokens || []);
  crossNote.hidden = !tokens;
  if (!tokens) return;
  put(crossNote, words, ' ', h('button', {class: 'kv-link-button', onclick: () => crossOut(null)}, 'Clear'));
  if (tokens.length) scrollToToken(tokens[0]);
}

const tokenWords = t => S.codes ? `token ${t} “${shown(textOf([t, t + 1]))}” · ${S.codes.words(t)}` : '';

function hoverToken(t) {
  cursor = t;
  tell(tokenWords(t));
}

function hover(event) {
  const char = S.doc && S.codes ? charUnder(event.clientX, event.clientY) : null;
  if (char !== null) hoverToken(tokensOf(S.doc, char, char + 1)[0]);
}

// A click takes the tokens of the character under the pointer, or the mark it lies in; a drag its words.
function pick(event) {
  const d = S.doc, marked = window.getSelection();
  if (!d || !marked.rangeCount) return;
  const range = marked.getRangeAt(0);
  if (marked.isCollapsed || !docBox.contains(range.startContainer)) {
    const char = charUnder(event.clientX, event.clientY);
    if (char === null) return;
    const tok = tokensOf(d, char, char + 1),
      within = S.meta.marks.find(m => tok[0] >= m.start && tok[0] < m.end);
    choose({tok: wholeUnits(within ? [within.start, within.end] : tok)}, 'document');
    return;
  }
  const from = charAt(range.startContainer, range.startOffset),
    to = charAt(range.endContainer, range.endOffset);
  if (from === null || to === null || to <= from) return;
  marked.removeAllRanges();
  choose({tok: wholeUnits(tokensOf(d, from, to))}, 'document');
}

const STEPS = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -12, ArrowDown: 12};
function keys(event) {
  const d = S.doc, step = STEPS[event.key], {tok} = S.sel;
  if (!d) return;
  if (step) {
    const now = cursor ?? tok?.[0] ?? d.first;
    cursor = onwards(now, step);
    const on = event.shiftKey && tok;
    choose({tok: wholeUnits(on ? [Math.min(tok[0], cursor), Math.max(tok[1], cursor + 1)]
      : [cursor, cursor + 1])}, 'document-keys');
    say(tokenWords(cursor));
    tell(tokenWords(cursor));
  } else if (event.key === 'Escape') choose({tok: null}, 'document');
  else if (event.key === 'Enter') say(selectionWords());
  else return;
  event.preventDefault();
}

// The next place where the words stand, letter for letter; from the start again after the last.
function findText(what) {
  const d = S.doc;
  if (!d || !what) return;
  const i = S.sel.tok ? d.at(S.sel.tok[1] - 1) : -1;
  let at = d.text.indexOf(what, i < 0 ? 0 : d.ends[i]);
  if (at < 0) at = d.text.indexOf(what);
  findNote.hidden = at >= 0;
  if (at < 0) { put(findNote, `“${shown(what,
    30)}” does not occur in this text, letter for letter.`); return; }
  choose({tok: tokensOf(d, at, at + what.length)}, 'find');
}

// Tokens around the document: template, question, and the window that scores are read from.
const rules = h('div', {class: 'kv-rules'});
const MOST_AROUND = 120;
function showExtra(parts) {
  if (!rules.isConnected) {
    put(docExtra, h('details', {class: 'kv-more'}, h('summary', {}, 'Question, template and window'), rules));
  }
  const word = t => h('button', {class: `${S.codes.cls(t)} kv-tok`, tabindex: -1,
    onmouseover: () => hoverToken(t), onclick: () => choose({tok: [t, t + 1]}, 'document')},
      shown(textOf([t, t + 1])));
  put(rules, parts.map(([title, from, to]) => h('div', {class: 'kv-around'}, h('h4', {}, title),
    h('p', {}, Array.from({length: Math.min(to - from, MOST_AROUND)}, (_, i) => word(from + i))))));
}
