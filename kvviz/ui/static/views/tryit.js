// Change what was kept, then decode again: the edit beside three random controls.
import {chooser, h, put} from '../lib/dom.js';
import {fmt, shown, spanName} from '../lib/format.js';
import {S, isDecoded, isOne, label, textOf} from '../lib/state.js';
import {VERDICTS} from './answers.js';
import {jobLine, startJob} from './run.js';

const result = h('section', {id: 'kv-try-result', 'aria-live': 'polite', 'aria-label': 'Result'});
const COLUMNS = ['Answer', 'Verdict', 'KL', 'Output error', 'Held'];

export function buildTry() {
  const made = {edits: [], scope: 'all', grow: false}, line = jobLine();
  const scope = chooser('In', [['all', 'all layers']], 'all', v => { made.scope = v; }, {id: 'kv-try-scope'});
  const button = (id, text, onclick, classes = '') =>
    h('button', {class: `kv-button ${classes}`, id, onclick}, text);
  const pin = button('kv-pin', 'Pin selection', () => addEdit('pin'));
  const evict = button('kv-evict', 'Evict selection', () => addEdit('evict'));
  const undo = button('kv-undo', 'Undo', () => { made.edits.pop(); show(); }, 'kv-small');
  const list = h('ol', {class: 'kv-edits'}), hint = h('p', {class: 'kv-guide'});
  const size = (grow, text) => h('label', {class: 'kv-check'},
    h('input', {type: 'radio', name: 'kv-size', checked: !grow, onchange() { made.grow = grow; }}), text);
  const go = button('kv-again', 'Decode again',
    () => startJob('try_again', {run: S.run, sel: S.sel, ...made}, line), 'kv-primary');

  function addEdit(kind) {
    const s = S.sel;
    if (!s.tok) return;
    made.edits.push({kind, tok: s.tok, text: shown(textOf(s.tok), 24),
      layer: made.scope === 'all' ? null : s.layer,
      head: made.scope === 'head' ? s.head : null});
    show();
  }

  function show() {
    if (!S.meta) return;
    const s = S.sel, one = isOne(s.layer), head = one && isOne(s.head);
    scope.select.fill([['all', 'all layers'], ...(one ? [['layer', `layer ${s.layer}`]] : []),
      ...(head ? [['head', `layer ${s.layer}, KV head ${s.head}`]] : [])], made.scope);
    if (scope.select.value !== made.scope) made.scope = scope.select.value = 'all';
    pin.disabled = evict.disabled = !s.tok;
    undo.hidden = !made.edits.length;
    const decoded = isDecoded(s.a, s.budget) && !S.meta.methods.find(m => m.id === s.a)?.made;
    go.disabled = !made.edits.length || !decoded;
    put(hint, hintWords(s, decoded));
    put(list, made.edits.map(e => h('li', {}, editWords(e))));
  }

  document.addEventListener('kv:sel', show);
  document.addEventListener('kv:text', show);
  document.addEventListener('kv:run', () => { made.edits = []; show(); showExperiment(); });
  const row = (...nodes) => h('div', {class: 'kv-tools'}, nodes.flatMap(node => [node, ' ']));
  return [h('h3', {class: 'kv-panel-title'}, 'Change what was kept, then decode again'),
    h('p', {class: 'kv-guide'},
      'Only here may a change be called a cause: the edit is compared with random edits of the same size.'),
    h('div', {class: 'kv-box'}, row(h('b', {}, '1 Edit'), pin, evict, scope, undo), hint, list,
      row(h('b', {}, '2 Size'), size(false, 'Keep the cache size'), size(true, 'Let it grow or shrink')),
      row(h('b', {}, '3'), go, h('span', {class: 'kv-muted'}, 'runs the edit and three random controls')),
        line),
    result];
}

function hintWords(s, decoded) {
  if (!decoded) {
    return `${label(s.a)} was not decoded at ${fmt.budget(s.budget)}: `
      + 'choose a budget with a mark under the slider.';
  }
  if (!s.tok) return 'Choose tokens in the text or in a map.';
  return `Chosen: ${spanName(s.tok)} “${shown(textOf(s.tok), 24)}”. `
    + (S.meta.origin === 'own' ? '' : 'Decoding loads the model first.');
}

function editWords(e) {
  const where = e.layer === null ? 'all layers' : e.head === null ? `layer ${e.layer}`
    : `layer ${e.layer}, KV head ${e.head}`;
  return `${e.kind === 'pin' ? 'Pin' : 'Evict'} ${spanName(e.tok)} “${e.text}” in ${where}`;
}

function showExperiment() {
  const tried = S.meta.experiment;
  if (!tried || !Array.isArray(tried.rows)) { put(result, ''); return; }
  const verdict = r => VERDICTS[r.verdict] ? h('b', {class: `kv-${r.verdict}`}, VERDICTS[r.verdict]) : '–';
  const cells = r => [h('span', {class: 'kv-wrap', dir: 'auto'}, r.text || '(empty)'), verdict(r), r.kl,
    r.error || '–', r.held];
  put(result, h('p', {class: 'kv-try-sentence'}, tried.sentence),
    h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table kv-stacks'},
      h('thead', {}, h('tr', {}, ['', ...COLUMNS].map(t => h('th', {scope: 'col'}, t)))),
      h('tbody', {}, tried.rows.map(r => h('tr', {}, h('th', {scope: 'row'}, r.name),
        cells(r).map((value, i) => h('td', {'data-label': COLUMNS[i]}, value))))))));
}
