// Header: title, link, exports, and the line that says which run is shown and the ways to another.
import {chooser, fileName, h, put, save} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {myRuns, remember} from '../lib/mine.js';
import {ask, page} from '../lib/page.js';
import {S, label} from '../lib/state.js';
import {findingBox} from './finding.js';
import {openRun, tellStatus} from './opening.js';
import {startTour} from './tour.js';

const EXPORTS = [['zip', 'Whole run (.zip)'], ['npz', 'Kept masks (.npz)'], ['html', 'Report (.html)'],
  ['py', 'Python lines (.py)']];
const sourceLine = h('div', {class: 'kv-source', id: 'kv-source'});

export function mountHead() {
  const place = document.getElementById('kv-head');
  if (!place) { setTimeout(mountHead, 50); return; }
  const skip = h('a', {class: 'kv-skip', href: '#kv-finding', onclick: event => {
    event.preventDefault();
    findingBox.focus();
  }}, 'Go to the finding');
  put(place, skip, h('div', {class: 'kv-headline'}, h('h1', {}, 'kvviz'), ' ',
    h('p', {}, 'What does a language model forget when its cache is cut?')),
  h('div', {class: 'kv-head-tools'},
    h('button', {class: 'kv-button', id: 'kv-tour-again', onclick: startTour}, 'Tour'), copyButton(),
      exportMenu()), sourceLine);
  document.addEventListener('kv:run', showSource);
  if (S.meta) showSource();
}

function copyButton() {
  const copy = h('button', {class: 'kv-button', id: 'kv-copy',
    title: 'Whoever has the link to a run of yours sees its whole text', onclick: async () => {
      let done = true;
      try { await navigator.clipboard.writeText(location.href); } catch (error) { done = false; }
      copy.textContent = done ? 'Link copied' : 'Copy from the address bar';
      setTimeout(() => { copy.textContent = 'Copy link'; }, 2500);
    }}, 'Copy link');
  return copy;
}

function exportMenu() {
  const menu = h('details', {class: 'kv-menu', id: 'kv-export'}, h('summary', {class: 'kv-button'}, 'Export'),
    h('div', {class: 'kv-menu-list'},
      EXPORTS.map(([kind, text]) => h('button', {class: 'kv-menu-item', onclick: () => {
      menu.open = false;
      exportRun(kind);
    }}, text))));
  document.addEventListener('click', event => { if (!menu.contains(event.target)) menu.open = false; });
  menu.addEventListener('keydown', event => { if (event.key === 'Escape') menu.open = false; });
  return menu;
}

// The file of the run as it is looked at now. Addresses are relative to the page, so a proxy keeps its own.
async function exportRun(kind) {
  tellStatus('Preparing the file');
  const reply = await ask('export', {kind});
  tellStatus(reply.error, true);
  if (reply.error) return;
  const ending = reply.name.split('.').pop();
  const view = kind === 'html' ? ['report', label(S.sel.a), S.sel.b && label(S.sel.b),
    fmt.budget(S.sel.budget)] : ['run'];
  const name = fileName([S.meta.title, ...view].filter(Boolean).join(' '), ending);
  if (reply.text !== undefined) { save(name, reply.text, reply.type); return; }
  try {  // read here, not by a link: a failure is told, and the file has a name of its own
    const file = await fetch(new URL(`gradio_api/file=${reply.path}`, document.baseURI));
    if (!file.ok) throw new Error(file.statusText);
    save(name, await file.blob());
  } catch (error) { tellStatus('The file could not be fetched. Try again in a moment.', true); }
}

const ORIGINS = {stored: 'Stored example', own: 'Your run', file: 'Opened file'};
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
  options.length > 1 ? pick : null);
}
