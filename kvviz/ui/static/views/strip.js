// One step of a story (the tour is one) on the page: its sentence in a strip beside what it speaks of.
import {h, narrow, put, reveal, sleep} from '../lib/dom.js';
import {fitted} from '../lib/link.js';
import {page} from '../lib/page.js';
import {S, choose, working} from '../lib/state.js';
import {tellStatus} from '../lib/status.js';
import {showTab} from '../lib/tabs.js';

export const strip = h('section', {class: 'kv-tour', id: 'kv-tour', hidden: true});
export const home = h('div', {class: 'kv-tour-home'}, strip);
// What a step speaks of, where that is not the tab as a whole.
const PLACES = {answers: '#kv-cards', text: '#kv-document', budget: '.kv-bar', kept: '#kv-kept-a',
  try: '#kv-try-result'};
let shown = null;  // {name, steps, at, next, end}: what the strip walks through

export function closeStrip() {
  strip.hidden = true;
  shown = null;
  home.append(strip);
}

// Sets the page to a step; `fitted` says what of it does not fit this run.
export function showView(step) {
  const {sel, told} = fitted({...S.sel, ...step.view}, S.meta);
  choose(sel, 'story');
  if (!['answers', 'text'].includes(step.shows)) showTab(step.shows === 'budget' ? 'kept' : step.shows);
  if (told.length) tellStatus(told.join(' '));
}

// Walks `steps` from `at`. `move` false: only says it, and leaves the page as it is.
// `buttons(at, last)` gives [word of Next, what follows the last step], `over` what ends it.
export function walk({name, steps, at = 0, move = true, next = () => ['Next'], over = closeStrip,
  end = 'Close'}) {
  shown = {name, steps, at, next, over, end};
  strip.hidden = false;
  strip.setAttribute('aria-label', name);
  say();
  if (move) go();
}

// The sentences are others now; the step stays.
export function reword(steps) {
  if (!shown || strip.hidden) return;
  shown.steps = steps;
  say();
}

export const walking = name => !strip.hidden && shown?.name === name;

function say() {
  const {name, steps, at, next, over, end} = shown, last = at === steps.length - 1;
  const [word, after] = next(at, last);
  const button = (text, fn, main) =>
    h('button', {class: `kv-button${main ? ' kv-primary' : ''}`, onclick: fn}, text);
  const forward = () => { if (last) { over(); after?.(); } else step(1); };
  put(strip, h('span', {class: 'kv-eyebrow'}, `${name} ${at + 1} of ${steps.length}`), ' ',
    h('p', {dir: 'auto'}, steps[at].words), at ? button('Back', () => step(-1)) : null,
    last && !after ? null : button(word, forward, true), button(end, over));
}

function step(by) {
  shown.at += by;
  say();
  go();
}

function go() {
  const one = shown.steps[shown.at];
  showView(one);
  const place = document.querySelector(PLACES[one.shows] || `#kv-sheet-${one.shows}`);
  if (!place || place.hidden) return;
  if (place.matches('.kv-doc, .kv-sheet')) place.prepend(strip);  // one column of a grid
  else place.before(strip);
  reveal(strip);
  (strip.querySelector('.kv-primary') || strip.querySelector('button')).focus({preventScroll: true});
}

// The first step beside what it speaks of, without a word being asked: once the page stands, and only where
// nobody has scrolled meanwhile. It scrolls no further than it must.
export async function pointOut() {
  const mine = shown;
  for (let n = 0; n < 100 && working(); n += 1) await sleep(50);
  if (mine !== shown || mine.at || window.scrollY) return;
  const place = document.querySelector(PLACES[shown.steps[shown.at].shows]);
  if (!place || narrow() || page.offline) return;
  place.before(strip);
  if (place.getBoundingClientRect().bottom > window.innerHeight) reveal(place, 'end');
}
