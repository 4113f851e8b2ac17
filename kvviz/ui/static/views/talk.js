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

function turn(t, i) {
  const side = narrow() ? t.cards.filter(one => one.role).length : BESIDE;
  const first = t.cards.slice(0, side), rest = t.cards.slice(side);
  return h('section', {class: 'kv-turn', 'aria-label': `Question ${i + 2}`},
    h('p', {class: 'kv-question'}, h('span', {class: 'kv-label'}, `Question ${i + 2} `),
      h('b', {dir: 'auto'}, t.question),
      t.expected ? [h('span', {class: 'kv-label'}, ' · expected '), h('span', {dir: 'auto'}, t.expected)]
        : null,
      h('span', {class: 'kv-muted'}, t.fresh ? ' · of the document alone' : ' · after the turns before it',
        first.length > 1 ? ` · ${t.at} kept` : ` · not asked of this cache at ${t.at}`)),
    h('div', {class: 'kv-turn-cards', style: `--columns:${first.length}`}, first.map(card)),
    rest.length ? h('details', {class: 'kv-more'}, h('summary', {},
      `${rest.length} more ${rest.length === 1 ? 'cache' : 'caches'}`),
    h('div', {class: 'kv-turn-cards', style: `--columns:${BESIDE}`}, rest.map(card))) : null);
}

const box = h('section', {class: 'kv-talk', id: 'kv-talk', 'aria-label': 'Ask more'}, list,
  h('div', {class: 'kv-talk-ask'}, h('h3', {class: 'kv-panel-title'}, 'Ask more'), field,
    h('div', {class: 'kv-tools'}, expected, h('label', {class: 'kv-check'}, builds,
      'Builds on the turns before'), go, stop, cost), said, line));

addView({id: 'turns', reads: ['run', 'a', 'b', 'budget'], el: box, async refresh() {
  const reply = await ask('turns');
  if (reply.lost) return;
  if (reply.error) { put(list, h('p', {class: 'kv-guide'}, reply.error)); return; }
  put(list, reply.turns.map(turn));
  said.hidden = !reply.words;
  put(said, reply.words);
  put(cost, reply.seconds ? `about ${fmt.seconds(Math.max(1, reply.seconds))}` : '',
    S.meta.origin === 'own' ? '' : ' · loads the model first');
}});

export const buildTalk = () => box;
