// The selection: one object, one bus. Views write with `choose` and are told what changed.
const S = {run: null, meta: null, doc: null, sel: {}, seq: 0, tab: 'kept'};
const views = [];  // {id, reads, el, tab, refresh}
const LOOK = {colourBy: 'ab', rule: 'mean', sinks: true, x: 'attention', y: 'effect',
  measure: 'kl', tokenStep: 0};  // view settings: local, separate from the selection

function choose(patch, src = '') {
  const before = S.sel, next = {...before, ...patch};
  if ('a' in patch && patch.a === before.b && !('b' in patch)) next.b = before.a;  // swap
  if ('b' in patch && patch.b === before.a && !('a' in patch)) next.a = before.b || before.a;
  if (next.b === next.a) next.b = null;
  const changed = Object.keys(next).filter(k => JSON.stringify(next[k]) !== JSON.stringify(before[k]));
  if (!changed.length) return;
  S.sel = next;
  if (changed.includes('marks')) S.meta.marks = allMarks();
  S.seq += 1;
  app.dataset.sel = JSON.stringify({...next, run: S.run, seq: S.seq, src});
  document.dispatchEvent(new CustomEvent('kv:sel', {detail: {sel: next, changed, src}}));
  touch(changed);
  writeLink();
}

// The run's own marks and those put by hand, named as the server names them.
function allMarks() {
  const own = S.meta?.own_marks || [], groups = new Set(own.map(m => m.name.replace(/[a-z]+$/, '')));
  return [...own, ...(S.sel.marks || []).map(([start, end], i) =>
    ({name: `M${groups.size + 1 + i}`, start, end, byHand: true}))];
}

function toggleMark(tok) {
  const have = S.sel.marks || [], same = m => m[0] === tok[0] && m[1] === tok[1];
  if (have.some(same)) choose({marks: have.filter(m => !same(m))}, 'mark');
  else if (have.length < 12 && !S.meta.own_marks.some(m => m.start === tok[0] && m.end === tok[1])) {
    choose({marks: [...have, [...tok]]}, 'mark');
  }
}

// A view states what it reads; it is asked for again when one of these changed and it can be seen.
function addView(view) {
  Object.assign(view, {dirty: true, busy: false, again: false});
  views.push(view);
  return view;
}

function touch(changed) {
  const all = changed.includes('marks');  // they are drawn everywhere
  for (const view of views) {
    if (all || view.reads.some(key => changed.includes(key))) { view.dirty = true; refresh(view); }
  }
}

const seen = view => !view.tab || view.tab === S.tab;

// One request in flight for each view; the newest selection wins.
async function refresh(view) {
  if (!S.run || !seen(view) || !view.dirty) return;
  if (view.busy) { view.again = true; return; }
  view.busy = true;
  view.dirty = false;
  const slow = setTimeout(() => view.el && view.el.classList.add('kv-slow'), 500);
  const stuck = setTimeout(() => tooSlow(view), 10000);
  try { await view.refresh(S.seq); } catch (error) { console.error(view.id, error); }
  clearTimeout(slow);
  clearTimeout(stuck);
  view.el && view.el.classList.remove('kv-slow', 'kv-stuck');
  view.busy = false;
  if (view.again) { view.again = false; view.dirty = true; refresh(view); }
}

function tooSlow(view) {
  if (!view.el) return;
  view.el.classList.add('kv-stuck');
  view.busy = false;
  view.dirty = true;
}

function refreshAll() {
  connectionLost(false);
  for (const view of views) { view.dirty = true; refresh(view); }
}

const label = id => (S.meta?.methods.find(m => m.id === id) || {label: id}).label;
const stepIndex = share => {
  const steps = S.meta.steps;
  let best = 0;
  steps.forEach((s, i) => { if (Math.abs(s - share) < Math.abs(steps[best] - share)) best = i; });
  return best;
};
const isDecoded = (method, share) =>
  (S.meta.decoded[method] || []).some(s => Math.abs(s - share) < 1e-6);

// The link holds ids and numbers only, never text.
function writeLink() {
  const s = S.sel, q = new URLSearchParams(location.search);
  const set = (key, value) => value === null || value === undefined ? q.delete(key) : q.set(key, value);
  set('r', S.run);
  set('t', s.tok ? `${s.tok[0]}-${s.tok[1]}` : null);
  set('l', s.layer);
  set('h', s.head);
  set('a', s.a);
  set('b', s.b);
  set('m', s.marks?.length ? s.marks.map(m => m.join('-')).join(',') : null);
  set('k', s.budget === undefined ? null : +s.budget.toFixed(6));
  set('v', S.tab);
  history.replaceState(history.state, '', `${location.pathname}?${q}`);
  if (window.parent !== window) {
    window.parent.postMessage({queryString: q.toString(), hash: ''}, 'https://huggingface.co');
  }
}

function readLink() {
  const q = new URLSearchParams(location.search);
  const number = key => /^\d+$/.test(q.get(key) || '') ? Number(q.get(key)) : null;
  const span = /^(\d+)-(\d+)$/.exec(q.get('t') || '');
  return {run: q.get('r'), tab: q.get('v'), sel: {
    tok: span ? [Number(span[1]), Number(span[2])] : undefined, layer: number('l'), head: number('h'),
    marks: (q.get('m') || '').split(',').map(part => /^(\d+)-(\d+)$/.exec(part)).filter(Boolean)
      .map(part => [Number(part[1]), Number(part[2])]),
    a: q.get('a'), b: q.get('b'), budget: Number(q.get('k')) || null}};
}
