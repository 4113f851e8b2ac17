// Evidence: a sweep over many documents. What is looked at in it is chosen here; its figures stand below.
import {chooser, h, put, save} from '../lib/dom.js';
import {writePage} from '../lib/link.js';
import {NOT_SENT, ask, page, sent} from '../lib/page.js';
import {S, touch} from '../lib/state.js';
import {figures} from './evidence_figures.js';
import {askSweep, EV} from './evidence_state.js';
import {apartBox, chooseBox, claimsBox} from './evidence_words.js';
import {buildGrid} from './grid.js';

const shown = h('p', {class: 'kv-status', role: 'status', hidden: true});
const words = h('section', {class: 'kv-finding', id: 'kv-evidence-words', 'aria-label': 'Finding',
  'aria-live': 'polite', tabindex: -1});
const about = h('p', {class: 'kv-muted kv-evidence-about'});
const body = h('div', {class: 'kv-evidence-body', hidden: true});
const none = h('p', {hidden: true}, 'No sweep is stored here. Open one that “kvviz sweep” has written: its '
  + 'folder as a zip, or its table.');
const pick = {};

function tell(message, failed = false) {
  put(shown, message || '');
  shown.className = `kv-status${failed ? ' kv-failed' : ''}`;
  shown.hidden = !message;
}

const field = (name, text) => {
  const box = chooser(text, [], '', value => look({[name]: value}), {id: `kv-evidence-pick-${name}`});
  pick[name] = box;
  return box;
};

// Look at something else in the sweep; the server says what it made of it.
export async function look(patch) {
  EV.sel = {...EV.sel, ...patch};
  if (patch.a && patch.a === EV.meta?.sel.b && !patch.b) EV.sel.b = EV.meta.sel.a;  // swap
  const mine = EV.turn += 1, meta = await askSweep('evidence');
  if (mine !== EV.turn || meta.lost) return;
  if (meta.error) { tell(meta.error, true); return; }
  const before = EV.meta?.sel || {};
  Object.assign(EV, {meta, sel: meta.sel});
  fill();
  const changed = Object.keys(meta.sel).filter(key => meta.sel[key] !== before[key]);
  touch(changed.map(key => `sweep-${key}`));
}

export async function openSweep(id) {
  const stored = page.boot.sweeps.map(one => one.id), key = id || stored[0];
  page.app.setAttribute('aria-busy', 'false');
  none.hidden = Boolean(key);
  if (!key) { page.app.dataset.ready = 'no-sweep'; return; }
  const before = EV.id;
  EV.id = key;
  EV.turn += 1;  // what was asked of another sweep no longer counts
  if (before !== key) body.classList.remove('kv-growing');
  const meta = await ask('evidence', {}, {}, key);
  if (EV.id !== key) return;
  if (meta.error) {
    EV.id = before;
    if (!before && id && stored[0] && id !== stored[0]) await openSweep(stored[0]);
    tell(meta.error, true);
    page.app.dataset.ready ||= 'no-sweep';
    return;
  }
  tell('');
  Object.assign(EV, {meta, sel: meta.sel});
  body.hidden = false;
  if (!stored.includes(key) && !EV.own.some(one => one.id === key)) EV.own.push({id: key, title: meta.title});
  fill();
  touch(['sweep']);
  page.app.dataset.ready = key;
}

function fill() {
  const m = EV.meta, pairs = list => list.map(one => [one.id, one.title]);
  pick.sweep.select.fill([...pairs(page.boot.sweeps), ...pairs(EV.own)], EV.id);
  pick.model.select.fill(m.models.map(name => [name, name]), m.sel.model);
  pick.model.hidden = m.models.length < 2;
  for (const [name, options] of [['protocol', m.protocols], ['measure', m.measures], ['a', m.methods],
    ['b', m.methods], ['budget', m.budgets], ['by', m.slices]]) pick[name].select.fill(options, m.sel[name]);
  pick.protocol.hidden = m.protocols.length < 2;
  pick.b.hidden = m.methods.length < 2;
  put(words, h('span', {class: 'kv-eyebrow'}, 'Evidence'), h('p', {class: 'kv-lead'}, m.lead),
    h('p', {}, m.values), h('p', {}, m.verdict), m.facts.map(line => h('p', {class: 'kv-caution'}, line)),
    h('p', {class: 'kv-caution'}, m.many));
  download.hidden = !m.grid;
  put(about, [m.date, m.kept_runs ? `${m.kept_runs} runs kept` : 'no runs kept', m.command]
    .filter(Boolean).join(' · '));
  if (S.page === 'evidence') writePage(EV.id);
}

// A sweep from the visitor's own disk.
function opener() {
  const input = h('input', {type: 'file', accept: '.zip,.parquet,.csv', hidden: true, onchange: async () => {
    const [file] = input.files;
    input.value = '';
    tell(`Opening ${file.name}`);
    const path = await sent(file);
    const reply = path ? await ask('evidence_open', {path}) : {error: NOT_SENT};
    if (reply.error) tell(reply.error, true);
    else await openSweep(reply.id);
  }});
  return h('span', {}, h('button', {class: 'kv-button', id: 'kv-evidence-open',
    title: 'A sweep’s folder as a zip, or its table.parquet or table.csv', onclick: () => input.click()},
  'Open a sweep'), input);
}

// A grid that is being measured: only its needles and words are drawn anew until it has ended.
async function showGrown(id, first, ended) {
  if (first || (ended && EV.id !== id && !EV.own.some(one => one.id === id))) await openSweep(id);
  if (EV.id !== id) return;
  body.classList.toggle('kv-growing', !ended);
  if (ended) { await openSweep(id); return; }
  const meta = await askSweep('evidence');
  if (EV.id !== id || meta.error) return;
  Object.assign(EV, {meta, sel: meta.sel});
  fill();
  touch(['sweep-grown']);
}

const download = h('p', {hidden: true}, h('button', {class: 'kv-button kv-small', id: 'kv-grid-save',
  title: 'Table, texts and settings as a zip; “Open a sweep” reads it', onclick: async () => {
    const reply = await askSweep('evidence_file');
    if (reply.error) { tell(reply.error, true); return; }
    save(reply.name, new Blob([Uint8Array.from(atob(reply.data), ch => ch.charCodeAt(0))]));
  }}, 'Save this grid'));

export function buildEvidence() {
  pick.sweep = chooser('Sweep', [], '', id => openSweep(id), {id: 'kv-evidence-sweep'});
  const bar = h('section', {class: 'kv-bar', 'aria-label': 'What is looked at'},
    h('div', {class: 'kv-bar-row'}, field('model', 'Model'), field('protocol', 'Question'),
      field('measure', 'Measure'), field('a', 'A'), field('b', 'B'), field('budget', 'Budget')));
  pick.a.classList.add('kv-is-a');
  pick.b.classList.add('kv-is-b');
  const by = h('div', {class: 'kv-tools'}, field('by', 'Slices by'));
  const panels = figures(look), grid = buildGrid(showGrown);
  put(body, words, bar, panels.needles, download, panels.budget,
    h('div', {class: 'kv-split'}, panels.pairs, panels.items),
    h('div', {class: 'kv-split kv-evidence-two'}, h('div', {}, by, panels.slices), apartBox),
    chooseBox(look), claimsBox, about);
  document.addEventListener('kv:page', () => {
    if (S.page === 'evidence' && !EV.id) openSweep();
    else writePage(S.page === 'evidence' ? EV.id : null);
  });
  return h('section', {class: 'kv-evidence', id: 'kv-evidence', 'aria-label': 'Evidence'},
    h('div', {class: 'kv-tools'}, pick.sweep, opener(), grid.button), grid.panel, shown, none, body);
}
