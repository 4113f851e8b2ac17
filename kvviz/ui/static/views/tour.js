// The tour: a story that the run tells itself, shown on a first visit.
import {ask, page} from '../lib/page.js';
import {S} from '../lib/state.js';
import {story, storyOf} from '../lib/story.js';
import {openSetup} from './opening.js';
import {closeStrip, home, pointOut, reword, walk, walking} from './strip.js';

const NAME = 'Tour', OVER = 'kvviz-tour-over';

function over() {
  closeStrip();
  try { localStorage.setItem(OVER, '1'); } catch (error) { /* private mode: it shows again */ }
}

function seen() {
  try { return localStorage.getItem(OVER) === '1'; } catch (error) { return false; }
}

const next = (at, last) => last ? ['Use my own text', openSetup] : [at ? 'Next' : 'Show me why'];

export function startTour(move = true) {
  if (!story.tour.length) return;
  walk({name: NAME, steps: story.tour, move, next, over, end: 'Skip tour'});
  if (!move) pointOut();
}

export function buildTour() {
  document.addEventListener('kv:run', async () => {
    closeStrip();
    const run = S.run, reply = await ask('story');
    if (reply.error || run !== S.run) return;
    storyOf(reply);
    document.dispatchEvent(new CustomEvent('kv:story'));
    if (!page.offline && !seen() && !story.steps.length && S.meta.origin === 'stored') startTour(false);
  });
  document.addEventListener('kv:sel', async event => {  // its numbers are those of this budget
    const {src, changed} = event.detail;
    if (!walking(NAME) || src === 'story' || !changed.some(key => ['budget', 'a', 'b'].includes(key))) return;
    const reply = await ask('story');
    if (!reply.error) { storyOf(reply); reword(story.tour); }
  });
  return home;
}
