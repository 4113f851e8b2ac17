// The strip left of the document: each row the strongest difference (or the most held word) of the lines
// that stand at its height, so that it lies beside the text it stands for.
import {h} from '../lib/dom.js';
import {css} from '../lib/plotly.js';
import {S} from '../lib/state.js';
import {blocks, docBox} from './blocks.js';

const WIDTH = 12, LINE = 26;  // px: of the strip, of a line of text about
export const docMap = h('canvas',
  {class: 'kv-minimap', width: WIDTH, height: 400, title: 'Overview of the text',
  'aria-hidden': 'true', onclick: event => {
    const share = event.offsetY / docMap.clientHeight;
    docBox.scrollTop = share * docBox.scrollHeight - docBox.clientHeight / 2;
  }});

// The lines of a block: the offset in it of the character each begins with, and its top and bottom in px
// below the block's own top. Measured again when the width changes.
function linesOf(b, exact) {
  const width = docBox.clientWidth;
  if (b.lines?.width === width && (b.lines.exact || !exact)) return b.lines;
  const range = document.createRange(), rows = new Map();
  range.selectNodeContents(b.el);
  for (const r of range.getClientRects()) {
    const row = rows.get(Math.round(r.bottom))
      || {top: r.top, bottom: r.bottom, left: r.left, right: r.right};
    rows.set(Math.round(r.bottom),
      {...row, left: Math.min(row.left, r.left), right: Math.max(row.right, r.right)});
  }
  const all = [...rows.values()].sort((p, q) => p.top - q.top), start = all[0]?.top || 0;
  const from = exact ? lineStarts(b, all) : lineShares(b, all);
  b.lines = all.map((r, i) => ({from: from[i], top: r.top - start, bottom: r.bottom - start}));
  Object.assign(b.lines, {width, exact});
  return b.lines;
}

// About where lines begin, by their widths: good enough where several lines share one row of the strip.
function lineShares(b, rows) {
  const total = rows.reduce((sum, r) => sum + r.right - r.left, 0) || 1;
  let at = 0;
  return rows.map(r => {
    const from = at;
    at += (b.to - b.from) * (r.right - r.left) / total;
    return from;
  });
}

// Where lines begin, found by halving: the places of characters go down the block in their order.
function lineStarts(b, rows) {
  const nodes = [], walk = document.createTreeWalker(b.el, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walk.nextNode(), at = 0; node; at += node.length, node = walk.nextNode()) {
    nodes.push({node, at, end: at + node.length});
  }
  const middle = k => {  // of the character, or of the next one that has a place
    for (let i = k; i < Math.min(k + 4, b.to - b.from); i += 1) {
      const part = nodes.find(one => i < one.end);
      if (!part) return Infinity;
      range.setStart(part.node, i - part.at);
      range.setEnd(part.node, i - part.at + 1);
      const box = [...range.getClientRects()].pop();
      if (box) return (box.top + box.bottom) / 2;
    }
    return Infinity;
  };
  return rows.map((row, i) => {
    let [low, high] = [0, b.to - b.from];
    while (i && low < high) {
      const half = (low + high) >> 1;
      if (middle(half) > row.top) high = half; else low = half + 1;
    }
    return low;
  });
}

export function drawMinimap() {
  const box = docBox.clientHeight, {codes, doc: d} = S;
  if (!box || !codes || !d) return;
  docMap.height = box;
  const g = docMap.getContext('2d'), scale = box / docBox.scrollHeight;
  const tones = codes.tones.map(css), best = new Int8Array(box);
  const paint = (top, bottom, fn) => {
    for (let y = Math.floor(top * scale); y < Math.min(box,
      Math.max(bottom * scale, top * scale + 1)); y += 1) fn(y);
  };
  const spot = (b, i) => {  // top and bottom of the line a token ends in; it may begin with the space before
    const at = d.ends[i] - 1 - b.from, lines = linesOf(b, LINE * scale >= 1), top = b.el.offsetTop;
    const line = lines.findLast(one => one.from <= at);
    return line ? [top + line.top, top + line.bottom] : [top, top + b.el.offsetHeight];
  };
  for (const b of blocks) {
    for (let i = b.first; i <= b.last; i += 1) {
      const code = codes.code(d.token(i));
      if (code) paint(...spot(b, i), y => { if (codes.rank[code] > codes.rank[best[y]]) best[y] = code; });
    }
  }
  for (let y = 0; y < box; y += 1) {
    g.fillStyle = tones[best[y]];
    g.fillRect(0, y, WIDTH, 1);
  }
  const bars = [...S.meta.marks.map(m => [m.start, m.end, css('mark')]),
    ...(S.sel.tok ? [[...S.sel.tok, css('text')]] : [])];
  for (const [from, to, tone] of bars) {
    const i = d.at(from), j = d.at(to - 1), b = i < 0 ? null
      : blocks.find(one => one.first <= i && i <= one.last);
    if (!b) continue;
    const top = spot(b, i)[0] * scale, bottom = j < 0 || j > b.last ? top : spot(b, j)[1] * scale;
    g.fillStyle = tone;
    g.fillRect(0, top - 1, WIDTH, Math.max(3, bottom - top));
  }
}
