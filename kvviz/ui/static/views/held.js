// Passages that only B still holds, each a way into the text.
import {h, put} from '../lib/dom.js';
import {ask} from '../lib/page.js';
import {S, addView, choose, label, redo} from '../lib/state.js';

export function buildHeld() {
  const words = h('p', {class: 'kv-guide'}), rows = h('div', {class: 'kv-scroll'});
  const box = h('details', {class: 'kv-more', id: 'kv-held'},
    h('summary', {}, 'Passages that only B still holds'), words, rows);
  const view = addView({id: 'held', tab: 'kept', el: box, reads: ['run', 'a', 'b', 'budget', 'grain'],
    async refresh() {
      box.hidden = !S.sel.b;
      if (box.hidden || !box.open) { view.dirty = true; return; }
      const reply = await ask('passages');
      if (reply.lost) return;
      put(words, reply.error || `${reply.words} A head holds what it keeps at least half of.`);
      put(rows, reply.error || !reply.rows.length ? null : table(reply));
    }});
  box.addEventListener('toggle', () => redo(view));
  return box;
}

function table(reply) {
  const [a, b] = [label(S.sel.a), label(S.sel.b)];
  const head = [reply.grain, `heads of A ${a}`, `heads of B ${b}`, 'half of A from', 'half of B from'];
  return h('table', {class: 'kv-table kv-stacks kv-held'}, h('thead', {}, h('tr', {}, head.map(one =>
    h('th', {scope: 'col'}, one)))), h('tbody', {}, reply.rows.map(one => h('tr', {},
    h('td', {class: 'kv-wrap'}, one.where ? h('div', {class: 'kv-muted kv-where'}, one.where) : null,
      h('button', {class: 'kv-word', dir: 'auto', onclick: () => choose({tok: one.tok}, 'held')},
        one.text || '(blank)')),
    [one.a, one.b, ...one.first].map((value, i) => h('td', {'data-label': head[i + 1]}, value))))));
}
