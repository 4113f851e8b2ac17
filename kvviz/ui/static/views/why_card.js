// The card "Why this token?": what decided about one token in one head, a column a method.
import {h, put} from '../lib/dom.js';
import {shown} from '../lib/format.js';
import {ask} from '../lib/page.js';
import {S, choose, textOf, touch} from '../lib/state.js';
import {showTab} from '../lib/tabs.js';

export const whyCard = h('section',
  {class: 'kv-why-card', id: 'kv-why-card', 'aria-label': 'Why this token?'});
const ROWS = [['state_words', 'State'], ['score_words', 'Score'], ['rank_words', 'Rank'],
  ['places_words', 'Places available'],
  ['margin_words', 'Cut-off'], ['scope_words', 'Competed with'], ['stage_words', 'Stage'],
    ['pooling_words', 'Pooling'],
  ['nearest_kept', 'Nearest kept'], ['nearest_evicted', 'Nearest evicted'],
  ['smallest_words', 'Smallest budget that keeps it']];
const MOST_STEPS = 24;  // tokens of a range that can be chosen one by one
const TITLE = h('h3', {class: 'kv-panel-title'}, 'Why this token?');
let everyMethod = false;

export async function fillCard() {
  const reply = S.sel.tok ? await ask('why_card', {every: everyMethod})
    : {error: 'Choose a word in the text, or a dot.'};
  if (reply.lost) return;
  put(whyCard, reply.error ? [TITLE, h('p', {class: 'kv-guide'}, reply.error)] : cardNodes(reply.card));
}

function cardNodes(c) {
  const at = S.sel.tok[0], count = S.sel.tok[1] - at;
  const every = h('input', {type: 'checkbox', checked: everyMethod, onchange: event => {
    everyMethod = event.target.checked;
    touch(['card']);
  }});
  return [h('div', {class: 'kv-panel-head'}, TITLE, h('label', {class: 'kv-check'}, every, 'Every method'),
    h('button', {class: 'kv-button kv-small', onclick: () => showTab('try')}, 'Pin this token in Try it')),
  h('p', {class: 'kv-token-name'}, `“${c.text}” `,
    h('span', {class: 'kv-muted'}, c.place_words + (c.marks.length ? ` · ${c.marks.join(', ')}` : ''))),
  count > 1 ? h('p', {class: 'kv-guide'}, `The least-held of the ${count} chosen tokens. `,
    Array.from({length: Math.min(MOST_STEPS, count)}, (_, i) => stepButton(at + i))) : null,
  h('p', {}, `${c.held_line}.`),
  h('p', {class: 'kv-guide'}, c.lens_words.join(' · ')),
  h('div', {class: 'kv-scroll'}, table(c)), h('p', {class: 'kv-guide'}, c.note)];
}

const stepButton = t => [h('button',
  {class: 'kv-link-button', onclick: () => choose({tok: [t, t + 1]}, 'why')},
  shown(textOf([t, t + 1]), 10)), ' '];

function table(c) {
  const cell = v => !v ? '–' : typeof v === 'string' ? v : `“${v.text}” (token ${v.token})`;
  const side = col => col.method === S.sel.a ? 'A ' : col.method === S.sel.b ? 'B ' : '';
  return h('table', {class: 'kv-table kv-why-table'},
    h('thead', {}, h('tr', {}, h('th', {}, `layer ${c.layer}, KV head ${c.head}`),
      c.columns.map(col => h('th', {scope: 'col'}, side(col), col.label)))),
    h('tbody', {}, ROWS.filter(([key]) => c.columns.some(col => col[key])).map(([key, name]) =>
      h('tr', {}, h('th', {scope: 'row'}, name),
        c.columns.map(col => h('td', {title: col[key] ? '' : col.reason}, cell(col[key])))))));
}
