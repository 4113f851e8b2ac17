// A story: views of a run in an order, each with a sentence. {words, shows, view}: what is said, what part of
// the page shows it, and the selection it is shown with. A draft is kept by the browser, a finished one by
// the run's saved file, the page's file or a link.
import {page} from './page.js';
import {GRAINS, S} from './state.js';

export const MOST_STEPS = 24, MOST_WORDS = 400;
const MOST_LINK = 6000;  // characters; browsers and mail programs cut longer ones
const KEY = 'kvviz-stories', MOST_DRAFTS = 8;
const FIELDS = ['a', 'b', 'budget', 'tok', 'layer', 'head', 'grain'];
const whole = value => Number.isInteger(value) && value >= 0 && value < 1e9;

export const story = {steps: [], tour: []};

// A step from anywhere, with its known fields only, or null. Whether it fits the run is `fitted`'s question.
function stepOf(raw) {
  if (!raw || typeof raw.words !== 'string' || !/^[a-z_]{1,20}$/.test(raw.shows || '')) return null;
  const sel = raw.view || {}, tok = sel.tok;
  const id = value => typeof value === 'string' && value.length <= 200 ? value : null;
  if (!id(sel.a) || !(sel.budget > 0 && sel.budget <= 1)) return null;
  return {words: raw.words.slice(0, MOST_WORDS), shows: raw.shows, view: {a: sel.a, b: id(sel.b),
    budget: sel.budget, tok: Array.isArray(tok) && tok.length === 2 && tok.every(whole) ? [...tok] : null,
    layer: whole(sel.layer) ? sel.layer : null, head: whole(sel.head) ? sel.head : null,
    grain: GRAINS.includes(sel.grain) ? sel.grain : 'token'}};
}

const stepsOf = raw => Array.isArray(raw) ? raw.slice(0, MOST_STEPS).map(stepOf).filter(Boolean) : [];

// The view that is on the page now, as a step; a second run is no part of it.
export function viewNow(words) {
  const view = Object.fromEntries(FIELDS.map(key => [key, S.sel[key] ?? null]));
  return {words: words.slice(0, MOST_WORDS), shows: S.tab === 'beside' ? 'answers' : S.tab, view};
}

function drafts() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) || '[]');
    return Array.isArray(kept) ? kept.filter(one => typeof one?.run === 'string') : [];
  } catch (error) { return []; }
}

function keep(steps) {
  const others = drafts().filter(one => one.run !== S.run);
  const all = [{run: S.run, steps}, ...others].slice(0, MOST_DRAFTS);
  try { localStorage.setItem(KEY, JSON.stringify(all)); } catch (error) { /* no storage: lost on leaving */ }
}

// The steps as they are from now on.
export function setSteps(steps) {
  story.steps = steps;
  if (!page.offline) keep(steps);
  if (location.hash.startsWith('#story='))
    history.replaceState(history.state, '', location.href.split('#')[0]);
}

// What a run's story is: that of the link it was opened with, else the browser's draft, else the run's own.
export function storyOf(reply) {
  const draft = page.offline ? null : drafts().find(one => one.run === S.run);
  story.tour = (reply.tour || []).map(step => ({...step, tour: true}));
  story.steps = fromLink() || stepsOf(draft ? draft.steps : reply.steps);
}

// A link to these steps, or null where it would be too long. Its part after "#" never reaches a server.
export function storyLink(steps) {
  const rows = steps.map(({words, shows, view}) => [words, shows, ...FIELDS.map(key => view[key] ?? null)]);
  const bytes = new TextEncoder().encode(JSON.stringify([S.run, rows]));
  const code = btoa(Array.from(bytes, b => String.fromCharCode(b)).join(''));
  const link = `${location.href.split('#')[0]}#story=${code.replace(/\+/g, '-').replace(/\//g, '_')
    .replace(/=+$/, '')}`;
  return link.length > MOST_LINK ? null : link;
}

function fromLink() {
  const found = /^#story=([\w-]{4,})$/.exec(location.hash);
  if (!found || location.href.length > MOST_LINK) return null;
  try {
    const bytes = Uint8Array.from(atob(found[1].replace(/-/g, '+').replace(/_/g, '/')), c => c.charCodeAt(0));
    const [run, rows] = JSON.parse(new TextDecoder('utf-8', {fatal: true}).decode(bytes));
    if (run !== S.run || !Array.isArray(rows)) return null;
    return stepsOf(rows.map(([words, shows, ...given]) =>
      ({words, shows, view: Object.fromEntries(FIELDS.map((key, i) => [key, given[i]]))})));
  } catch (error) { return null; }
}
