// Where answers part: the ten likeliest next tokens of the full cache, A and B at each step, joined by lines.
import {h, put} from '../lib/dom.js';
import {fmt, shown} from '../lib/format.js';
import {ask} from '../lib/page.js';
import {S, addView, redo} from '../lib/state.js';
import {jobLine, startJob} from './run.js';

const ROW = 28, GAP = 44, TOP = 10;  // px of a row, between columns; tokens of a column
const line = jobLine();
const stage = h('div', {class: 'kv-fork-stage'});
const box = h('section', {class: 'kv-fork', id: 'kv-fork', hidden: true, tabindex: 0, role: 'application',
  'aria-label': 'Likeliest next tokens: left and right arrows step through the answer'}, stage, line);
export const forkButton = h('button', {class: 'kv-button kv-small', id: 'kv-fork-button', hidden: true,
  'aria-expanded': 'false', onclick: () => {
    box.hidden = !box.hidden;
    forkButton.setAttribute('aria-expanded', String(!box.hidden));
    forkButton.textContent = box.hidden ? 'Where they part' : 'Hide where they part';
    redo(view);
  }}, 'Where they part');
let data = null, step = 0, chosen = null;

const last = () => Math.max(...data.columns.map(c => c.steps.length)) - 1;
const parts = () => Math.min(...data.columns.map(c => c.parts ?? Infinity));
const percent = p => fmt.share(p);

function go(to) {
  step = Math.max(0, Math.min(last(), to));
  chosen = null;
  show();
}

box.addEventListener('keydown', event => {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!by || !data) return;
  go(step + by);
  event.preventDefault();
});

function column(c, side) {
  const now = c.steps[step], before = c.steps.slice(Math.max(0, step - 8), step).map(s => s[0]).join('');
  const head = [h('h4', {}, c.side === 'full' ? null : h('span', {class: `kv-badge kv-badge-${c.side}`},
    c.side.toUpperCase()), ' ', c.label),
  h('p', {class: 'kv-fork-before', dir: 'auto'}, before ? `…${before}` : '(start)', h('b', {},
    now ? now[0] : ''))];
  const rows = (now?.[1] || []).map(([token, p], i) => h('button', {class: 'kv-fork-row', dir: 'auto',
    'aria-pressed': String(Boolean(chosen) && chosen.side === side && chosen.index === i),
    'data-written': String(token === now[0] && i === now[1].findIndex(x => x[0] === now[0])),
    style: `--p:${100 * p}%`, onclick: () => { chosen = {side, index: i, token}; show(); }},
  h('span', {}, shown(token, 14)), h('small', {}, percent(p))));
  return h('div', {class: 'kv-fork-column'}, head,
    h('div', {class: 'kv-fork-rows', style: `height:${ROW * TOP}px`}, rows.length ? rows
      : h('p', {class: 'kv-guide'}, 'This answer has ended.')));
}

// Lines between equal tokens of two neighbouring columns.
function lines(left, right) {
  const NS = 'http://www.w3.org/2000/svg', svg = document.createElementNS(NS, 'svg');
  const attrs = {class: 'kv-fork-lines', viewBox: `0 0 ${GAP} ${ROW * TOP}`, preserveAspectRatio: 'none',
    'aria-hidden': 'true', style: `height:${ROW * TOP}px`};
  Object.entries(attrs).forEach(([k, v]) => svg.setAttribute(k, v));
  const [a, b] = [left, right].map(c => (c.steps[step]?.[1] || []).map(x => x[0]));
  a.forEach((token, i) => {
    const j = b.indexOf(token);
    if (j < 0 || a.indexOf(token) !== i) return;
    const path = document.createElementNS(NS, 'path'), y = k => ROW * k + ROW / 2;
    path.setAttribute('d', `M0 ${y(i)}C${GAP / 2} ${y(i)} ${GAP / 2} ${y(j)} ${GAP} ${y(j)}`);
    path.setAttribute('class', i === j ? 'kv-level' : 'kv-crossing');
    svg.append(path);
  });
  return svg;
}

function near() {
  const [from, to] = data.expected, at = to > from ? [from, to]
    : [Math.min(parts(), data.tokens.length - 1), Math.min(parts(), data.tokens.length - 1) + 1];
  if (!data.tokens.length || !Number.isFinite(at[0])) return null;
  const cell = (c, i) => h('td', {},
    c.near[i] ? `${percent(c.near[i][0])}, rank ${fmt.count(c.near[i][1])}` : '–');
  const rows = data.tokens.slice(...at).map((token, i) => h('tr', {},
    h('th', {scope: 'row', dir: 'auto'}, shown(token, 16)), data.columns.map(c => cell(c, at[0] + i))));
  return h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table', id: 'kv-fork-near'},
    h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, to > from ? 'Expected answer' : 'Where they part'),
      data.columns.map(c => h('th', {scope: 'col'}, c.label)))), h('tbody', {}, rows)));
}

function branching() {
  if (!chosen) return h('p', {class: 'kv-guide'}, 'Choose a token to see what would follow it.');
  const c = data.columns.find(x => x.side === chosen.side);
  const send = () => startJob('branch', {run: S.run, sel: S.sel, side: chosen.side, step,
    index: chosen.index}, line);
  return h('div', {class: 'kv-tools'}, h('button', {class: 'kv-button kv-small', id: 'kv-branch',
    onclick: send},
    `Go on from “${shown(chosen.token, 16)}” in ${c.label}`), h('span', {class: 'kv-muted'},
    `${data.seconds ? `about ${fmt.seconds(Math.max(1, data.seconds))}` : ''}`
    + (S.meta.origin === 'own' ? '' : ' · loads the model first')));
}

function show() {
  const inside = stage.contains(document.activeElement);  // its buttons are drawn anew
  const button = (text, title, fn, off) => h('button', {class: 'kv-button kv-small', title,
    'aria-label': title,
    onclick: fn, disabled: off}, text);
  const shownParts = Number.isFinite(parts());
  const parted = shownParts && step > parts() ? ' After they part, each goes on from its own words.' : '';
  put(stage, h('div', {class: 'kv-tools'}, button('‹', 'Step back', () => go(step - 1), step === 0),
    h('b', {'aria-live': 'polite'}, `token ${step} of ${last() + 1}`),
    button('›', 'Step on', () => go(step + 1), step === last()),
    shownParts ? button('Where they part', 'To where they part', () => go(parts()), step === parts()) : null,
    h('span', {class: 'kv-muted'}, `The ten likeliest next tokens. Arrow keys step.${parted}`)),
  h('div', {class: 'kv-fork-columns', style: `--columns:${data.columns.length}`},
    data.columns.flatMap((c, i) => [i ? h('div', {class: 'kv-fork-between'},
      lines(data.columns[i - 1], c)) : null,
      column(c, c.side)])),
  branching(), data.words.map(words => h('p', {}, words)), near(),
  data.branches.length ? h('ul', {class: 'kv-edits'}, data.branches.map(b => h('li', {dir: 'auto'},
    `${data.columns.find(c => c.side === b.side)?.label || ''}, `,
    `made to say “${shown(b.token, 16)}” at token ${b.step}: `,
    `“${b.text}”`, b.verdict ? ` (${b.verdict})` : ''))) : null);
  if (inside) box.focus({preventScroll: true});
}

const view = addView({id: 'fork', reads: ['run', 'a', 'b', 'budget'], el: box, async refresh() {
  forkButton.hidden = !S.meta.fork;
  if (box.hidden || !S.meta.fork) { view.dirty = true; if (!S.meta.fork) box.hidden = true; return; }
  const reply = await ask('fork');
  if (reply.lost) return;
  data = reply.error ? null : reply;
  chosen = null;
  if (!data) { put(stage, h('p', {class: 'kv-guide'}, reply.error)); return; }
  step = Number.isFinite(parts()) ? Math.min(parts(), last()) : 0;
  show();
}});
document.addEventListener('kv:run', () => { forkButton.hidden = !S.meta.fork; });

export const buildFork = () => box;
