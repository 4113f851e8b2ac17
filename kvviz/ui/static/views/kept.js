// Which tokens each layer kept: maps of A and B, A against B, one layer's heads, bars per layer.
import {debounce, h, put} from '../lib/dom.js';
import {fmt, shown, spanName, typed} from '../lib/format.js';
import {Panel} from '../lib/panel.js';
import {LOOK, S, choose, isOne, redo, sectionOf, textOf, touch} from '../lib/state.js';
import {buildHeld} from './held.js';

const LEAST_RANGE = 20;  // tokens a zoom shows at least
const FIRST_COLUMNS = 300;  // asked for while a map has no size yet

// No more columns than the figure has device pixels: a column without a pixel would not be seen.
const askFor = (panel, extra) => ({...(LOOK.range ? {x0: LOOK.range[0], x1: LOOK.range[1]} : {}),
  rule: LOOK.rule, columns: panel.plot.pixels() || FIRST_COLUMNS, ...extra});

// A map of tokens; asked for again when its width gives it other columns.
function tokenMap(options, extra) {
  let asked = 0;
  const panel = new Panel({tab: 'kept', ...options, onBox: x => choose({tok: boxSpan(x)}, options.id),
    args: () => {
      const args = askFor(panel, extra);
      asked = args.columns;
      return args;
    }});
  panel.plot.sides = 90;  // px beside the map, about, until it has been drawn once
  const check = () => {
    const now = panel.plot.pixels(), tokens = LOOK.range ? LOOK.range[1] - LOOK.range[0] : S.meta?.n;
    const inCell = columns => Math.ceil(tokens / columns);  // as the server joins them
    if (now && tokens && inCell(now) !== inCell(asked)) redo(panel.view);
  };
  panel.plot.onWidth = debounce(check, 200);
  const {after} = options;
  panel.after = (reply, self) => { after?.(reply, self); check(); };
  return panel;
}

// What the cell under the pointer stands for, from counts that came with the figure. `row` names the
// rows, where the figure does not name each of its own.
function cellWords(point, panel, row) {
  const {cells, rows} = panel.plot.spec?.layout.meta || {}, heat = panel.plot.spec?.data[0];
  if (!cells || !point.pointNumber) return '';
  const [r, col] = point.pointNumber, counts = cellCounts(heat), span = cellSpan(point, panel);
  if (rows && !rows[r]) return '';  // between two bands
  const k = cells.channels.length, at = (r * counts.columns + col) * k;
  const count = span[1] - span[0], total = count * cells.heads, of = fmt.count(total);
  const value = Object.fromEntries(cells.channels.map((name, i) => [name, counts.flat[at + i]]));
  const where = `${rows ? rows[r] : `${row} ${r}`}, ${count === 1 ? 'token' : 'tokens'} ${spanName(span)} `
    + `“${shown(textOf(span), 24)}”${standing(span[0])}`;
  if ('both' in value) {
    const [a, b] = ['only A', 'only B'].map(side => fmt.count(value[side] + value.both));
    return `${where}: A kept ${a} of ${of} entries, B ${b} of ${of}; ${fmt.count(value.both)} by both`;
  }
  return `${where}: kept ${fmt.count(value.kept)} of ${of} ${total === 1 ? 'entry' : 'entries'}`
    + (value.protected ? `; ${fmt.count(value.protected)} kept by rule` : '');
}

// Page and heading, where the text has any.
const standing = t => sectionOf(t) && ` (${sectionOf(t)})`;

function cellCounts(heat) {
  if (!heat.counts) {
    const shape = String(heat.customdata.shape).split(',').map(Number);
    heat.counts = {flat: typed({...heat.customdata, shape: ''}), columns: shape[1]};
  }
  return heat.counts;
}

function cellSpan(point, panel) {
  const meta = panel.plot.spec.layout.meta.cells;
  if (meta.units) return meta.units[point.pointNumber[1]];
  const first = meta.x0 + point.pointNumber[1] * meta.size;
  return [first, Math.min(meta.x1, first + meta.size)];
}

function tokenRect(rows, row) {
  const t = S.sel.tok;
  if (!t && row === null) return [];
  const [x0, x1] = t ? [t[0] - 0.5, t[1] - 0.5] : [-0.5, S.meta.n - 0.5];
  return [{x0, x1, y0: row === null ? -0.5 : row - 0.5, y1: row === null ? rows - 0.5 : row + 0.5}];
}

export function layerMap(id, title, view, extra, more = {}) {
  const panel = tokenMap({id, title, view, height: 400, tab: more.tab || 'kept',
    reads: ['run', 'budget', 'range', 'grain', ...(more.reads || ['a'])],
    needsB: more.needsB, after: more.after,
    onHover: p => cellWords(p, panel, 'layer'),
    onPick: p => p.pointNumber?.length === 2
      && choose({tok: cellSpan(p, panel), layer: p.pointNumber[0]}, id),
    onReset: () => { choose({tok: null}, id); setRange(null); },
    mark: () => tokenRect(S.meta.model.layers, S.sel.layer ?? null)}, extra);
  panel.plot.onStep = zoomBy;
  return panel;
}

function headMap(id, side) {
  const layer = () => panel.plot.spec.layout.meta.layer;
  const panel = tokenMap({id, title: 'Heads of one layer', view: 'heads', height: 210,
    reads: ['run', 'budget', 'layer', 'tok', 'range', 'grain', 'a', 'b'], needsB: side === 'b',
    onHover: p => cellWords(p, panel, `layer ${layer()}, KV head`),
    onPick: p => p.pointNumber && choose({tok: cellSpan(p, panel), layer: layer(), head: p.pointNumber[0]},
      id),
    onReset: () => { choose({tok: null}, id); setRange(null); },
    mark: () => tokenRect(S.meta.model.kv_heads, S.sel.head ?? null)}, {side});
  return panel;
}

const layerBars = (id, side) =>
  new Panel({id, title: 'Tokens kept per layer', view: 'per_layer', tab: 'kept', height: 400,
  reads: ['run', 'budget', side], args: () => ({side}), needsB: side === 'b',
  onHover: p => `layer ${p.y}: ${fmt.count(p.x)} tokens per KV head on average`,
  onPick: p => choose({layer: Number(p.y)}, id),
  mark: () => isOne(S.sel.layer)
    ? [{x0: 0, x1: 1, xref: 'paper', y0: S.sel.layer - 0.5, y1: S.sel.layer + 0.5}] : []});

const boxSpan = x => {
  const [a, b] = [Math.min(...x),
    Math.max(...x)].map(v => Math.max(0, Math.min(S.meta.n - 1, Math.round(v))));
  return [a, Math.max(a + 1, b + 1)];
};

// Zoom: the tokens the maps show, null for all of them.
const rangeWords = h('span', {class: 'kv-muted', id: 'kv-range'});

function sayRange() {
  const n = fmt.count(S.meta.n), {range} = LOOK;
  put(rangeWords, range ? `tokens ${fmt.count(range[0])}–${fmt.count(range[1] - 1)} of ${n}`
    : `all ${n} tokens`);
}

function setRange(range) {
  const {n} = S.meta;
  if (range) {
    const width = Math.max(LEAST_RANGE, Math.min(n, Math.round(range[1] - range[0])));
    const start = Math.max(0, Math.min(n - width, Math.round(range[0])));
    range = width >= n ? null : [start, start + width];
  }
  if (JSON.stringify(range) === JSON.stringify(LOOK.range)) return;
  LOOK.range = range;
  sayRange();
  touch(['range']);
}

function zoomBy(factor) {
  const [x0, x1] = LOOK.range || [0, S.meta.n], {tok} = S.sel;
  const middle = LOOK.range || !tok ? (x0 + x1) / 2 : (tok[0] + tok[1]) / 2, half = (x1 - x0) * factor / 2;
  setRange([middle - half, middle + half]);
}

function shift(part) {
  const [x0, x1] = LOOK.range || [0, S.meta.n], step = (x1 - x0) * part;
  setRange([x0 + step, x1 + step]);
}

function toTokens() {
  if (!S.sel.tok) return;
  const [a, b] = S.sel.tok, pad = Math.max(40, b - a);
  setRange([a - pad, b + pad]);
}

function zoomTools(rule) {
  const button = (text, title, fn) =>
    h('button', {class: 'kv-button kv-small', title, 'aria-label': title, onclick: fn}, text);
  return h('div', {class: 'kv-tools', id: 'kv-zoom'}, button('−', 'Zoom out', () => zoomBy(2)),
    button('+', 'Zoom in', () => zoomBy(0.5)), button('‹', 'Earlier tokens', () => shift(-0.5)),
    button('›', 'Later tokens', () => shift(0.5)),
    button('To selection', 'Zoom to the chosen tokens', toTokens),
    button('All', 'Show all tokens', () => setRange(null)), rangeWords, rule);
}

// Every method's map, one band each; drawn when it is opened.
function everyMethod() {
  const box = h('details', {class: 'kv-more', id: 'kv-all-methods'},
    h('summary', {}, 'Every method, one band each'));
  const panel = tokenMap({id: 'every', title: 'Every method', view: 'all_methods', height: 500,
    reads: ['run', 'budget', 'range', 'grain'], onHover: p => cellWords(p, panel, ''),
    mark: reply => reply.rows_in_map ? tokenRect(reply.rows_in_map, null) : []}, {});
  const load = panel.load.bind(panel);
  panel.view.refresh = async seq => { if (box.open) await load(seq); else panel.view.dirty = true; };
  box.addEventListener('toggle', () => redo(panel.view));
  box.append(panel.el);
  return box;
}

// [nodes beside the document, nodes below both].
export function buildKept() {
  const rule = h('label', {class: 'kv-check', id: 'kv-rule', hidden: true},
    h('input', {type: 'checkbox', onchange: event => {
    LOOK.rule = event.target.checked ? 'max' : 'mean';
    touch(['range']);
  }}), 'Strongest token in cell');
  const a = layerMap('kept-a', 'Which tokens each layer kept', 'kept', {side: 'a'},
    {after: (reply, panel) => { rule.hidden = !panel.chip.textContent || S.sel.grain !== 'token'; }});
  const b = layerMap('kept-b', 'Which tokens each layer kept', 'kept', {side: 'b'},
    {reads: ['b'], needsB: true});
  const ab = layerMap('versus', 'A against B', 'versus', {}, {reads: ['a', 'b'], needsB: true});
  for (const panel of [a, b]) panel.plot.barBelow = true;  // a column of B stands below A's
  document.addEventListener('kv:run', () => { LOOK.range = S.meta.range || null; sayRange(); });
  const heads = h('details', {class: 'kv-more', id: 'kv-one-layer', open: window.innerWidth >= 700},
    h('summary', {}, 'Layer by layer and head by head'),
    h('div', {class: 'kv-split'}, headMap('heads-a', 'a').el, headMap('heads-b', 'b').el),
    h('div', {class: 'kv-split'}, layerBars('layers-a', 'a').el, layerBars('layers-b', 'b').el));
  return [[zoomTools(rule), a.el, b.el], [ab.el, buildHeld(), heads, everyMethod()]];
}
