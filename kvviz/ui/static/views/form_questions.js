// Further questions of the form: one a line, all asked of the same compressed caches.
import {h, put} from '../lib/dom.js';
import {labelled} from './form_settings.js';

const area = () => h('textarea', {rows: 4, dir: 'auto', wrap: 'off'});
const asked = area(), expected = area();
const limit = h('p', {class: 'kv-guide'}), cut = h('p', {class: 'kv-guide', hidden: true},
  'The caches are cut for the question above: what only a further one needs may be gone. With “The question '
  + 'comes later” they serve all alike.');
export const moreQuestions = h('details', {class: 'kv-more', id: 'kv-questions'},
  h('summary', {}, 'More questions at once'), limit, cut,
  h('div', {class: 'kv-questions'}, labelled('Further questions, one a line', asked, 'kv-questions-field'),
    labelled('Their expected answers, line by line (optional)', expected, 'kv-expecteds-field')));

// [question, expected answer or null] of every line with a question.
export function readQuestions() {
  const right = expected.value.split('\n');
  return asked.value.split('\n').map((line, i) => [line.trim(), right[i]?.trim() || null])
    .filter(([line]) => line);
}

export function setQuestions(pairs) {
  asked.value = pairs.map(([question]) => question.replace(/\s*\n\s*/g, ' ')).join('\n');
  expected.value = pairs.some(pair => pair[1])
    ? pairs.map(pair => (pair[1] || '').replace(/\s*\n\s*/g, ' ')).join('\n') : '';
  moreQuestions.open = pairs.length > 0;
}

// What is said about so many of them.
export function tellQuestions(most, aware) {
  const count = readQuestions().length;
  put(limit, `One reading and one compression serve all; up to ${most} can be asked`,
    count ? `, ${count} ${count === 1 ? 'is' : 'are'} here.` : '.');
  limit.classList.toggle('kv-over', count > most);
  cut.hidden = !aware || !count;
}
