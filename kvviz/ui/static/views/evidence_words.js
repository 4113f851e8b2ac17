// What is said in tables: which method to take, the papers' claims, the items that are set apart.
import {debounce, h, narrow, put} from '../lib/dom.js';
import {pages} from '../lib/panel.js';
import {addView, redo} from '../lib/state.js';
import {askSweep, onEvidence, reads} from './evidence_state.js';

const cell = (label, ...nodes) => h('td', {'data-label': label}, h('span', {}, nodes));
const table = (heads, rows) => h('div', {class: 'kv-scroll'},
  h('table', {class: 'kv-table kv-stacks kv-evidence-table'},
  h('thead', {}, h('tr', {}, heads.map(name => h('th', {scope: 'col'}, name)))), h('tbody', {}, rows)));

// A long table under a line that says what is in it; `open`: how it begins.
function folding(open) {
  const summary = h('summary', {}), rest = h('div', {});
  const el = h('details', {class: 'kv-more', open}, summary, rest);
  return {el, fill(said, ...nodes) { put(summary, said); put(rest, nodes); }};
}

// A view of the sweep that is words only: `write` puts the reply into `box`.
function written(id, box, view, names, write, args = () => ({})) {
  return addView({id, el: box, apart: onEvidence, reads: reads(...names), async refresh() {
    const reply = await askSweep(view, args());
    if (reply.lost) return;
    if (reply.error) put(box, h('p', {class: 'kv-trouble'}, reply.error));
    else write(reply);
  }});
}

export function chooseBox(look) {
  const answer = h('div', {'aria-live': 'polite', id: 'kv-choose-answer'});
  const quality = h('input', {type: 'number', min: 1, max: 100, step: 1, value: '90', id: 'kv-quality',
    'aria-label': 'Quality to keep, percent of the full cache’s right answers'});
  const view = written('evidence-choose', answer, 'evidence_choose', [], reply => {
    put(answer, h('p', {class: 'kv-try-sentence'}, reply.sentence, ' ', reply.chosen
      ? h('button', {class: 'kv-button kv-small', onclick: () => look(reply.chosen)},
        'Look at it as A') : null),
    h('details', {class: 'kv-more'}, h('summary', {}, `The evidence: ${reply.rows.length} candidates, the `
      + 'smallest budget first'),
    table(Object.keys(reply.rows[0] || {}), reply.rows.map(row => h('tr', {},
      Object.entries(row).map(([name, value]) => cell(name, String(value))))))));
  }, () => ({quality: Number(quality.value) / 100}));
  quality.addEventListener('input', debounce(() => redo(view), 250));
  return h('section', {class: 'kv-panel', id: 'kv-evidence-choose', 'aria-label': 'Which method for me?'},
    h('h3', {class: 'kv-panel-title'}, 'Which method for me?'),
    h('p', {class: 'kv-guide'}, 'The smallest budget at which a method keeps what you name: the lower end of '
      + 'its 95 % interval must reach it.'),
    h('div', {class: 'kv-tools'}, h('label', {class: 'kv-check'}, 'Keep', quality,
      '% of the answers that the full cache gets right')), answer);
}

const VERDICTS = {holds: 'kv-right', 'does not hold': 'kv-wrong'};
const short = value => value === null ? '–' : String(Number(value.toPrecision(3)));

// "1 holds, 5 do not hold, 9 cannot be tested here"
function counted(claims) {
  const words = [['holds', 'hold', 'holds'], ['does not hold', 'do not hold', 'does not hold'],
    ['cannot be tested here', 'cannot be tested here', 'cannot be tested here']];
  return words.map(([verdict, many, one]) => {
    const n = claims.filter(c => c.verdict === verdict).length;
    return n && `${n} ${n === 1 ? one : many}`;
  }).filter(Boolean).join(', ');
}

const claimsFold = folding(!narrow()), claimsTable = h('div', {});
written('evidence-claims', claimsTable, 'evidence_claims', [], reply => {
  claimsFold.fill(`${reply.claims.length} claims: ${counted(reply.claims)}`,
    table(['Paper and claim', 'Here', 'Value', 'Why'], reply.claims.map(c => h('tr', {},
      cell('Claim', h('b', {}, c.paper), h('br'), c.claim),
      cell('Here', h('span', {class: VERDICTS[c.verdict] || 'kv-grey'}, c.verdict)),
      cell('Value', c.value === null ? '–' : [short(c.value), h('br'), c.interval[0] === null
        ? 'no interval' : `${short(c.interval[0])} to ${short(c.interval[1])}`, h('br'), `n = ${c.n}`]),
      cell('Why', c.reason)))),
    h('p', {class: 'kv-guide'}, `Protocol: ${reply.protocol}. ${reply.correction}`));
  put(claimsTable, claimsFold.el);
});
export const claimsBox = h('section', {class: 'kv-panel', id: 'kv-evidence-claims', 'aria-label': 'Claims'},
  h('h3', {class: 'kv-panel-title'}, 'Claims of the papers, here'),
  h('p', {class: 'kv-guide'}, 'Each headline beside what this model and these items give, computed from the '
    + 'table. Other models and longer texts may say otherwise.'), claimsTable);

const apartFold = folding(false), apartTable = h('div', {});
let apartFrom = 0;
const apartView = written('evidence-apart', apartTable, 'evidence_apart', ['a', 'b', 'budget'], reply => {
  if (!reply.rows.length) {
    put(apartTable, h('p', {}, 'No item is set apart: the full cache answers all of them rightly, '
      + 'from their documents.'));
    return;
  }
  apartFold.fill(`${reply.of} item${reply.of === 1 ? '' : 's'}`,
    pages(reply, row => { apartFrom = row; redo(apartView); }),
    table(['Item', 'Why', 'Expected', 'Full cache says'],
      reply.rows.map(row => h('tr', {}, cell('Item', row.item), cell('Why', row.why,
        row.right_all_the_same.length ? h('span', {class: 'kv-muted'},
          ` · right all the same: ${row.right_all_the_same.join(', ')}`) : null),
      cell('Expected', row.expected || '–'), cell('Full cache says', row.answer.slice(0, 120))))));
  put(apartTable, apartFold.el);
}, () => ({from: apartFrom}));
export const apartBox = h('section', {class: 'kv-panel', id: 'kv-evidence-apart',
  'aria-label': 'Items set apart'}, h('h3', {class: 'kv-panel-title'}, 'Items set apart'),
h('p', {class: 'kv-guide'}, 'What the full cache gets wrong, or answers without the document, says nothing '
  + 'about a method.'), apartTable);
