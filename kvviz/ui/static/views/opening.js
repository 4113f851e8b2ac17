// Opens a run: what it holds, where its text lies, and the selection it is opened on.
import {h, put} from '../lib/dom.js';
import {fitted} from '../lib/link.js';
import {forget} from '../lib/mine.js';
import {ask, page} from '../lib/page.js';
import {S, forgetAll, setSelection} from '../lib/state.js';
import {findingBox, tellStatus} from '../lib/status.js';
import {showTab, tabs} from '../lib/tabs.js';
import {loadText, scrollToToken, shade} from './document.js';

let opening = 0;
export async function openRun(id, wanted, tab) {
  const before = S.run, turn = (opening += 1);
  S.run = id;
  const m = await ask('meta', {}, {});
  if (turn !== opening) return;  // another run was asked for meanwhile
  if (m.error) {
    S.run = before;
    if (!m.lost) forget(id);
    tellStatus(m.error, true);
    const first = page.boot.stored[0];
    if (!before && first && id !== first.id) await openRun(first.id, {});
    else if (!before) emptyPage();
    return;
  }
  const {sel, told} = fitted(wanted, m);
  Object.assign(S, {meta: {...m, own_marks: m.marks}, doc: null, codes: null});
  page.app.classList.remove('kv-empty');
  if (!m.evictions) tabs.get('steps').button.hidden = true;
  else if (!page.offline) tabs.get('steps').button.hidden = false;
  setSelection(sel, 'open', []);
  document.dispatchEvent(new CustomEvent('kv:run'));
  if (told.length) tellStatus(told.join(' '));
  forgetAll();
  showTab(tab || S.tab);  // asks for what can be seen
  await loadText();
  if (turn !== opening || !S.doc) return;
  await shade();
  if (sel.tok) scrollToToken(sel.tok[0]);
  page.app.setAttribute('aria-busy', 'false');
  page.app.dataset.ready = id;
}

export function emptyPage() {
  page.app.classList.add('kv-empty');
  page.app.setAttribute('aria-busy', 'false');
  page.app.dataset.ready = 'empty';
  put(findingBox, h('span', {class: 'kv-eyebrow'}, 'Nothing to show yet'),
    h('p', {class: 'kv-lead'}, 'Paste a text, ask a question about it, choose methods, and press Run.'),
    h('p', {class: 'kv-caution'}, 'The first run fetches a small model; the page says how far it is.'));
  openSetup();
}

// Opens the form; it listens, so that neither has to know the other.
export const openSetup = () => document.dispatchEvent(new CustomEvent('kv:setup'));
