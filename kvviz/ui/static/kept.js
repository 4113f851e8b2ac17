// Which tokens each layer kept: maps of A and B, A against B, one layer's heads, bars per layer.
const keptRange = () => LOOK.range ? {x0: LOOK.range[0], x1: LOOK.range[1]} : {};
const keptArgs = extra => ({...keptRange(), rule: LOOK.rule, columns: window.innerWidth < 700 ? 340 : 1500, ...extra});

// What the cell under the pointer stands for, from counts that came with the figure.
function cellWords(point, panel, row) {
  const meta = panel.plot.spec?.layout.meta?.cells, heat = panel.plot.spec?.data[0];
  if (!meta || !point.pointNumber) return '';
  const [r, col] = point.pointNumber, counts = cellCounts(heat);
  const first = meta.x0 + col * meta.size, last = Math.min(meta.x1, first + meta.size) - 1;
  const k = meta.channels.length, at = (r * counts.columns + col) * k, total = (last - first + 1) * meta.heads;
  const value = Object.fromEntries(meta.channels.map((name, i) => [name, counts.flat[at + i]]));
  const where = `${row} ${r}, ${first === last ? `token ${first}` : `tokens ${first}–${last}`} “${shown(textOf([first, last + 1]), 24)}”`;
  if ('both' in value) {
    return `${where}: A kept ${fmt.count(value['only A'] + value.both)} of ${fmt.count(total)} entries, `
      + `B ${fmt.count(value['only B'] + value.both)} of ${fmt.count(total)}; ${fmt.count(value.both)} by both`;
  }
  return `${where}: kept ${fmt.count(value.kept)} of ${fmt.count(total)} ${total === 1 ? 'entry' : 'entries'}`
    + (value.protected ? `; ${fmt.count(value.protected)} kept by rule` : '');
}

function cellCounts(heat) {
  if (!heat.counts) {
    const shape = String(heat.customdata.shape).split(',').map(Number);
    heat.counts = {flat: typed({...heat.customdata, shape: ''}), columns: shape[1]};
  }
  return heat.counts;
}

function cellSpan(point, panel) {
  const meta = panel.plot.spec.layout.meta.cells, first = meta.x0 + point.pointNumber[1] * meta.size;
  return [first, Math.min(meta.x1, first + meta.size)];
}

function tokenRect(rows, row) {
  const t = S.sel.tok;
  if (!t && row === null) return [];
  const [x0, x1] = t ? [t[0] - 0.5, t[1] - 0.5] : [-0.5, S.meta.n - 0.5];
  return [{x0, x1, y0: row === null ? -0.5 : row - 0.5, y1: row === null ? rows - 0.5 : row + 0.5}];
}

function mapPanel(id, title, view, extra, more = {}) {
  return new Panel({id, title, view, tab: 'kept', height: 400, reads: ['run', 'budget', 'range', ...(more.reads || ['a'])],
    args: () => keptArgs(extra), needsB: more.needsB, tools: more.tools || [],
    onHover: (p, panel) => cellWords(p, panel, 'layer'),
    onPick: (p, panel) => {
      if (!p.pointNumber || p.pointNumber.length !== 2) return;
      choose({tok: cellSpan(p, panel), layer: p.pointNumber[0]}, id);
    },
    onBox: x => choose({tok: boxSpan(x)}, id),
    onReset: () => { choose({tok: null}, id); setRange(null); },
    mark: () => tokenRect(S.meta.model.layers, S.sel.layer ?? null)});
}

const boxSpan = x => {
  const [a, b] = [Math.min(...x), Math.max(...x)].map(v => Math.max(0, Math.min(S.meta.n - 1, Math.round(v))));
  return [a, Math.max(a + 1, b + 1)];
};

function setRange(range) {
  const n = S.meta.n;
  if (range) {
    const width = Math.max(20, Math.min(n, Math.round(range[1] - range[0])));
    const start = Math.max(0, Math.min(n - width, Math.round(range[0])));
    range = width >= n ? null : [start, start + width];
  }
  if (JSON.stringify(range) === JSON.stringify(LOOK.range || null)) return;
  LOOK.range = range;
  put(rangeWords, range ? `tokens ${fmt.count(range[0])}–${fmt.count(range[1] - 1)} of ${fmt.count(n)}` : `all ${fmt.count(n)} tokens`);
  touch(['range']);
}

const rangeWords = h('span', {class: 'kv-muted', id: 'kv-range'});

function zoomBy(factor) {
  const [x0, x1] = LOOK.range || [0, S.meta.n], middle = LOOK.range || !S.sel.tok ? (x0 + x1) / 2 : (S.sel.tok[0] + S.sel.tok[1]) / 2;
  const half = (x1 - x0) * factor / 2;
  setRange([middle - half, middle + half]);
}

function shift(part) {
  const [x0, x1] = LOOK.range || [0, S.meta.n], step = (x1 - x0) * part;
  setRange([x0 + step, x1 + step]);
}

const toTokens = () => {
  if (!S.sel.tok) return;
  const [a, b] = S.sel.tok, pad = Math.max(40, b - a);
  setRange([a - pad, b + pad]);
};

function zoomTools() {
  const button = (text, title, fn) => h('button', {class: 'kv-button kv-small', title, 'aria-label': title, onclick: fn}, text);
  const rule = h('label', {class: 'kv-check', id: 'kv-rule', hidden: true}, h('input', {type: 'checkbox', onchange: event => {
    LOOK.rule = event.target.checked ? 'max' : 'mean';
    touch(['range']);
  }}), 'Strongest token in cell');
  return h('div', {class: 'kv-tools', id: 'kv-zoom'}, button('−', 'Zoom out', () => zoomBy(2)), button('+', 'Zoom in', () => zoomBy(0.5)),
    button('‹', 'Earlier tokens', () => shift(-0.5)), button('›', 'Later tokens', () => shift(0.5)),
    button('To selection', 'Zoom to the chosen tokens', toTokens), button('All', 'Show all tokens', () => setRange(null)),
    rangeWords, rule);
}

function buildKept() {
  const a = mapPanel('kept-a', 'Which tokens each layer kept', 'kept', {side: 'a'});
  const b = mapPanel('kept-b', 'Which tokens each layer kept', 'kept', {side: 'b'}, {reads: ['b'], needsB: true});
  const ab = mapPanel('versus', 'A against B', 'versus', {}, {reads: ['a', 'b'], needsB: true});
  a.after = reply => { document.getElementById('kv-rule').hidden = !a.chip.textContent; };
  const heads = (id, side) => new Panel({id, title: 'Heads of one layer', view: 'heads', tab: 'kept', height: 210,
    reads: ['run', 'budget', 'layer', 'tok', 'range', 'a', 'b'], args: () => keptArgs({side}), needsB: side === 'b',
    onHover: (p, panel) => cellWords(p, panel, `layer ${panel.plot.spec.layout.meta.layer}, KV head`),
    onPick: (p, panel) => p.pointNumber && choose({tok: cellSpan(p, panel), layer: panel.plot.spec.layout.meta.layer,
      head: p.pointNumber[0]}, id),
    onBox: x => choose({tok: boxSpan(x)}, id),
    onReset: () => { choose({tok: null}, id); setRange(null); },
    mark: () => tokenRect(S.meta.model.kv_heads, S.sel.head ?? null)});
  const bars = (id, side) => new Panel({id, title: 'Tokens kept per layer', view: 'per_layer', tab: 'kept', height: 400,
    reads: ['run', 'budget', side], args: () => ({side}), needsB: side === 'b',
    onHover: p => `layer ${p.y}: ${fmt.count(p.x)} tokens per KV head on average`,
    onPick: p => choose({layer: Number(p.y)}, id),
    mark: () => S.sel.layer === null || S.sel.layer === undefined ? []
      : [{x0: 0, x1: 1, xref: 'paper', y0: S.sel.layer - 0.5, y1: S.sel.layer + 0.5}]});
  for (const panel of [a, b, ab]) panel.plot.onStep = zoomBy;
  for (const panel of [a, b]) panel.plot.barBelow = true;  // so that a column stands below the same column
  const all = h('details', {class: 'kv-more', id: 'kv-all-methods'}, h('summary', {}, 'Every method, one band each'));
  const every = new Panel({id: 'every', title: 'Every method', view: 'all_methods', tab: 'kept', height: 500,
    reads: ['run', 'budget', 'range'], args: () => keptArgs({}), onBox: x => choose({tok: boxSpan(x)}, 'every'),
    mark: reply => reply.rows_in_map ? tokenRect(reply.rows_in_map, null) : []});
  const load = every.load.bind(every);
  every.view.refresh = async seq => { if (all.open) await load(seq); else every.view.dirty = true; };
  all.addEventListener('toggle', () => { every.view.dirty = true; refresh(every.view); });
  all.append(every.el);
  document.addEventListener('kv:run', () => { LOOK.range = S.meta.range || null; put(rangeWords, LOOK.range
    ? `tokens ${fmt.count(LOOK.range[0])}–${fmt.count(LOOK.range[1] - 1)} of ${fmt.count(S.meta.n)}` : `all ${fmt.count(S.meta.n)} tokens`); });
  const layers = h('details', {class: 'kv-more', id: 'kv-one-layer', open: window.innerWidth >= 700},
    h('summary', {}, 'Layer by layer and head by head'), heads('heads-a', 'a').el, heads('heads-b', 'b').el,
    h('div', {class: 'kv-split'}, bars('layers-a', 'a').el, bars('layers-b', 'b').el));
  return [zoomTools(), a.el, b.el, ab.el, layers, all];
}
