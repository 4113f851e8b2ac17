// [Play]: the budget runs from 100% down to the smallest stop while maps empty and answers change.
import {calm, h, sleep} from '../lib/dom.js';
import {S, choose, isDecoded, stepIndex, working} from '../lib/state.js';

const STOP_MS = 650, DECODED_MS = 1700;  // how long a stop stays; longer where there are answers to read
const WORDS = calm() ? ['Next budget', 'Next budget'] : ['▶ Play', '■ Stop'];
export const playButton = h('button', {class: 'kv-button kv-small', id: 'kv-play', 'aria-pressed': 'false',
  title: 'Let the budget run from all to the smallest; Escape stops it',
  onclick: () => playBudget()}, WORDS[0]);
let turn = 0, playing = false;

function told(on) {
  playing = on;
  playButton.textContent = WORDS[on ? 1 : 0];
  playButton.setAttribute('aria-pressed', String(on));
}

export function stopPlay() {
  turn += 1;
  if (playing) told(false);
}

const decoded = share => isDecoded(S.sel.a, share) || Boolean(S.sel.b && isDecoded(S.sel.b, share));

// Every stop is shown whole: the next one waits until what was asked for stands on the page.
// Where motion is not wanted, a press is one stop.
export async function playBudget() {
  if (playing) { stopPlay(); return; }
  const steps = S.meta.steps, mine = (turn += 1);
  if (calm()) {
    const now = stepIndex(S.sel.budget);
    choose({budget: steps[now ? now - 1 : steps.length - 1]}, 'play');
    return;
  }
  told(true);
  for (let i = steps.length - 1; i >= 0; i -= 1) {
    choose({budget: steps[i]}, 'play');
    await sleep(decoded(steps[i]) ? DECODED_MS : STOP_MS);
    for (let n = 0; n < 100 && mine === turn && working(); n += 1) await sleep(50);
    if (mine !== turn) return;
  }
  told(false);
}

document.addEventListener('keydown', event => { if (playing && event.key === 'Escape') stopPlay(); });
document.addEventListener('kv:run', stopPlay);
document.addEventListener('kv:sel', event => {  // whoever moves the budget has taken over
  const {changed, src} = event.detail;
  if (playing && src !== 'play' && changed.includes('budget')) stopPlay();
});
