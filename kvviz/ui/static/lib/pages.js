// The two pages: one document in the lenses, or the evidence of many.
import {h} from './dom.js';
import {page} from './page.js';
import {S, refreshSeen} from './state.js';

const PAGES = [['run', 'One document'], ['evidence', 'Evidence']];
const buttons = PAGES.map(([id, name]) => h('button', {class: 'kv-page-button', id: `kv-page-${id}`,
  onclick: () => showPage(id)}, name));
export const pageSwitch = h('nav', {class: 'kv-pages', 'aria-label': 'Pages'}, buttons);

export function showPage(id) {
  S.page = id;
  page.app.classList.toggle('kv-many', id === 'evidence');
  document.body.classList.toggle('kv-on-evidence', id === 'evidence');  // the header is no part of the app
  for (const button of buttons) {
    if (button.id === `kv-page-${id}`) button.setAttribute('aria-current', 'page');
    else button.removeAttribute('aria-current');
  }
  document.dispatchEvent(new CustomEvent('kv:page'));
  refreshSeen();
}
