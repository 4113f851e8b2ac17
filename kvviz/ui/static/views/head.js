// Header: title, story, link, exports, and the line that says which run is shown and the ways to another.
import {chooser, copyLink, h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {myRuns, remember} from '../lib/mine.js';
import {page} from '../lib/page.js';
import {pageSwitch} from '../lib/pages.js';
import {S} from '../lib/state.js';
import {findingBox} from '../lib/status.js';
import {exportMenu} from './export.js';
import {openRun, openSetup} from './opening.js';
import {storyButton} from './story.js';
import {startTour} from './tour.js';

const sourceLine = h('div', {class: 'kv-source', id: 'kv-source'});

export function mountHead() {
  const place = document.getElementById('kv-head');
  if (!place) { setTimeout(mountHead, 50); return; }
  const skip = h('a', {class: 'kv-skip', href: '#kv-finding', onclick: event => {
    event.preventDefault();
    findingBox.focus();
  }}, 'Go to the finding');
  put(place, skip, h('div', {class: 'kv-headline'}, h('h1', {}, 'kvviz'), ' ',
    h('p', {}, 'What does a language model forget when its cache is cut?')), pageSwitch,
  h('div', {class: 'kv-head-tools'},
    h('button', {class: 'kv-button', id: 'kv-tour-again', onclick: () => startTour()}, 'Tour'), storyButton,
    copyButton(), exportMenu()), sourceLine);
  document.addEventListener('kv:run', showSource);
  if (S.meta) showSource();
}

function copyButton() {
  const copy = h('button', {class: 'kv-button', id: 'kv-copy',
    title: 'Whoever has the link to a run of yours sees its whole text',
    onclick: () => copyLink(copy, location.href)}, 'Copy link');
  return copy;
}

const ORIGINS = {stored: 'Stored example', own: 'Your run', file: 'Opened file', shared: 'Shared run'};
function showSource() {
  const m = S.meta;
  remember(m);
  const options = [...page.boot.stored, ...myRuns()].map(s => [s.id, s.title]);
  if (!options.some(([id]) => id === m.id)) options.unshift([m.id, m.title]);
  const pick = chooser('Shown', options, m.id, id => openRun(id, {}),
    {id: 'kv-stored', title: 'Run that is shown'});
  const facts = [m.model.id, m.model.dtype, `${fmt.count(m.n)} tokens`, m.date, m.decoding];
  put(sourceLine, h('p', {}, h('b', {}, ORIGINS[m.origin]), ` · ${facts.filter(Boolean).join(' · ')}`,
    m.stored_note ? h('span', {class: 'kv-muted'}, ` · ${m.stored_note}`) : null),
  options.length > 1 ? pick : null, page.offline ? null : h('button', {class: 'kv-button',
    id: 'kv-own-phone', onclick: openSetup}, 'Use my own text'));  // there the form is the page's end
}
