// Taking a run along as a file, as it is looked at now and with its story.
import {fileName, h, save} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask} from '../lib/page.js';
import {S, label} from '../lib/state.js';
import {tellStatus} from '../lib/status.js';
import {story} from '../lib/story.js';

const EXPORTS = [['zip', 'Whole run (.zip)'], ['npz', 'Kept masks (.npz)'], ['html', 'Report (.html)'],
  ['page', 'Page with its story (.html)'], ['py', 'Python lines (.py)']];
const NAMED = ['html', 'page'];  // files of one view say which

export function exportMenu() {
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
export async function exportRun(kind) {
  tellStatus('Preparing the file');
  const reply = await ask('export', {kind, steps: story.steps});
  tellStatus(reply.error, true);
  if (reply.error) return;
  const ending = reply.name.split('.').pop();
  const view = NAMED.includes(kind) ? [kind === 'html' ? 'report' : 'page', label(S.sel.a),
    S.sel.b && label(S.sel.b), fmt.budget(S.sel.budget)] : ['run'];
  const name = fileName([S.meta.title, ...view].filter(Boolean).join(' '), ending);
  if (reply.text !== undefined) { save(name, reply.text, reply.type); return; }
  try {  // read here, not by a link: a failure is told, and the file has a name of its own
    const file = await fetch(new URL(`gradio_api/file=${reply.path}`, document.baseURI));
    if (!file.ok) throw new Error(file.statusText);
    save(name, await file.blob());
  } catch (error) { tellStatus('The file could not be fetched. Try again in a moment.', true); }
}
