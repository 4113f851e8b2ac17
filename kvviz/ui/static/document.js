// The document, shaded by who still holds each word. Only blocks near the screen hold their words.
const docBox = h('div', {class: 'kv-doc-text', id: 'kv-doc-text', tabindex: 0, role: 'application',
  'aria-roledescription': 'text', 'aria-label': 'Document: arrows move by word, Enter selects'});
const docRead = h('p', {class: 'kv-readout', 'aria-live': 'polite'}, '\u00a0');
const docLegend = h('div', {class: 'kv-legend'});
const docMap = h('canvas', {class: 'kv-minimap', width: 12, height: 400, title: 'Overview of the text',
  'aria-hidden': 'true'});
const docExtra = h('div', {class: 'kv-doc-extra'});
const BLOCK = 600;  // characters, about; split at a line end where there is one
let codes = null;   // one entry per token: {cls, title}
let blocks = [];
let cursor = null;

const colourBy = chooser('Colour by', [['ab', 'A against B'], ['a', 'A'], ['b', 'B']], 'ab', v => {
  LOOK.colourBy = v;
  docView.dirty = true;
  refresh(docView);
}, {id: 'kv-colour-by'});

const foldBox = h('input', {type: 'checkbox', id: 'kv-fold', onchange: () => { blocks.forEach(b => { b.open = false; }); repaintDoc(); }});
const foldLabel = h('label', {class: 'kv-check'}, foldBox, 'Fold where A and B agree');

// Stretches in which no word tells A and B apart become one line each; what is chosen or marked stays open.
function foldBlocks() {
  const on = foldBox.checked && codes?.reply.by === 'ab', d = S.doc, line = codes?.reply.codes;
  const held = [...(S.meta?.marks || []).map(m => [m.start, m.end]), ...(S.sel.tok ? [S.sel.tok] : [])];
  const agrees = b => {
    const from = d.token(b.first), to = d.token(b.last);
    if (held.some(([s, e]) => s <= to && e > from)) return false;
    for (let i = b.first; i <= b.last; i += 1) if (line.charCodeAt(d.token(i)) - 48 >= 2) return false;
    return true;
  };
  let lead = null;
  for (const b of blocks) {
    const fold = on && !b.open && agrees(b);
    b.el.classList.toggle('kv-folded', fold);
    b.el.classList.toggle('kv-inside', fold && lead !== null);
    if (fold && !lead) lead = Object.assign(b, {folds: []});
    if (fold) { lead.folds.push(b); b.filled = false; } else lead = null;
  }
  for (const b of blocks) {
    if (!b.el.classList.contains('kv-folded') || b.el.classList.contains('kv-inside')) continue;
    const size = b.folds[b.folds.length - 1].to - b.from;
    b.el.replaceChildren(h('button', {class: 'kv-link-button', onclick: () => {
      b.folds.forEach(one => { one.open = true; });
      repaintDoc();
    }}, `▸ ${fmt.count(size)} characters in which A and B agree`));
  }
}

const find = h('input', {type: 'search', class: 'kv-find', placeholder: 'Find in text', 'aria-label': 'Find in text',
  onkeydown: event => { if (event.key === 'Enter') { event.preventDefault(); findText(find.value); } }});

function buildDocument() {
  docMap.addEventListener('click', event => {
    const share = event.offsetY / docMap.clientHeight;
    docBox.scrollTop = share * docBox.scrollHeight - docBox.clientHeight / 2;
  });
  docBox.addEventListener('mouseover', event => { const t = tokenOf(event.target); if (t !== null) hoverToken(t); });
  docBox.addEventListener('mouseup', pickText);
  docBox.addEventListener('keydown', docKeys);
  docBox.addEventListener('scroll', debounce(drawMinimap, 60), {passive: true});
  document.addEventListener('kv:sel', markDoc);
  document.addEventListener('kv:theme', drawMinimap);
  return h('section', {class: 'kv-panel kv-doc', id: 'kv-document', 'aria-label': 'Document'},
    h('div', {class: 'kv-panel-head'}, h('h3', {class: 'kv-panel-title'}, 'Your text, shaded by who still holds it'), colourBy, find, foldLabel),
    h('p', {class: 'kv-guide', id: 'kv-doc-guide'}, 'Solid shading: most heads kept this word’s cache entry. Grey text: every head dropped it.'),
    h('div', {class: 'kv-doc-frame'}, docMap, docBox), docRead, docLegend, docExtra);
}

async function loadText() {
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
  const place = new Map();
  if (d.index) d.index.forEach((t, i) => place.set(t, i));
  d.at = t => d.index ? (place.has(t) ? place.get(t) : -1)
    : t >= d.first && t - d.first < d.starts.length ? t - d.first : -1;
  d.token = i => d.index ? d.index[i] : i + d.first;
  S.doc = d;
  foldBox.checked = S.meta.n > 32768;
  cutBlocks(d);
  syncBar();
  document.dispatchEvent(new CustomEvent('kv:text'));
}

// Blocks end at a token border, so no word is cut in two.
function cutBlocks(d) {
  blocks = [];
  let first = 0, from = 0;
  for (let i = 0; i < d.starts.length; i += 1) {
    const end = d.ends[i], next = i + 1 < d.starts.length ? d.starts[i + 1] : d.text.length;
    if (next < end) continue;  // a character made of several tokens
    const size = end - from, line = d.text[end - 1] === '\n', word = line || /\s/.test(d.text[end] || ' ');
    if ((size >= BLOCK / 2 && line) || (size >= 3 * BLOCK && word) || size > 4 * BLOCK || i === d.starts.length - 1) {
      const to = i === d.starts.length - 1 ? d.text.length : end;
      const flows = from > 0 && d.text[from - 1] !== '\n', on = !line && to < d.text.length;
      blocks.push({first, last: i, from, to, el: h('div', {class: `kv-block${flows || on ? ' kv-flows' : ''}`}), filled: false});
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

// Equal neighbours share one span; a click is resolved to a token by its character offset.
function fillBlock(b) {
  const d = S.doc;
  if (!codes || b.filled === codes || b.el.classList.contains('kv-folded')) return;
  const out = [];
  let at = b.from, run = null;
  const plainTo = to => { if (to > at) { out.push(document.createTextNode(d.text.slice(at, to))); at = to; } };
  const chosen = S.sel.tok;
  for (let i = b.first; i <= b.last; i += 1) {
    if (d.ends[i] <= at) continue;
    const t = d.token(i), cls = codes.cls(t) + (chosen && t >= chosen[0] && t < chosen[1] ? ' kv-chosen' : '')
      + (inMark(t) ? ' kv-marked' : '');
    if (run && run.cls === cls && d.starts[i] === at) {
      run.el.lastChild.appendData(d.text.slice(at, d.ends[i]));
      at = d.ends[i];
      continue;
    }
    plainTo(d.starts[i]);
    const el = h('span', {class: cls}, d.text.slice(at, d.ends[i]));
    el.from = at;
    at = d.ends[i];
    run = {cls, el};
    out.push(el);
  }
  plainTo(b.to);
  b.el.replaceChildren(...out);
  b.filled = codes;
}

const inMark = t => (S.meta?.marks || []).some(m => t >= m.start && t < m.end);

function markDoc(event) {
  if (!event.detail.changed.includes('tok') && !event.detail.changed.includes('marks')) return;
  repaintDoc();
  if (!event.detail.changed.includes('tok')) return;
  if (event.detail.src !== 'document' && S.sel.tok) scrollToToken(S.sel.tok[0]);
}

function repaintDoc() {
  if (S.doc && codes) foldBlocks();
  for (const b of blocks) { b.filled = false; if (b.near) fillBlock(b); }
  drawMinimap();
}

function scrollToToken(t) {
  const i = S.doc ? S.doc.at(t) : -1;
  if (i < 0) return;
  const b = blocks.find(block => i >= block.first && i <= block.last);
  if (!b) return;
  if (b.el.classList.contains('kv-folded')) { b.open = true; repaintDoc(); }
  fillBlock(b);
  const el = [...b.el.querySelectorAll('.kv-chosen')][0] || b.el;
  const top = el.getBoundingClientRect().top - docBox.getBoundingClientRect().top + docBox.scrollTop;
  docBox.scrollTop = Math.max(0, top - docBox.clientHeight / 3);
}

// Character offset in the document of a position inside the DOM.
function charAt(node, offset) {
  const block = (node.nodeType === 3 ? node.parentElement : node)?.closest?.('.kv-block');
  if (!block || block.classList.contains('kv-folded')) return null;
  const range = document.createRange();
  range.setStart(block, 0);
  try { range.setEnd(node, offset); } catch (error) { return null; }
  return block.block.from + range.toString().length;
}

function tokenAtChar(char) {
  const d = S.doc;
  let low = 0, high = d.starts.length - 1;
  while (low < high) { const mid = (low + high) >> 1; if (d.ends[mid] <= char) low = mid + 1; else high = mid; }
  return d.starts.length ? d.token(low) : null;
}

function tokenOf(target) {
  if (!target.classList || target.from === undefined) return null;
  return tokenAtChar(target.from);
}

function pickText(event) {
  const marked = window.getSelection();
  if (!S.doc || !marked.rangeCount) return;
  const range = marked.getRangeAt(0);
  if (!docBox.contains(range.startContainer)) return;
  const from = charAt(range.startContainer, range.startOffset);
  if (from === null) return;
  if (range.collapsed) {
    const t = tokenAtChar(from);
    if (t !== null) choose({tok: wordSpan(t)}, 'document');
    return;
  }
  const to = charAt(range.endContainer, range.endOffset);
  if (to === null || to <= from) return;
  const a = tokenAtChar(from), b = tokenAtChar(to - 1);
  marked.removeAllRanges();
  choose({tok: [a, b + 1]}, 'document');
}

// A click takes one token, or all the tokens of one character when it is made of several.
function wordSpan(t) {
  const d = S.doc, i = d.at(t);
  if (i < 0) return [t, t + 1];
  let a = i, b = i;
  while (a > 0 && d.starts[a - 1] === d.starts[i] ) a -= 1;
  while (b + 1 < d.starts.length && d.starts[b + 1] === d.starts[i]) b += 1;
  const mark = S.meta.marks.find(m => t >= m.start && t < m.end);
  return mark ? [mark.start, mark.end] : [d.token(a), d.token(b) + 1];
}

function hoverToken(t) {
  cursor = t;
  put(docRead, tokenWords(t));
}

const tokenWords = t => codes ? `token ${t} “${shown(textOf([t, t + 1]))}” · ${codes.words(t)}` : '';

function docKeys(event) {
  const d = S.doc;
  if (!d) return;
  const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -12, ArrowDown: 12}[event.key];
  if (step) {
    const now = cursor ?? S.sel.tok?.[0] ?? d.first;
    cursor = d.token(Math.max(0, Math.min(d.starts.length - 1, d.at(now) + step)));
    if (event.shiftKey && S.sel.tok) choose({tok: [Math.min(S.sel.tok[0], cursor), Math.max(S.sel.tok[1], cursor + 1)]}, 'document-keys');
    else choose({tok: [cursor, cursor + 1]}, 'document-keys');
    say(tokenWords(cursor));
    put(docRead, tokenWords(cursor));
  } else if (event.key === 'Escape') choose({tok: null}, 'document');
  else if (event.key === 'Enter') say(selectionWords());
  else return;
  event.preventDefault();
}

function findText(what) {
  const d = S.doc;
  if (!d || !what) return;
  const after = S.sel.tok ? d.ends[d.at(S.sel.tok[1] - 1)] || 0 : 0;
  let at = d.text.indexOf(what, after);
  if (at < 0) at = d.text.indexOf(what);
  if (at < 0) { put(docRead, `“${shown(what, 30)}” does not occur in this text.`); return; }
  choose({tok: [tokenAtChar(at), tokenAtChar(at + what.length - 1) + 1]}, 'find');
}

const CODES = {
  ab: ['kv-neither', 'kv-both', 'kv-only-a', 'kv-only-b', 'kv-mixed'],
  step: ['kv-step-0', 'kv-step-1', 'kv-step-2', 'kv-step-3', 'kv-step-4']};

function docLegendOf(by) {
  const a = label(S.sel.a), b = S.sel.b ? label(S.sel.b) : '';
  return by === 'ab' ? [['kv-both', 'held by both'], ['kv-only-a', `more by A ${a}`], ['kv-only-b', `more by B ${b}`],
    ['kv-neither', 'dropped by most']]
    : [['kv-step-4', 'every head'], ['kv-step-3', 'most'], ['kv-step-1', 'few'], ['kv-step-0', 'dropped by every head']];
}

const docView = addView({id: 'document', reads: ['run', 'a', 'b', 'budget', 'layer', 'head'], async refresh() {
  if (!S.doc) return;
  const reply = await ask('document', {by: S.sel.b ? LOOK.colourBy : 'a'});
  if (reply.error) { put(docRead, reply.error); return; }
  const cls = CODES[reply.by] || CODES.step, line = reply.codes;
  const a = typed(reply.held_a), b = reply.held_b ? typed(reply.held_b) : null, heads = typed(reply.heads);
  codes = {
    cls: t => `kv-t ${cls[line.charCodeAt(t) - 48] || ''}${reply.partial[t] ? ' kv-partial' : ''}`, reply, classes: cls,
    words: t => `A ${fmt.count(a[t])} of ${fmt.count(heads[t])} KV heads` + (b ? ` · B ${fmt.count(b[t])} of ${fmt.count(heads[t])}` : '')
      + (reply.partial[t] ? ` · ${reply.partial[t]}` : '')};
  colourBy.hidden = !S.sel.b;
  foldLabel.hidden = reply.by !== 'ab' || blocks.length < 3;
  put(docLegend, docLegendOf(reply.by).map(([c, text]) => h('span', {class: 'kv-key'}, h('span', {class: `kv-t ${c}`}, 'word'), ' ', text)));
  put(document.getElementById('kv-doc-guide'), reply.by === 'ab'
    ? 'A colour marks words that one method holds in more heads than the other. Grey text: most heads dropped it.' : reply.guide);
  showExtra(reply);
  repaintDoc();
}});
docView.el = docBox;

// Tokens around the document: template, question, and the window that scores are read from.
function showExtra(reply) {
  const d = S.doc;
  const word = t => h('button', {class: `${codes.cls(t)} kv-tok`, tabindex: -1,
    onmouseover: () => hoverToken(t), onclick: () => choose({tok: [t, t + 1]}, 'document')}, shown(textOf([t, t + 1])));
  const inside = docExtra.querySelector('.kv-rules') || h('div', {class: 'kv-rules'});
  if (!inside.isConnected) put(docExtra, h('details', {class: 'kv-more'}, h('summary', {}, 'Question, template and window'), inside));
  put(inside, reply.rules.map(([title, from, to]) => {
    const tokens = Array.from({length: Math.min(to - from, 120)}, (_, i) => from + i);
    return h('div', {class: 'kv-around'}, h('h4', {}, title), h('p', {}, tokens.map(word)));
  }));
}

// One pixel a row: the strongest difference (or the most held word) of the lines it stands for.
function drawMinimap() {
  const box = docBox.clientHeight;
  if (!box || !codes || !S.doc) return;
  docMap.height = box;
  const g = docMap.getContext('2d'), d = S.doc, count = d.starts.length, line = codes.reply.codes;
  const ab = codes.reply.by === 'ab', tone = ab ? ['evicted', 'step-4', 'a', 'b', 'mixed'].map(css)
    : [0, 1, 2, 3, 4].map(i => css(`step-${i}`));
  const rank = ab ? [0, 1, 3, 3, 4] : [0, 1, 2, 3, 4];
  for (let y = 0; y < box; y += 1) {
    let best = 0;
    for (let i = Math.floor(y * count / box), end = Math.max(i + 1, Math.floor((y + 1) * count / box)); i < end && i < count; i += 1) {
      const code = line.charCodeAt(d.token(i)) - 48;
      if (rank[code] > rank[best]) best = code;
    }
    g.fillStyle = tone[best];
    g.fillRect(0, y, 12, 1);
  }
  const bars = [...S.meta.marks.map(m => [m.start, m.end, css('mark')]), ...(S.sel.tok ? [[...S.sel.tok, css('text')]] : [])];
  for (const [from, to, colour] of bars) {
    const i = d.at(from), j = d.at(to - 1);
    if (i < 0) continue;
    g.fillStyle = colour;
    g.fillRect(0, i * box / count - 1, 12, Math.max(3, (j - i + 1) * box / count));
  }
}
