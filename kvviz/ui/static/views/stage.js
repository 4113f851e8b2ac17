// A story on the stage: one view at a time over the whole screen, its sentence in large type, no controls.
// Arrow keys, space and the page keys walk it, Escape ends it; a tap goes on, at the left edge back.
import {h, put} from '../lib/dom.js';
import {S} from '../lib/state.js';
import {playBudget, stopPlay} from './play.js';
import {showView} from './strip.js';

const words = h('p', {class: 'kv-speech-words', dir: 'auto'}), count = h('span', {class: 'kv-speech-count'});
const stage = h('section', {class: 'kv-speech', id: 'kv-stage', tabindex: -1, 'aria-label': 'Stage',
  'aria-live': 'polite', hidden: true}, words, count);
const NEXT = ['ArrowRight', 'ArrowDown', ' ', 'PageDown', 'Enter'], BACK = ['ArrowLeft', 'ArrowUp', 'PageUp'];
let steps = [], at = 0, before = null;

export function openStage(wanted, from = 0) {
  if (!wanted.length) return;
  [steps, at] = [wanted, from];
  before = {focus: document.activeElement, top: window.scrollY, sel: S.sel, tab: S.tab};
  if (!stage.isConnected) document.getElementById('kv-app').before(stage);
  stage.hidden = false;
  document.body.classList.add('kv-on-stage');
  document.documentElement.requestFullscreen?.().catch(() => {});  // the page alone does as well
  show();
  stage.focus();
}

function close() {
  stopPlay();
  stage.hidden = true;
  document.body.classList.remove('kv-on-stage');
  delete document.body.dataset.shows;
  if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
  redraw();
  window.scrollTo(0, before.top);
  before.focus?.focus({preventScroll: true});
  document.dispatchEvent(new CustomEvent('kv:staged', {detail: at}));
}

const redraw = () => document.dispatchEvent(new CustomEvent('kv:theme'));  // figures take their new size

function show() {
  const step = steps[at];
  stopPlay();
  put(words, step.words);
  put(count, `${at + 1} / ${steps.length}`);
  document.body.dataset.shows = step.shows;
  showView(step);
  window.scrollTo(0, 0);
  redraw();
}

function walk(by) {
  const to = at + by;
  if (to >= steps.length) { close(); return; }
  at = Math.max(0, to);
  show();
}

document.addEventListener('keydown', event => {
  if (stage.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  if (NEXT.includes(event.key)) walk(1);
  else if (BACK.includes(event.key)) walk(-1);
  else if (event.key === 'Home') walk(-at);
  else if (event.key === 'End') walk(steps.length - 1 - at);
  else if (event.key === 'Escape') close();
  else if (event.key.toLowerCase() === 'p') playBudget();
  else return;
  event.preventDefault();
  event.stopPropagation();
}, true);

document.addEventListener('click', event => {
  if (stage.hidden || !event.isTrusted) return;
  event.preventDefault();
  event.stopPropagation();
  walk(event.clientX < window.innerWidth / 5 ? -1 : 1);
}, true);

document.addEventListener('fullscreenchange', () => {
  if (!stage.hidden && !document.fullscreenElement) close();
  else if (!stage.hidden) redraw();
});
