// The link holds ids and numbers only, never text; a story stands behind its "#" (lib/story.js).
import {page} from './page.js';
import {GRAINS, MOST_MARKS, S} from './state.js';

export function writeLink() {
  if (page.offline) return;
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
  set('g', s.grain === 'token' ? null : s.grain);
  set('v', S.tab);
  put(q);
}

// Which page is shown, and of which sweep.
export function writePage(sweep) {
  const q = new URLSearchParams(location.search);
  for (const [key, value] of [['p', S.page === 'run' ? null : S.page], ['s', sweep]]) {
    if (value) q.set(key, value); else q.delete(key);
  }
  put(q);
}

function put(q) {
  history.replaceState(history.state, '', `${location.pathname}?${q}${location.hash}`);
  if (window.parent !== window) {
    window.parent.postMessage({queryString: q.toString(), hash: ''}, 'https://huggingface.co');
  }
}

document.addEventListener('kv:sel', writeLink);

const span = text => {
  const found = /^(\d{1,9})-(\d{1,9})$/.exec(text);
  return found ? [Number(found[1]), Number(found[2])] : null;
};

export function readLink() {
  const q = new URLSearchParams(location.search);
  const number = key => /^\d{1,9}$/.test(q.get(key) || '') ? Number(q.get(key)) : undefined;
  const budget = Number(q.get('k'));
  const marks = (q.get('m') || '').split(',').map(span).filter(Boolean);
  return {page: q.get('p'), sweep: q.get('s'), run: q.get('r'), tab: q.get('v'), sel: {
    tok: span(q.get('t') || '') || undefined, layer: number('l'), head: number('h'),
    marks: [...new Map(marks.map(m => [m.join('-'), m])).values()],
    a: q.get('a') || undefined, grain: q.get('g') || undefined, b: q.get('b') || undefined,
    budget: budget > 0 && Number.isFinite(budget) ? budget : undefined}};
}

// The wanted selection made to fit the run, and a sentence for each field that did not.
export function fitted(wanted, m) {
  const sel = {...m.opening, marks: []}, told = [];
  for (const [key, value] of Object.entries(wanted)) if (value !== null
    && value !== undefined) sel[key] = value;
  const known = id => m.methods.some(x => x.id === id);
  const name = id => m.methods.find(x => x.id === id).label;
  if (!known(sel.a)) {
    const a = known(m.opening.a) && m.opening.a !== sel.b ? m.opening.a
      : m.methods.map(x => x.id).find(id => id !== sel.b);
    told.push(`This run has no method “${String(sel.a).slice(0, 40)}”; A is ${name(a)}.`);
    sel.a = a;
  }
  if (sel.b && (!known(sel.b) || sel.b === sel.a)) {
    const b = [m.opening.b, m.opening.a, ...m.methods.map(x => x.id)].find(id => known(id) && id !== sel.a)
      || null;
    const instead = b ? `B is ${name(b)}` : 'there is no B';
    told.push(known(sel.b) ? `A and B are the same method; ${instead}.`
      : `This run has no method “${String(sel.b).slice(0, 40)}”; ${instead}.`);
    sel.b = b;
  }
  const inside = (key, count, what) => {
    if (sel[key] === null || sel[key] === undefined) return null;
    if (Number.isInteger(sel[key]) && sel[key] >= 0 && sel[key] < count) return sel[key];
    told.push(`This model has no ${what} ${sel[key]} (0 to ${count - 1}); all are shown.`);
    return null;
  };
  sel.layer = inside('layer', m.model.layers, 'layer');
  sel.head = inside('head', m.model.kv_heads, 'KV head');
  if (!GRAINS.includes(sel.grain)) sel.grain = 'token';
  const nearest = m.steps.reduce((best, s) => Math.abs(s - sel.budget) < Math.abs(best - sel.budget) ? s
    : best, m.steps[0]);
  if (wanted.budget !== undefined && Math.abs(nearest - wanted.budget) > 1e-5) {
    told.push(`There are no masks at ${+(100 * wanted.budget).toPrecision(4)}% kept; this is the nearest.`);
  }
  sel.budget = nearest;
  const fits = tok => Array.isArray(tok) && tok[0] >= 0 && tok[1] > tok[0] && tok[1] <= m.n;
  if (sel.tok && !fits(sel.tok)) {
    told.push(`This text has ${m.n} tokens; the tokens of the link lie outside.`);
    sel.tok = null;
  }
  sel.marks = sel.marks.filter(fits).slice(0, MOST_MARKS);
  return {sel, told};
}
