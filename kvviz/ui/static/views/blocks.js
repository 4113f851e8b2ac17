// The document's text as blocks of lines. Only blocks near the screen hold their words; equal neighbours
// share one span, so a place in the text is resolved to a token by its character offset.
import {h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {S} from '../lib/state.js';

export const docBox = h('div', {class: 'kv-doc-text', id: 'kv-doc-text', tabindex: 0, role: 'application',
  'aria-roledescription': 'text', 'aria-label': 'Document: arrows move by word, Enter selects'});
const BLOCK = 600;  // characters, about; split at a line end where there is one
export const blocks = [];
let crossed = new Set();  // tokens that are crossed out

// Blocks end at a token border, so no word is cut in two.
export function cutBlocks(d) {
  blocks.length = 0;
  let first = 0, from = 0;
  const last = d.starts.length - 1;
  for (let i = 0; i <= last; i += 1) {
    const end = d.ends[i], next = i < last ? d.starts[i + 1] : d.text.length;
    if (next < end) continue;  // a character made of several tokens
    const size = end - from, line = d.text[end - 1] === '\n', word = line || /\s/.test(d.text[end] || ' ');
    if ((size >= BLOCK / 2 && line) || (size >= 3 * BLOCK && word) || size > 4 * BLOCK || i === last) {
      const to = i === last ? d.text.length : end;
      const flows = from > 0 && d.text[from - 1] !== '\n', on = !line && to < d.text.length;
      blocks.push({first, last: i, from, to, filled: null,
        el: h('div', {class: `kv-block${flows || on ? ' kv-flows' : ''}`})});
      first = i + 1;
      from = to;
    }
  }
  watcher.disconnect();
  put(docBox, blocks.map(b => b.el));
  for (const b of blocks) {
    b.el.textContent = d.text.slice(b.from, b.to);  // plain at first: height and find are right at once
    b.el.block = b;
    watcher.observe(b.el);
  }
}

const watcher = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    target.block.near = isIntersecting;
    if (isIntersecting) fillBlock(target.block);
  }
}, {root: docBox, rootMargin: '600px 0px'});

const inMark = t => S.meta.marks.some(m => t >= m.start && t < m.end);

// Words of one block: spans of equal shading, and one frame round all that is chosen.
export function fillBlock(b) {
  const d = S.doc, {codes} = S;
  if (!d || !codes || b.filled === codes || b.el.classList.contains('kv-folded')) return;
  const out = [], chosen = S.sel.tok, pages = d.pages;
  let at = b.from, run = null, frame = null;
  const add = node => (frame || out).push(node);
  const end = () => { if (run) add(h('span', {class: run.cls},
    d.text.slice(run.from, run.to))); run = null; };
  const close = () => { if (frame) out.push(h('span', {class: 'kv-chosen'}, frame)); frame = null; };
  for (let i = b.first; i <= b.last; i += 1) {
    if (d.ends[i] <= at) continue;  // a further token of the same character
    const t = d.token(i), inside = Boolean(chosen && overlaps(d, i, chosen));
    if (inside !== Boolean(frame)) { end(); close(); if (inside) frame = []; }
    if (pages.has(t)) { end(); add(h('span', {class: 'kv-page', 'data-page': pages.get(t)})); }
    if (d.starts[i] > at) { end(); add(document.createTextNode(d.text.slice(at, d.starts[i]))); }
    const cls = codes.cls(t) + (inMark(t) ? ' kv-marked' : '') + (crossed.has(t) ? ' kv-crossed' : '');
    if (run && run.cls === cls && run.to === d.starts[i]) run.to = d.ends[i];
    else { end(); run = {cls, from: Math.max(at, d.starts[i]), to: d.ends[i]}; }
    at = d.ends[i];
  }
  end();
  close();
  if (b.to > at) out.push(document.createTextNode(d.text.slice(at, b.to)));
  b.el.replaceChildren(...out);
  b.filled = codes;
}

// Whether any token of this one's character is chosen.
function overlaps(d, i, [from, to]) {
  for (let j = i; j < d.starts.length && d.starts[j] === d.starts[i]; j += 1) {
    if (d.token(j) >= from && d.token(j) < to) return true;
  }
  return false;
}

export function repaint() {
  for (const b of blocks) b.filled = null;
  for (const b of blocks) if (b.near) fillBlock(b);
}

export function setCrossed(tokens) {
  crossed = new Set(tokens);
  repaint();
}

// Stretches in which no word tells A and B apart become one line each; what is chosen or marked stays open.
// Returns how many stretches were folded.
export function foldBlocks(on) {
  const d = S.doc, held = [...S.meta.marks.map(m => [m.start, m.end]), ...(S.sel.tok ? [S.sel.tok] : [])];
  const agrees = b => {
    const from = d.token(b.first), to = d.token(b.last);
    if (held.some(([s, e]) => s <= to && e > from)) return false;
    for (let i = b.first; i <= b.last; i += 1) if (S.codes.differs(d.token(i))) return false;
    return true;
  };
  const leads = [];
  let lead = null;
  for (const b of blocks) {
    const fold = on && !b.open && agrees(b);
    b.el.classList.toggle('kv-folded', fold);
    b.el.classList.toggle('kv-inside', fold && lead !== null);
    if (fold && !lead) leads.push(lead = Object.assign(b, {folds: []}));
    if (fold) { lead.folds.push(b); b.filled = null; } else lead = null;
  }
  for (const b of leads) {
    const size = b.folds[b.folds.length - 1].to - b.from;
    b.el.replaceChildren(h('button', {class: 'kv-link-button', onclick: () => unfold(b)},
      `▸ ${fmt.count(size)} characters in which A and B agree`));
  }
  return leads.length;
}

function unfold(lead) {
  lead.folds.forEach(one => { one.open = true; });
  document.dispatchEvent(new CustomEvent('kv:unfold'));
}

export const forgetUnfolded = () => blocks.forEach(b => { b.open = false; });

// Places in `d` of the tokens that lie in characters from..to (end exclusive), all of them where
// several share one character: [first, last], or null.
function placesOf(d, from, to) {
  if (!d.starts.length) return null;
  const lowest = test => {
    let low = 0, high = d.starts.length;
    while (low < high) { const mid = (low + high) >> 1; if (test(mid)) high = mid; else low = mid + 1; }
    return low;
  };
  let first = Math.min(d.starts.length - 1, lowest(i => d.ends[i] > from));
  const last = Math.max(first, lowest(i => d.starts[i] >= to) - 1);
  while (first > 0 && d.starts[first - 1] === d.starts[first]) first -= 1;
  return [first, last];
}

// The same as a token span, end exclusive.
export function tokensOf(d, from, to) {
  const places = placesOf(d, from, to);
  return places && [d.token(places[0]), d.token(places[1]) + 1];
}

// Character offset in the document of a position inside the page, or null.
export function charAt(node, offset) {
  const el = (node.nodeType === 3 ? node.parentElement : node)?.closest?.('.kv-block');
  if (!el?.block || el.classList.contains('kv-folded')) return null;
  const range = document.createRange();
  range.setStart(el, 0);
  try { range.setEnd(node, offset); } catch (error) { return null; }
  return el.block.from + range.toString().length;
}

function caret(x, y) {
  if (document.caretPositionFromPoint) {
    const at = document.caretPositionFromPoint(x, y);
    return at && [at.offsetNode, at.offset];
  }
  const range = document.caretRangeFromPoint(x, y);
  return range && [range.startContainer, range.startOffset];
}

// The character whose box holds the point: the caret lies before or after it. Null beside the text.
export function charUnder(x, y) {
  const at = caret(x, y);
  if (!at || at[0].nodeType !== 3 || !docBox.contains(at[0])) return null;
  const [node, offset] = at, range = document.createRange();
  const holds = (text, i) => {
    if (!text || i < 0 || i >= text.length) return false;
    const low = /[\udc00-\udfff]/.test(text.data[i]) && i > 0 ? i - 1 : i;  // half of a pair has no box
    range.setStart(text, low);
    range.setEnd(text, Math.min(text.length, low + (text.data.codePointAt(low) > 0xffff ? 2 : 1)));
    return [...range.getClientRects()].some(r => x >= r.left && x < r.right && y >= r.top && y < r.bottom);
  };
  for (const i of [offset - 1, offset]) if (holds(node, i)) return charAt(node, i);
  const walk = document.createTreeWalker(docBox, NodeFilter.SHOW_TEXT);
  walk.currentNode = node;
  const beside = offset === node.length ? walk.nextNode() : walk.previousNode();
  const i = offset === node.length ? 0 : (beside?.length || 0) - 1;
  return holds(beside, i) ? charAt(beside, i) : null;
}
