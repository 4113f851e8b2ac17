// Puts the page together and opens the first run. Called once by Gradio with what it hands over.
import {h, put} from './lib/dom.js';
import {readLink} from './lib/link.js';
import {banner, live, page} from './lib/page.js';
import {showPage} from './lib/pages.js';
import {library} from './lib/plotly.js';
import {serverAfter} from './lib/saved.js';
import {S} from './lib/state.js';
import {findingBox, statusLine} from './lib/status.js';
import {buildTabs, showTab, tabs} from './lib/tabs.js';
import {buildAnswers, buildQuestion} from './views/answers.js';
import {buildBar} from './views/bar.js';
import {buildBeside} from './views/beside.js';
import {buildCause} from './views/cause.js';
import {buildDocument} from './views/document.js';
import {buildEffect} from './views/effect.js';
import {buildEvidence, openSweep} from './views/evidence.js';
import './views/finding.js';
import {mountHead} from './views/head.js';
import {buildKept} from './views/kept.js';
import {buildForm} from './views/form.js';
import {buildMix} from './views/mix.js';
import {emptyPage, openRun} from './views/opening.js';
import {liveBox} from './views/run.js';
import {buildSteps} from './views/steps.js';
import {buildStory} from './views/story.js';
import {buildSweep} from './views/sweep.js';
import {buildTalk} from './views/talk.js';
import {buildTour} from './views/tour.js';
import {buildTry} from './views/tryit.js';
import {buildWhy} from './views/why.js';

// `offline`: the page of a saved file (lib/saved.js), whose boot names the tabs it holds.
// `first`: where the replies to what the first run opens on are.
export function start({element, props, server, trigger, plotly, first, offline = false}) {
  const boot = {stored: [], methods: {}, ...JSON.parse(props.boot || '{}')};
  Object.assign(page, {app: element.querySelector('#kv-app'), boot, server, trigger, plotly, offline});
  const {views, under} = buildTabs([['kept', 'Kept', ...buildKept()], ['why', 'Why', ...buildWhy()],
    ['cause', 'Cause', buildCause()],
    ['effect', 'Effect', ...buildEffect()], ['sweep', 'Sweep', buildSweep()], ['try', 'Try it', buildTry()],
    ['mix', 'Mix', buildMix()],
    ['steps', 'Steps', buildSteps()],
    ['beside', 'Two runs', ...buildBeside()]]);
  put(page.app, banner, offline ? null : buildForm(), buildTour(), statusLine, liveBox, findingBox,
    h('div', {class: 'kv-explore'}, buildQuestion(), buildBar(), buildStory(), ...buildAnswers(),
      buildTalk(), h('div', {class: 'kv-work'}, buildDocument(), views), under),
    offline ? null : buildEvidence(), live);
  for (const [id, {button}] of tabs) button.hidden = offline && !boot.tabs.includes(id);
  mountHead();
  document.documentElement.classList.toggle('kv-framed', window.parent !== window);
  const link = readLink();
  showTab(link.tab || 'kept');
  document.addEventListener('kv:page', () => { if (S.page === 'run' && !S.run) openFirst(link, first); });
  showPage(link.page === 'evidence' && !offline ? 'evidence' : 'run');
  if (S.page === 'evidence') openSweep(link.sweep);
}

async function openFirst(link, address) {
  const [first] = page.boot.stored, id = link.run || first?.id, {server} = page;
  if (!id) return emptyPage();
  if (address && id === first?.id) {
    const coming = fetch(address).then(reply => reply.ok ? reply.json() : []).catch(() => []);
    page.server = serverAfter(coming, id, server);
  } else library().catch(() => {});  // read while the run is asked for
  await openRun(id, link.sel, link.tab);
  page.server = server;
}
