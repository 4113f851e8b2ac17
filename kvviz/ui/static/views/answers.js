// The answers side by side, and the table of all of them.
import {chooser, h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask, page} from '../lib/page.js';
import {Panel} from '../lib/panel.js';
import {S, addView, choose, redo} from '../lib/state.js';
import {buildFork, forkButton} from './fork.js';
import {answerTokens, lookLine} from './looked.js';
import {jobLine, startJob} from './run.js';

export const VERDICTS = {right: 'right', wrong: 'wrong', grey: 'no verdict'};
const ROLES = {full: '', a: 'A', b: 'B'};
const cardsBox = h('section', {class: 'kv-cards', id: 'kv-cards', 'aria-label': 'Answers'});
const allBox = h('section', {class: 'kv-all', id: 'kv-all', hidden: true, 'aria-label': 'All answers'});
const stripBox = h('div', {class: 'kv-strip', hidden: true});
const jobLines = {a: jobLine(), b: jobLine(), method: jobLine()};  // what became of a button stands beside it
let strip = null;

const verdict = data => VERDICTS[data.verdict] ? h('span', {class: `kv-verdict kv-${data.verdict}`,
  title: data.verdict_words}, VERDICTS[data.verdict]) : null;

// On a phone one answer is shown at a time, chosen by three chips; on wider screens all stand side by side.
let shownCard = 'a';
function cardChips(cards) {
  const chips = cards.map(data => h('button', {class: 'kv-button kv-answer-chip', role: 'tab',
    id: `kv-chip-${data.role}`, 'aria-selected': String(data.role === shownCard), onclick: () => {
      shownCard = data.role;
      for (const one of cardsBox.querySelectorAll('.kv-card')) {
        one.classList.toggle('kv-shown', one.dataset.role === shownCard);
      }
      for (const one of chips) one.setAttribute('aria-selected', String(one.id === `kv-chip-${shownCard}`));
    }}, ROLES[data.role] || 'Full', ' ', verdict(data)));
  return h('div', {class: 'kv-answer-chips', role: 'tablist', 'aria-label': 'Answers'}, chips);
}

// `pieces` are those of the answer by token, where it is known what the full cache looked at.
function card(data, pieces, stops) {
  const role = ROLES[data.role];
  const words = (data.words || []).map(([text, differs]) =>
    differs ? h('mark', {class: 'kv-differs'}, text) : text);
  const classes = ['kv-card', `kv-card-${data.role}`, data.banner && 'kv-stale', data.role === shownCard
    && 'kv-shown'];
  return h('article', {class: classes.filter(Boolean).join(' '), 'data-role': data.role},
    h('header', {}, role ? [h('span', {class: `kv-badge kv-badge-${data.role}`}, role), ' '] : null,
      h('h3', {}, data.label), ' ', verdict(data)),
    data.banner ? h('p', {class: 'kv-notice'}, data.banner, ' ', decodeButton(data.role)) : null,
    jobLines[data.role],
    h('p', {class: 'kv-answer', dir: 'auto'}, pieces?.length ? answerTokens(pieces, data, stops)
      : words.length ? words
      : h('span', {class: 'kv-muted'}, 'No text.')),
    h('p', {class: 'kv-meta'}, data.kl_line || '\u00a0',
      data.role !== 'full' && data.kl_line ? [' ', h('button', {class: 'kv-link-button',
        onclick: () => showStrip(data.role)}, 'by token')] : null),
    data.notice ? h('p', {class: 'kv-notice'}, data.notice) : null,
    h('p', {class: 'kv-meta', title: data.budget_note}, data.budget_line));
}

function decodeButton(role) {
  const at = fmt.budget(S.sel.budget);
  return h('button', {class: 'kv-button kv-small kv-decode',
    onclick: () => startJob('decode_more', {run: S.run, budget: S.sel.budget}, jobLines[role])},
  S.meta.origin === 'own' ? `Decode at ${at}` : `Load the model and decode at ${at}`);
}

addView({id: 'cards', reads: ['run', 'a', 'b', 'budget'], el: cardsBox, async refresh() {
  const reply = await ask('cards');
  if (reply.lost) return;
  if (reply.error) { put(cardsBox, h('p', {}, reply.error)); return; }
  cardsBox.classList.toggle('kv-two', reply.cards.length === 2);
  if (!reply.cards.some(c => c.role === shownCard)) shownCard = 'a';
  put(cardsBox, cardChips(reply.cards), reply.cards.map(one =>
    one.role === 'full' ? card(one, reply.tokens?.map((token, i) => [token, false, i]), reply.stops)
      : card(one, one.pieces)));
  if (!stripBox.hidden) showStrip(strip.role);
}});

function showStrip(role) {
  if (!strip) {
    strip = new Panel({id: 'strip', title: 'KL by token', view: 'kl_strip', height: 150,
      reads: ['run', 'a', 'b', 'budget'], args: () => ({role: strip.role}),
      onHover: p => `token ${p.x} of the answer: KL ${fmt.kl(Number(p.y))} nats`});
    stripBox.append(strip.el);
  }
  strip.role = role;
  stripBox.hidden = false;
  redo(strip.view);
}

const allButton = h('button', {class: 'kv-button kv-small', id: 'kv-all-button', 'aria-expanded': 'false',
  onclick: () => {
    allBox.hidden = !allBox.hidden;
    allButton.setAttribute('aria-expanded', String(!allBox.hidden));
    allButton.textContent = allBox.hidden ? 'All answers' : 'Hide all answers';
    redo(allView);
  }}, 'All answers');

// One more method on the run that is shown: what the model has read is used again where it is still held.
function addMethod() {
  const have = S.meta.methods.map(m => m.id);
  const rest = Object.entries(page.boot.methods).filter(([id]) => !have.includes(id));
  if (!rest.length) return null;
  const pick = chooser('Add a method', [['', 'choose'], ...rest], '', method => {
    if (method) startJob('decode_more', {run: S.run, method}, jobLines.method);
    pick.select.value = '';
  }, {id: 'kv-add-method'});
  return [h('div', {class: 'kv-tools'}, pick, ' ',
    h('span', {class: 'kv-muted'}, S.meta.origin === 'own' ? '' : 'loads the model first')), jobLines.method];
}

const SIGNS = {right: '✓', wrong: '✗'};
const answerWords = c => [
  SIGNS[c.verdict] ? h('b', {class: `kv-${c.verdict}`, 'aria-label': VERDICTS[c.verdict]}, SIGNS[c.verdict])
    : null,
  h('span', {dir: 'auto'}, c.start || '(empty)'), ' ', h('small', {}, c.kl)];

function answerCell(method, budget, c) {
  if (!c) return '–';
  return h('button', {class: 'kv-cell', title: c.text, onclick: () => choose({a: method.id, budget}, 'all')},
    answerWords(c));
}

const allView = addView({id: 'all', reads: ['run'], el: allBox, async refresh() {
  if (allBox.hidden) { allView.dirty = true; return; }
  const reply = await ask('all_answers');
  if (reply.lost) return;
  if (reply.error) { put(allBox, reply.error); return; }
  put(allBox, h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table kv-answers'},
    h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Method'),
      reply.budgets.map(b => h('th', {scope: 'col'}, `${fmt.budget(b)} kept`)))),
    h('tbody', {}, h('tr', {}, h('th', {scope: 'row'}, 'Full cache'),
      h('td', {colspan: reply.budgets.length, title: reply.full.text}, answerWords(reply.full))),
    reply.methods.map(m => h('tr', {}, h('th', {scope: 'row', title: m.label}, m.label),
      m.cells.map((c, i) => h('td', {}, answerCell(m, reply.budgets[i], c)))))))), addMethod());
}});

// What was asked, in one line that stays on the screen; hovered or focused it is there in full.
const asked = h('span', {}), questionLine = h('p', {class: 'kv-question', id: 'kv-question', tabindex: 0},
  asked);
document.addEventListener('kv:run', () => {
  const {question, expected} = S.meta;
  put(asked, h('span', {class: 'kv-label'}, 'Question '), h('b', {dir: 'auto'}, question),
    expected ? [h('span', {class: 'kv-label'}, ' · expected '), h('span', {dir: 'auto'}, expected)] : null);
});

export const buildQuestion = () => questionLine;

export const buildAnswers = () =>
  [cardsBox, lookLine,
    h('div', {class: 'kv-cards-foot'}, forkButton, allButton), buildFork(), stripBox, allBox];
