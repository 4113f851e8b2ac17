// Four captions for a first visit. Each sets the selection and shows its place; the numbers come from the
// run.
import {h, put, reveal} from '../lib/dom.js';
import {ask} from '../lib/page.js';
import {S, choose} from '../lib/state.js';
import {showTab} from '../lib/tabs.js';
import {openSetup} from './opening.js';

const OVER = 'kvviz-tour-over';
export const tourBox = h('section', {class: 'kv-tour', id: 'kv-tour', 'aria-label': 'Tour', hidden: true});
// What each caption talks about; the strip itself comes along, so that both are seen.
const PLACES = ['#kv-cards', '#kv-kept-a', '.kv-bar', '#kv-try-result'];
const NEXT = ['Show me why', 'Next', 'Next', 'Use my own text'];
let at = 0;

function over() {
  tourBox.hidden = true;
  home.append(tourBox);
  try { localStorage.setItem(OVER, '1'); } catch (error) { /* private mode: it shows again */ }
}

const home = h('div', {});
export function buildTour() {
  home.append(tourBox);
  document.addEventListener('kv:run', () => {
    let seen = false;
    try { seen = localStorage.getItem(OVER) === '1'; } catch (error) { /* no storage, show it */ }
    if (!seen && S.meta.origin === 'stored') show(0, false); else tourBox.hidden = true;
  });
  document.addEventListener('kv:sel', event => {
    const {src, changed} = event.detail;
    if (!tourBox.hidden && src !== 'tour' && changed.includes('budget')) show(at, false);
  });
  return home;
}

export const startTour = () => show(0, true);

async function show(step, move) {
  at = step;
  const reply = await ask('tour');
  if (reply.error || step !== at) { if (reply.error) tourBox.hidden = true; return; }
  tourBox.hidden = false;
  const last = at === reply.steps.length - 1;
  const button = (text, fn, main) =>
    h('button', {class: `kv-button${main ? ' kv-primary' : ''}`, onclick: fn}, text);
  put(tourBox, h('span', {class: 'kv-eyebrow'}, `Tour ${at + 1} of ${reply.steps.length}`), ' ',
    h('p', {}, reply.steps[at]),
    at ? button('Back', () => show(at - 1, true)) : null,
    button(last ? 'Use my own text' : NEXT[at], () => {
      if (last) { over(); openSetup(); } else show(at + 1, true);
    }, true), button('Skip tour', over));
  if (move) goTo(at);
}

function goTo(step) {
  const mark = S.meta.marks[0];
  if (step && mark) choose({tok: [mark.start, mark.end]}, 'tour');
  showTab(step === 3 ? 'try' : 'kept');
  const place = document.querySelector(PLACES[step]);
  if (!place) return;
  place.before(tourBox);
  reveal(tourBox);
  tourBox.querySelector('.kv-primary').focus({preventScroll: true});
}
