// The selection: one object, one bus. Views write with `choose` and are told what changed.
// `codes` says how the document is shaded, `doc` where its tokens lie; both belong to the run shown.
export const S = {run: null, meta: null, doc: null, codes: null, sel: {}, seq: 0, tab: 'kept', page: 'run'};
export const LOOK = {colourBy: 'ab', rule: 'mean', sinks: true, x: '', y: 'effect',
  measure: 'kl', range: null, direction: 'put_back', unit: 'head'};  // no part of the selection
export const MOST_MARKS = 12;
export const GRAINS = ['token', 'word', 'sentence', 'paragraph', 'section'];  // what the text is seen by
const views = [];  // {id, reads, el, tab, refresh}, and `apart` for one that belongs to no run

const app = () => document.getElementById('kv-app');
const same = (p, q) => p[0] === q[0] && p[1] === q[1];

export function choose(patch, src = '') {
  const before = S.sel, next = {...before, ...patch};
  if ('a' in patch && patch.a === before.b && !('b' in patch)) next.b = before.a;  // swap
  if ('b' in patch && patch.b === before.a && !('a' in patch)) next.a = before.b || before.a;
  if (next.b === next.a) next.b = null;
  const changed = Object.keys(next).filter(k => JSON.stringify(next[k]) !== JSON.stringify(before[k]));
  if (changed.length) setSelection(next, src, changed);
}

// The selection as a whole; `changed` names the fields that are new to the views.
export function setSelection(next, src, changed) {
  S.sel = next;
  S.meta.marks = allMarks();
  S.seq += 1;
  app().dataset.sel = JSON.stringify({...next, run: S.run, seq: S.seq, src});
  if (src === 'open') return;
  document.dispatchEvent(new CustomEvent('kv:sel', {detail: {changed, src}}));
  touch(changed);
}

// The run's own marks and those put by hand, named as the server names them.
function allMarks() {
  const own = S.meta.own_marks, groups = new Set(own.map(m => m.name.replace(/[a-z]+$/, '')));
  return [...own, ...(S.sel.marks || []).map(([start, end], i) =>
    ({name: `M${groups.size + 1 + i}`, start, end, byHand: true}))];
}

export function toggleMark(tok) {
  const have = S.sel.marks || [];
  if (have.some(m => same(m, tok))) choose({marks: have.filter(m => !same(m, tok))}, 'mark');
  else if (have.length < MOST_MARKS && !S.meta.own_marks.some(m => same([m.start, m.end], tok))) {
    choose({marks: [...have, [...tok]]}, 'mark');
  }
}

// A view states what it reads; it is asked for again when one of these changed and it can be seen.
export function addView(view) {
  Object.assign(view, {dirty: true, busy: false, again: false});
  views.push(view);
  return view;
}

export function touch(changed) {
  const all = changed.includes('marks');  // they are drawn everywhere
  for (const view of views) {
    if (all || view.reads.some(key => changed.includes(key))) redo(view);
  }
}

// A view apart says itself when it can be seen; the others can while a run is shown, each in its tab.
// One that is drawn when it comes near waits while it is `far`.
const seen = view => view.far ? false : view.apart ? view.apart()
  : Boolean(S.run && S.meta) && S.page === 'run' && (!view.tab || view.tab === S.tab);

// Whether a view that can be seen is still being asked for.
export const working = () => views.some(view => seen(view) && (view.busy || view.again));

export const redo = view => { view.dirty = true; return refresh(view); };

// One request in flight for each view; the newest selection wins.
export async function refresh(view) {
  if (!seen(view) || !view.dirty) return;
  if (view.busy) { view.again = true; return; }
  view.busy = true;
  view.dirty = false;
  const slow = setTimeout(() => view.el?.classList.add('kv-slow'), 500);
  const stuck = setTimeout(() => tooSlow(view), 10000);
  try { await view.refresh(S.seq); } catch (error) { console.error(view.id, error); }
  clearTimeout(slow);
  clearTimeout(stuck);
  view.el?.classList.remove('kv-slow', 'kv-stuck');
  view.busy = false;
  if (view.again) { view.again = false; await redo(view); }
}

function tooSlow(view) {
  view.el?.classList.add('kv-stuck');
  view.busy = false;
  view.dirty = true;
}

export const refreshSeen = () => views.forEach(view => refresh(view));

// What every view shows is of before; those that can be seen are asked for with `refreshSeen`.
export const forgetAll = () => views.forEach(view => { view.dirty = true; });

export function refreshAll() {
  for (const view of views) redo(view);
}

export const label = id => (S.meta?.methods.find(m => m.id === id) || {label: id}).label;

export const stepIndex = share => {
  const steps = S.meta.steps;
  let best = 0;
  steps.forEach((s, i) => { if (Math.abs(s - share) < Math.abs(steps[best] - share)) best = i; });
  return best;
};

export const isDecoded = (method, share) =>
  (S.meta.decoded[method] || []).some(s => Math.abs(s - share) < 1e-6);

export const isOne = value => value !== null && value !== undefined;  // one layer or head, not all of them

// Page and heading that a token stands under, '' where the text has none.
export function sectionOf(t) {
  const parts = S.doc?.sections || [], next = parts.findIndex(([first]) => first > t);
  return (next < 0 ? parts.at(-1) : parts[next - 1])?.[1] || '';
}

// The text of a token range, from the document where it lies in it.
export function textOf(tok) {
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
