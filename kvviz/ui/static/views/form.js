// The form "Use my own text": document and question, methods in groups, budgets, Run. What was typed outlives
// a reload; a run that is shown can fill it, so that one thing is changed and it is run again.
import {debounce, h, put, reveal} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask, page} from '../lib/page.js';
import {S} from '../lib/state.js';
import {showUnavailable, unavailableBox} from './calibration.js';
import {documentField, fillDocument} from './form_document.js';
import {aboutMethods, chosenMethods, methodGroups, setMethods} from './form_methods.js';
import {moreQuestions, readQuestions, setQuestions, tellQuestions} from './form_questions.js';
import {labelled, moreSettings, readSettings, setSettings} from './form_settings.js';
import {runBox, runButton, startRun, stopButton} from './run.js';

const KEY = 'kvviz-form', MOST_KEPT = 2_000_000;  // characters; a browser keeps about 5 MB
const panel = h('div', {class: 'kv-form', id: 'kv-form', hidden: true});
const opener = h('button', {class: 'kv-button kv-form-open', id: 'kv-form-button', 'aria-expanded': 'false',
  'aria-controls': 'kv-form', onclick: () => showForm(panel.hidden)}, 'Use my own text');
const again = h('button', {class: 'kv-button', id: 'kv-change', hidden: true, onclick: changeRun},
  'Change this run');
const line = (id, text, attrs = {}) => labelled(text, h('input', {type: 'text', ...attrs}), id);
const question = line('kv-question-field', 'Question');
const expected = line('kv-expected-field', 'Expected answer (optional, for right/wrong)');
const budgets = line('kv-budgets-field', 'Budgets kept: shares as 20%, tokens per KV head as 128t');
const protocols = [['question-aware', 'The question is known while compressing'],
  ['question-agnostic', 'The question comes later']];
const protocol = h('div', {class: 'kv-radios', id: 'kv-protocol-field', role: 'radiogroup',
  'aria-label': 'Question'},
protocols.map(([value, text]) => h('label', {class: 'kv-check'},
  h('input', {type: 'radio', name: 'kv-protocol', value}), text)));
const estimateLine = h('p', {class: 'kv-estimate', id: 'kv-estimate', 'aria-live': 'polite'}, '\u00a0');
const typedIn = box => box.querySelector('textarea, input[type=text]');
const value = box => typedIn(box).value;
const set = (box, text) => { typedIn(box).value = text ?? ''; };

// Fields as the server knows them.
function readForm() {
  const {methods, variants} = chosenMethods();
  return {document: value(documentField), question: value(question), expected: value(expected),
    questions: readQuestions(), protocol: protocol.querySelector('input:checked')?.value, methods, variants,
    budgets: value(budgets), ...readSettings()};
}

export function fillForm(fields) {
  if ('document' in fields) fillDocument(fields.document);
  if ('question' in fields) set(question, fields.question);
  if ('expected' in fields) set(expected, fields.expected);
  if ('questions' in fields) setQuestions(fields.questions || []);
  if (fields.protocol) protocol.querySelector(`input[value="${fields.protocol}"]`).checked = true;
  if (fields.methods) setMethods(fields.methods, fields.variants || []);
  if (fields.budgets) set(budgets, [fields.budgets].flat().join(', '));
  setSettings(fields);
  changed();
}

function showForm(on) {
  panel.hidden = !on;
  opener.setAttribute('aria-expanded', String(on));
  if (!on) return;
  reveal(panel);
  documentField.querySelector('textarea').focus({preventScroll: true});
  estimate();
}

// One click: the run that is shown stands in the form.
async function changeRun() {
  const reply = await ask('form');
  if (reply.fields) fillForm(reply.fields);
  showForm(true);
}

const keep = debounce(() => {
  const text = JSON.stringify(readForm());
  try { if (text.length < MOST_KEPT) sessionStorage.setItem(KEY, text); } catch (error) { /* no storage */ }
}, 150);

function restore() {
  try { return JSON.parse(sessionStorage.getItem(KEY) || 'null') || {}; } catch (error) { return {}; }
}

let turn = 0;
async function estimate() {
  if (panel.hidden) return;
  const mine = turn += 1, fields = readForm();
  const told = await ask('estimate', fields);
  if (mine !== turn || told.error) return;
  const parts = [told.tokens && `about ${fmt.count(told.tokens)} of ${fmt.count(told.most)} tokens`,
    told.answers && `${told.answers} ${told.answers === 1 ? 'answer' : 'answers'} and the full cache's`
      + (fields.questions.length ? ` to each of ${fields.questions.length + 1} questions` : ''),
    told.bytes && `a cache of up to ${fmt.mb(told.bytes)}`,
    told.seconds && `up to about ${fmt.seconds(Math.max(1, told.seconds))}`].filter(Boolean);
  put(estimateLine, parts.join(' · ') || '\u00a0');
  estimateLine.classList.toggle('kv-over', Boolean(told.tokens > told.most));
}
const estimateSoon = debounce(estimate, 400);

function changed() {
  const aware = protocol.querySelector('input:checked')?.value !== protocols[1][0];
  tellQuestions(page.boot.form.most_questions, aware);
  keep();
  estimateSoon();
}

let asked = '';
async function askUnavailable() {
  const {model, dtype} = readSettings();
  asked = `${model} ${dtype}`;
  const reply = await ask('unavailable', {model, dtype});
  if (!reply.error && asked === `${model} ${dtype}`) showUnavailable(reply);
}

export function buildForm() {
  const offer = page.boot.form, examples = h('div', {class: 'kv-tools', id: 'kv-example-row'},
    h('span', {class: 'kv-label'}, 'Examples'), offer.examples.map(one => h('button',
      {class: 'kv-button kv-small kv-example', onclick: () => fillForm(one)}, one.title)));
  const settings = moreSettings(offer, askUnavailable);
  const column = (title, ...nodes) => h('div', {class: 'kv-form-part'}, h('h3', {}, title), nodes);
  put(panel,
    h('div', {class: 'kv-form-columns'},
      column('Document and question', examples, documentField, question, expected, protocol,
        moreQuestions),
      column('Methods and budgets', methodGroups(offer), settings.same, budgets, unavailableBox,
        aboutMethods(offer))),
    settings.folds,
    h('div', {class: 'kv-form-run'}, runButton, stopButton, estimateLine), runBox);
  panel.addEventListener('input', changed);
  panel.addEventListener('change', changed);
  runButton.addEventListener('click', () => startRun(readForm()));
  document.addEventListener('kv:text-read', changed);
  document.addEventListener('kv:setup', () => showForm(true));
  document.addEventListener('kv:run', () => { again.hidden = !S.meta; });
  document.addEventListener('kv:ran', askUnavailable);
  fillForm({document: '', question: '', expected: '', questions: [], ...offer.first, ...restore()});
  return h('section', {class: 'kv-setup', id: 'kv-setup', 'aria-label': 'Use my own text'},
    h('div', {class: 'kv-tools'}, opener, again, settings.saved), panel);
}
