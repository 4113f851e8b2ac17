// Ask more: a further question to the full cache and every method's cache as it stands, answers side by side.
import {h, narrow, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask, page} from '../lib/page.js';
import {S, addView} from '../lib/state.js';
import {jobLine, startJob} from './run.js';

const VERDICTS = {right: 'right', wrong: 'wrong'}, ROLES = {a: 'A', b: 'B'};
const BESIDE = 4;  // caches side by side where there is room: the full one, A, B and one more
const line = jobLine(), list = h('div', {class: 'kv-turns', id: 'kv-turns'});
const field = h('textarea', {rows: 2, id: 'kv-more-question', dir: 'auto', 'aria-label': 'A further question',
  placeholder: 'Ask all these caches something else about the text'});
const expected = h('input', {type: 'text', id: 'kv-more-expected', dir: 'auto',
  'aria-label': 'Expected answer (optional)', placeholder: 'Expected answer (optional)'});
const builds = h('input', {type: 'checkbox', id: 'kv-more-builds', checked: true});
const go = h('button', {class: 'kv-button kv-primary', id: 'kv-more-ask', onclick: send}, 'Ask');
const stop = h('button', {class: 'kv-button', id: 'kv-more-stop', disabled: true,
  onclick: () => page.trigger('stop_run', {})}, 'Stop');
const cost = h('span', {class: 'kv-muted', id: 'kv-more-cost'});
const said = h('p', {class: 'kv-guide', hidden: true});
let sent = '';

function send() {
  const question = field.value.trim();
  if (!question) {
    put(line, h('p', {class: 'kv-failed', role: 'alert'}, 'Write a question first.'));
    field.focus();
    return;
  }
  sent = question;
  startJob('ask_more', {run: S.run, question, expected: expected.value, fresh: !builds.checked}, line);
}

for (const one of [field, expected]) {
  one.addEventListener('keydown', event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
}

document.addEventListener('kv:status', event => {
  let status = null;
  try { status = JSON.parse(event.detail || 'null'); } catch (error) { return; }
  if (!status || !['running', 'done', 'failed', 'stopped'].includes(status.state)) return;
  stop.disabled = status.state !== 'running';
  if (status.state !== 'done' || !sent) return;
  if (field.value.trim() === sent) field.value = expected.value = '';
  sent = '';
});

function card(one) {
  const verdict = VERDICTS[one.verdict] ? h('span', {class: `kv-verdict kv-${one.verdict}`,
    title: one.verdict_words}, VERDICTS[one.verdict]) : null;
  return h('article', {class: `kv-turn-card kv-card-${one.role}`, 'data-role': one.role}, h('h4', {},
    ROLES[one.role] ? [h('span', {class: `kv-badge kv-badge-${one.role}`}, ROLES[one.role]), ' '] : null,
    one.label, ' ', verdict),
  h('p', {class: 'kv-answer', dir: 'auto'}, one.words.length ? one.words.map(([text, differs]) =>
    differs ? h('mark', {class: 'kv-differs'}, text) : text) : h('span', {class: 'kv-muted'}, 'No text.')),
  h('p', {class: 'kv-meta'}, one.kl || '\u00a0'));
}

const MOST_OPEN = 3;  // turns; of more, the last one stands open, and a table tells of all
const opened = new Map();  // question number -> whether the reader has it open, of the run shown
let openedOf = '';

function turn(t, i, all) {
  const side = narrow() ? t.cards.filter(one => one.role).length : BESIDE;
  const first = t.cards.slice(0, side), rest = t.cards.slice(side), folds = all.length > MOST_OPEN;
  const asked = h('span', {class: 'kv-asked'}, h('span', {class: 'kv-label'}, `Question ${i + 2} `),
    h('b', {dir: 'auto'}, t.question),
    t.expected ? [h('span', {class: 'kv-label'}, ' · expected '), h('span', {dir: 'auto'}, t.expected)]
      : null,
    h('span', {class: 'kv-muted'}, t.fresh ? ' · of the document alone' : ' · after the turns before it',
      first.length > 1 ? ` · ${t.at} kept` : ` · not asked of this cache at ${t.at}`));
  const answers = [h('div', {class: 'kv-turn-cards', style: `--columns:${first.length}`}, first.map(card)),
    rest.length ? h('details', {class: 'kv-more'}, h('summary', {},
      `${rest.length} more ${rest.length === 1 ? 'cache' : 'caches'}`),
    h('div', {class: 'kv-turn-cards', style: `--columns:${BESIDE}`}, rest.map(card))) : null];
  const about = {class: 'kv-turn', 'aria-label': `Question ${i + 2}`};
  if (!folds) return h('section', about, h('p', {class: 'kv-question'}, asked), answers);
  const open = opened.get(i) ?? i === all.length - 1;
  return h('details', {...about, open, ontoggle: event => opened.set(i, event.target.open)},
    h('summary', {class: 'kv-question'}, asked), answers);
}

const SIGNS = {right: '✓', wrong: '✗'};
const result = one => !one ? '–' : [SIGNS[one.verdict]
  ? h('b', {class: `kv-${one.verdict}`, 'aria-label': VERDICTS[one.verdict]}, SIGNS[one.verdict]) : null, ' ',
h('small', {}, one.kl || (SIGNS[one.verdict] ? '' : '–'))];

// All questions at a glance: a row a cache, a column a question.
function table({questions, rows}) {
  const judged = rows.some(row => row.right), columns = questions.map((_, i) => `${i + 1}`);
  const words = `Every cache on every question${judged ? ': ✓ right, ✗ wrong' : ''}; KL in nats/token`;
  return h('div', {}, h('p', {class: 'kv-guide', id: 'kv-question-words'}, words),
    h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table kv-question-table',
      'aria-labelledby': 'kv-question-words'},
    h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Question'), judged ? h('th', {scope: 'col'}, 'All')
      : null, questions.map((text, i) => h('th', {scope: 'col', title: text}, columns[i])))),
    h('tbody', {}, rows.map(row => h('tr', {}, h('th', {scope: 'row'}, row.label),
      judged ? h('td', {}, row.right) : null,
      row.cells.map(one => h('td', {title: one?.text}, result(one)))))))));
}

const box = h('section', {class: 'kv-talk', id: 'kv-talk', 'aria-label': 'Ask more'}, list,
  h('div', {class: 'kv-talk-ask'}, h('h3', {class: 'kv-panel-title'}, 'Ask more'), field,
    h('div', {class: 'kv-tools'}, expected, h('label', {class: 'kv-check'}, builds,
      'Builds on the turns before'), go, stop, cost), said, line));

addView({id: 'turns', reads: ['run', 'a', 'b', 'budget'], el: box, async refresh() {
  const reply = await ask('turns');
  if (reply.lost) return;
  if (reply.error) { put(list, h('p', {class: 'kv-guide'}, reply.error)); return; }
  if (openedOf !== S.run) { openedOf = S.run; opened.clear(); }
  put(list, reply.table ? table(reply.table) : null, reply.turns.map(turn));
  said.hidden = !reply.words;
  put(said, reply.words);
  put(cost, reply.seconds ? `about ${fmt.seconds(Math.max(1, reply.seconds))}` : '',
    S.meta.origin === 'own' ? '' : ' · loads the model first');
}});

export const buildTalk = () => box;
