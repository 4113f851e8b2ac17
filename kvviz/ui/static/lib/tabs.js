// The tabs over the views: which one is shown, and the keys that walk them.
import {h} from './dom.js';
import {writeLink} from './link.js';
import {S, refreshSeen} from './state.js';

export const tabs = new Map();  // id -> {button, sheet, under}
const list = h('div', {class: 'kv-tabs', role: 'tablist', 'aria-label': 'Views'});

// `sheets` are [id, name, nodes, nodes that take the width below document and tabs].
export function buildTabs(sheets) {
  for (const [id, name, nodes, below = []] of sheets) {
    const button = h('button', {role: 'tab', id: `kv-tab-${id}`, 'aria-controls': `kv-sheet-${id}`,
      class: 'kv-tab', onclick: () => showTab(id)}, name);
    const sheet = h('div', {role: 'tabpanel', id: `kv-sheet-${id}`, class: 'kv-sheet', hidden: true,
      'aria-labelledby': `kv-tab-${id}`}, h('p', {class: 'kv-echo'}), ...nodes);
    const under = h('div', {class: 'kv-under', role: 'group', 'aria-label': name, hidden: true}, below);
    tabs.set(id, {button, sheet, under});
  }
  list.append(...[...tabs.values()].map(tab => tab.button));
  list.addEventListener('keydown', walk);
  const all = [...tabs.values()];
  return {views: h('div', {class: 'kv-views'}, list,
    h('div', {class: 'kv-sheets'}, all.map(tab => tab.sheet))),
    under: h('div', {}, all.map(tab => tab.under))};
}

function walk(event) {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!step) return;
  const ids = [...tabs.keys()].filter(id => !tabs.get(id).button.hidden);
  const next = ids[(ids.indexOf(S.tab) + step + ids.length) % ids.length];
  showTab(next);
  tabs.get(next).button.focus();
}

export function showTab(id) {
  if (!tabs.has(id) || tabs.get(id).button.hidden) id = 'kept';
  S.tab = id;
  for (const [name, {button, sheet, under}] of tabs) {
    button.setAttribute('aria-selected', String(name === id));
    button.tabIndex = name === id ? 0 : -1;
    sheet.hidden = under.hidden = name !== id;
  }
  // in sight also where the row scrolls
  const {button} = tabs.get(id), left = button.offsetLeft;
  list.scrollLeft = left - (list.clientWidth - button.offsetWidth) / 2;
  if (S.run && S.meta) { writeLink(); refreshSeen(); }
}
