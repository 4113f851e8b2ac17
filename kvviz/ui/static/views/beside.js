// A second run beside the first: the same controls for both, passages aligned by characters.
import {chooser, h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {fitted} from '../lib/link.js';
import {myRuns} from '../lib/mine.js';
import {ask, page} from '../lib/page.js';
import {Panel} from '../lib/panel.js';
import {S, addView, choose, touch} from '../lib/state.js';
import {tellStatus} from '../lib/status.js';
import {showTab} from '../lib/tabs.js';
import {VERDICTS} from './answers.js';
import {savedRun} from './form_settings.js';

const TAB = 'beside';
let other = null;  // {id, meta} of the second run
const maps = [];
let pairs = null;  // tokens of the aligned passages: {1: [[start, end]], 2: ...}
const pick = chooser('Beside', [['', 'choose a run']], '', id => openBeside(id), {id: 'kv-beside'});
const told = h('p', {class: 'kv-notice', hidden: true}), words = h('div', {class: 'kv-cause-words'});
const answers = h('div', {class: 'kv-split', id: 'kv-beside-answers'});
const list = h('div', {class: 'kv-scroll kv-beside-list'});
const rest = h('div', {hidden: true}), wide = h('div', {hidden: true});

// The selection in the second run, and what of the first one's it has not.
function there() {
  const {sel, told: unfit} = fitted({...S.sel, marks: []}, other.meta);
  return {sel: {...sel, tok: tokenThere()}, told: unfit};
}

const ofOther = () => other ? {sel: there().sel, run: other.id} : {};

// The chosen tokens in the second run: those of the passages they lie in.
function tokenThere() {
  const {tok} = S.sel;
  if (!tok || !pairs) return null;
  const hit = pairs[1].map(([s, e], i) => s < tok[1] && e > tok[0] ? i : -1).filter(i => i >= 0);
  return hit.length ? [pairs[2][hit[0]][0], pairs[2][hit[hit.length - 1]][1]] : null;
}

async function openBeside(id) {
  if (!id) { other = null; pairs = null; show(); return; }
  const meta = await ask('meta', {}, {}, id);
  if (meta.error) { tellStatus(meta.error, true); return; }
  other = {id, meta};
  pairs = null;
  show();
  showTab(TAB);
  touch(['beside']);
}

function show() {
  const runs = [...page.boot.stored, ...myRuns()].filter(one => one.id !== S.run).map(s => [s.id, s.title]);
  if (other && !runs.some(([id]) => id === other.id)) runs.push([other.id, other.meta.title]);
  pick.select.fill([['', 'choose a run'], ...runs], other?.id || '');
  rest.hidden = wide.hidden = !other;
}

function sayFits() {
  const lines = there().told.filter(line => !line.includes('tokens of the link'));
  told.hidden = !lines.length;
  put(told, lines.map(line => line.replace('This run', 'Run 2')).join(' '));
}

function column(number, m, cards) {
  const facts = [m.model.id, m.model.dtype, `${fmt.count(m.n)} tokens`, m.date];
  return h('section', {class: 'kv-beside-run', 'aria-label': `Run ${number}`},
    h('h3', {class: 'kv-panel-title', dir: 'auto'}, `${number} · ${m.title}`),
    h('p', {class: 'kv-muted'}, facts.filter(Boolean).join(' · ')), h('p', {dir: 'auto'}, m.question),
    cards.map(card => h('div', {class: `kv-beside-answer kv-card-${card.role}`}, h('b', {}, card.label), ' ',
      VERDICTS[card.verdict] ? h('span', {class: `kv-verdict kv-${card.verdict}`}, VERDICTS[card.verdict])
        : null, h('p', {dir: 'auto'}, (card.words || []).map(([text]) => text).join('') || 'No text.'),
      card.banner ? h('p', {class: 'kv-notice'}, card.banner) : null)));
}

addView({id: 'beside-answers', tab: TAB, el: answers, reads: ['run', 'a', 'b', 'budget', 'beside'],
  async refresh() {
    if (!other) return;
    sayFits();
    const {sel, run} = ofOther();
    const [one, two] = await Promise.all([ask('cards'), ask('cards', {}, sel, run)]);
    if (one.lost || two.lost || other?.id !== run) return;
    const broken = one.error || two.error;
    put(answers, broken || [column(1, S.meta, one.cards), column(2, other.meta, two.cards)]);
  }});

function differing(reply) {
  if (!reply.rows.length) return null;
  return h('table', {class: 'kv-table kv-held'}, h('thead', {}, h('tr', {}, ['Kept most differently',
    ...reply.names].map(one => h('th', {scope: 'col'}, one)))),
  h('tbody', {}, reply.rows.map(one => h('tr', {}, h('td', {class: 'kv-wrap'},
    h('button', {class: 'kv-word', dir: 'auto', onclick: () => choose({tok: pairs[1][one.at]}, TAB)},
      one.text)), h('td', {}, one.one), h('td', {}, one.two)))));
}

const reads = ['run', 'a', 'b', 'budget', 'grain', 'beside'];

function bands() {
  const panel = new Panel({id: 'beside-text', title: 'What each run keeps of the text', view: 'beside',
    tab: TAB, height: 260, reads, of: () => ({sel: S.sel, run: other && S.run}),
    args: () => ({beside: other.id, sel: there().sel, columns: panel.plot.pixels() || 300}),
    onHover: p => {
      const i = panel.plot.spec?.layout.meta.columns[p.pointNumber?.[1]];
      return i >= 0 ? `${panel.plot.spec.layout.meta.rows[p.pointNumber[0]]}, tokens ${pairs[1][i][0]} to `
        + `${pairs[1][i][1] - 1} of run 1, ${pairs[2][i][0]} to ${pairs[2][i][1] - 1} of run 2` : '';
    },
    onPick: p => {
      const i = panel.plot.spec.layout.meta.columns[p.pointNumber?.[1]];
      if (i >= 0) choose({tok: pairs[1][i]}, TAB);
    },
    after: reply => {
      pairs = reply.tokens;
      for (const one of maps) one.remark();  // where the chosen tokens lie in the second run
      put(words, reply.words.map(line => h('p', {}, line)));
      put(list, differing(reply));
    }});
  panel.plot.sides = 150;
  return panel;
}

function map(number, side) {
  const of = number === 1 ? () => ({sel: S.sel, run: other && S.run}) : ofOther;
  const panel = new Panel({id: `beside-${number}${side}`, title: `Run ${number}`, view: 'kept', tab: TAB,
    height: 330, reads, of, needsB: side === 'b',
    args: () => ({side, columns: panel.plot.pixels() || 300}),
    onPick: p => number === 1 && p.pointNumber && choose({tok: spanOf(p, panel)}, TAB),
    mark: () => {
      const {sel} = of(), {layers} = (number === 1 ? S : other).meta.model;
      return sel.tok ? [{x0: sel.tok[0] - 0.5, x1: sel.tok[1] - 0.5, y0: -0.5, y1: layers - 0.5}] : [];
    },
    after: (reply, self) => put(self.title, `Run ${number} · ${self.title.textContent}`)});
  panel.plot.sides = 90;
  panel.plot.barBelow = true;
  maps.push(panel);
  return panel.el;
}

function spanOf(p, panel) {
  const {cells} = panel.plot.spec.layout.meta, first = cells.x0 + p.pointNumber[1] * cells.size;
  return cells.units ? cells.units[p.pointNumber[1]] : [first, Math.min(cells.x1, first + cells.size)];
}

// [nodes beside the document, nodes below both].
export function buildBeside() {
  put(rest, told, words, answers);
  put(wide, bands().el, list, h('div', {class: 'kv-split'}, map(1, 'a'), map(2, 'a')),
    h('div', {class: 'kv-split'}, map(1, 'b'), map(2, 'b')));
  document.addEventListener('kv:run', () => { if (other?.id === S.run) other = null; pairs = null; show(); });
  document.addEventListener('kv:beside', event => openBeside(event.detail));
  return [[h('div', {class: 'kv-tools'}, pick,
    savedRun('kv-beside-file', 'Open a saved run beside', {beside: true})),
  h('p', {class: 'kv-guide'}, 'Two models, two prompts or two dates on one text: passages are aligned by '
    + 'their characters. A, B, budget and “Text by” are those above.'), rest], [wide]];
}
