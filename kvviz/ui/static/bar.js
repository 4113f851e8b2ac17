// The selection bar: which two methods, at which budget, which layer, head and tokens.
const bar = {};

function buildBar() {
  bar.a = chooser('A', [], '', value => choose({a: value}, 'bar'), {id: 'kv-a', title: 'Method A'});
  bar.b = chooser('B', [], '', value => choose({b: value || null}, 'bar'), {id: 'kv-b', title: 'Method B'});
  bar.a.classList.add('kv-is-a');
  bar.b.classList.add('kv-is-b');
  bar.swap = h('button', {class: 'kv-button kv-small', id: 'kv-swap', title: 'Swap A and B',
    onclick: () => S.sel.b && choose({a: S.sel.b, b: S.sel.a}, 'bar')}, 'swap');
  bar.slider = h('input', {type: 'range', id: 'kv-budget', min: 0, max: 1, step: 1, value: 0,
    'aria-label': 'Budget: share of the cache kept'});
  bar.slider.addEventListener('input', () => {
    say('');
    showBudget(Number(bar.slider.value));
    choose({budget: S.meta.steps[Number(bar.slider.value)]}, 'slider');
  });
  bar.ticks = h('div', {class: 'kv-ticks', 'aria-hidden': 'true'});
  bar.triple = h('output', {class: 'kv-triple', id: 'kv-triple', for: 'kv-budget'}, '\u00a0');
  bar.layer = chooser('Layer', [], '', v => choose({layer: v === '' ? null : Number(v)}, 'bar'), {id: 'kv-layer'});
  bar.head = chooser('KV head', [], '', v => choose({head: v === '' ? null : Number(v)}, 'bar'), {id: 'kv-head-choice'});
  bar.tokens = h('span', {class: 'kv-tokens', id: 'kv-tokens'});
  bar.clear = h('button', {class: 'kv-button kv-small', id: 'kv-clear',
    onclick: () => choose({tok: null, layer: null, head: null, marks: []}, 'bar')}, 'Clear');
  document.addEventListener('kv:sel', syncBar);
  return h('section', {class: 'kv-bar', 'aria-label': 'Selection'},
    h('div', {class: 'kv-bar-row'}, bar.a, bar.b, bar.swap,
      h('div', {class: 'kv-budget'}, h('span', {class: 'kv-label'}, 'Budget'),
        h('div', {class: 'kv-slide'}, bar.slider, bar.ticks), bar.triple)),
    h('div', {class: 'kv-bar-row'}, bar.layer, bar.head, bar.tokens,
      bar.marks = h('span', {class: 'kv-tokens', id: 'kv-marks'}), bar.clear));
}

// Numbers at once, from what the run says about each stop; the server's wording follows.
function showBudget(index) {
  const {steps, entries, bytes_n: bytes, bytes_full: full, n} = S.meta, a = S.sel.a;
  const kept = entries[a][index], text = `${fmt.share(steps[index])} kept · ${fmt.count(kept)} tokens per KV head`
    + ` · ${fmt.mb(full - bytes + bytes * kept / n)} of ${fmt.mb(full)} MB`;
  const exact = bar.exact?.key === `${a}@${steps[index]}` ? bar.exact.text : text;
  put(bar.triple, exact);
  bar.slider.setAttribute('aria-valuetext',
    text + (isDecoded(a, steps[index]) ? ', answers decoded' : ', answers not decoded'));
}

function fillBar() {
  const m = S.meta, all = m.methods.map(x => [x.id, x.label]);
  bar.a.select.fill(all, S.sel.a);
  bar.b.select.fill([...all, ['', 'none']], S.sel.b || '');
  bar.layer.select.fill([['', 'all'], ...Array.from({length: m.model.layers}, (_, i) => [i, i])], '');
  bar.head.select.fill([['', 'all'], ...Array.from({length: m.model.kv_heads}, (_, i) => [i, i])], '');
  bar.slider.max = m.steps.length - 1;
  const last = m.steps.length - 1;
  const decoded = i => m.methods.some(x => isDecoded(x.id, m.steps[i]));
  let free = -1;  // labels keep a distance; both ends always have theirs
  put(bar.ticks, m.steps.map((s, i) => {
    const at = last ? 100 * i / last : 0, end = i === 0 || i === last;
    const named = end || (decoded(i) && at >= free && at <= 89);
    if (named) free = at + 11;
    return h('i', {style: `left:${at}%`, class: decoded(i) ? 'kv-tick kv-decoded' : 'kv-tick'}, named ? h('b', {}, fmt.share(s)) : null);
  }));
  syncBar();
}

function syncBar() {
  if (!S.meta) return;
  const s = S.sel;
  bar.a.select.value = s.a;
  bar.b.select.value = s.b || '';
  bar.layer.select.value = s.layer ?? '';
  bar.head.select.value = s.head ?? '';
  bar.swap.disabled = !s.b;
  const index = stepIndex(s.budget);
  bar.slider.value = index;
  showBudget(index);
  put(bar.tokens, h('span', {class: 'kv-label'}, s.tok && s.tok[1] - s.tok[0] > 1 ? 'Tokens' : 'Token'),
    s.tok ? [h('b', {}, spanName(s.tok)), ' ', h('q', {}, shown(textOf(s.tok), 32)),
      h('button', {class: 'kv-x', 'aria-label': 'Clear tokens', onclick: () => choose({tok: null}, 'bar')}, '×'),
      inMark(s.tok[0]) ? null : h('button', {class: 'kv-button kv-small', id: 'kv-mark', title: 'Follow these tokens in every view',
        onclick: () => toggleMark(s.tok)}, 'Mark')]
      : h('span', {class: 'kv-muted'}, 'all'));
  put(bar.marks, (s.marks || []).length ? h('span', {class: 'kv-label'}, 'Marks') : null,
    S.meta.marks.filter(m => m.byHand).map(m => h('span', {class: 'kv-chip kv-mark-chip'},
      h('button', {class: 'kv-word', onclick: () => choose({tok: [m.start, m.end]}, 'mark')}, m.name),
      h('button', {class: 'kv-x', 'aria-label': `Remove ${m.name}`, onclick: () => toggleMark([m.start, m.end])}, '×'))));
  for (const line of document.querySelectorAll('.kv-echo')) put(line, selectionWords());
}

const spanName = tok => tok[1] - tok[0] > 1 ? `${tok[0]}–${tok[1] - 1}` : `${tok[0]}`;

// The text of a token range, from the document where it lies in it.
function textOf(tok) {
  const d = S.doc;
  if (!d) return '';
  let out = '';
  for (let t = tok[0], last = -1; t < tok[1] && out.length < 200; t += 1) {
    const i = d.at(t);
    if (i < 0) out += d.outside[t] || '';
    else if (d.starts[i] >= last) { out += d.text.slice(d.starts[i], d.ends[i]); last = d.ends[i]; }
  }
  return out;
}

function selectionWords() {
  const s = S.sel, parts = [`A ${label(s.a)}`, s.b ? `B ${label(s.b)}` : 'no B', fmt.share(s.budget) + ' kept'];
  parts.push(s.layer === null || s.layer === undefined ? 'all layers' : `layer ${s.layer}`);
  parts.push(s.head === null || s.head === undefined ? 'all KV heads' : `KV head ${s.head}`);
  if (s.tok) parts.push(`${s.tok[1] - s.tok[0] > 1 ? 'tokens' : 'token'} ${spanName(s.tok)} “${shown(textOf(s.tok), 24)}”`);
  return parts.join(' · ');
}
