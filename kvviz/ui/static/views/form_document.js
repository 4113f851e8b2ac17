// The document of the form: typed, pasted, dropped, or read from a file. What was read is in the field before
// anything runs.
import {h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask, page} from '../lib/page.js';

const ENDINGS = '.txt,.md,.html,.htm,.pdf,.docx,.csv,.json,.py,.js,.ts,.c,.cpp,.h,.java,.go,.rs,.rb,.sh,.tex,'
  + '.xml,.yaml,.yml,.toml,.log,text/*';
const PACKED = 3;  // times the longest text: a PDF with pictures is larger than its words
const area = h('textarea', {rows: 14, id: 'kv-document-text', spellcheck: false, dir: 'auto',
  placeholder: 'Paste a text here, or drop a file: text, Markdown, HTML, PDF, Word or source code.'});
const notice = h('p', {class: 'kv-guide', role: 'status', id: 'kv-read-note'});
const chooser = h('input', {type: 'file', accept: ENDINGS, hidden: true,
  onchange: () => { readFile(chooser.files[0]); chooser.value = ''; }});
const upload = h('button', {class: 'kv-button kv-small', id: 'kv-upload', onclick: () => chooser.click()},
  'Upload a file');

export const documentField = h('div', {class: 'kv-field', id: 'kv-document-field'},
  h('div', {class: 'kv-tools'}, h('label', {for: 'kv-document-text', class: 'kv-label'}, 'Document'), upload,
    chooser), area, notice);

documentField.addEventListener('dragover', event => {
  event.preventDefault();
  documentField.classList.add('kv-over-field');
});
documentField.addEventListener('dragleave', () => documentField.classList.remove('kv-over-field'));
documentField.addEventListener('drop', event => {
  documentField.classList.remove('kv-over-field');
  const [file] = event.dataTransfer.files;
  if (!file) return;
  event.preventDefault();
  readFile(file);
});
area.addEventListener('input', () => put(notice));

export function fillDocument(text) {
  area.value = text || '';
  put(notice);
}

function tell(words, failed = false) {
  notice.className = failed ? 'kv-failed' : 'kv-guide';
  put(notice, words);
}

async function readFile(file) {
  if (!file) return;
  const most = PACKED * page.boot.form.most_bytes;
  if (file.size > most) { tell(`This file is larger than ${fmt.mb(most)}. Shorten it.`, true); return; }
  tell(`Reading ${file.name}`);
  const reply = await ask('read', {name: file.name, data: await base64(file)});
  if (reply.error) { tell(reply.error, true); return; }
  area.value = reply.text;
  tell([file.name, ...reply.notices].join(' · '));
  document.dispatchEvent(new CustomEvent('kv:text-read'));
}

const base64 = file => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(String(reader.result).split(',')[1] || '');
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});
