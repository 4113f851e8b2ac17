// The strip left of the document: each row the strongest difference (or the most held word) of the lines
// that stand at its height, so that it lies beside the text it stands for.
import {h} from '../lib/dom.js';
import {css} from '../lib/plotly.js';
import {S} from '../lib/state.js';
import {blocks, docBox} from './blocks.js';

const WIDTH = 12;
export const docMap = h('canvas',
  {class: 'kv-minimap', width: WIDTH, height: 400, title: 'Overview of the text',
  'aria-hidden': 'true', onclick: event => {
    const share = event.offsetY / docMap.clientHeight;
    docBox.scrollTop = share * docBox.scrollHeight - docBox.clientHeight / 2;
  }});

// The lines of a block: where each ends as a share of the block's characters, and its top and bottom in px
// below the block's own top. Measured again when the width changes.
function linesOf(b) {
  const width = docBox.clientWidth;
  if (b.lines?.width === width) return b.lines;
  const range = document.createRange(), rows = new Map();
  range.selectNodeContents(b.el);
  for (const r of range.getClientRects()) {
    const row = rows.get(Math.round(r.bottom))
      || {top: r.top, bottom: r.bottom, left: r.left, right: r.right};
    rows.set(Math.round(r.bottom),
      {...row, left: Math.min(row.left, r.left), right: Math.max(row.right, r.right)});
  }
  const all = [...rows.values()].sort((p, q) => p.top - q.top), start = all[0]?.top || 0;
  const total = all.reduce((sum, r) => sum + r.right - r.left, 0) || 1;
  let at = 0;
  b.lines = all.map(r => ({end: at += (r.right - r.left) / total, top: r.top - start,
    bottom: r.bottom - start}));
  b.lines.width = width;
  return b.lines;
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
  const spot = (b, i) => {  // top and bottom of the line a token lies in
    const at = (d.starts[i] - b.from) / Math.max(1, b.to - b.from), lines = linesOf(b), top = b.el.offsetTop;
    const line = lines.find(one => at < one.end) || lines[lines.length - 1];
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
