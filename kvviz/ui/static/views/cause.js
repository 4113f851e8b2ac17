// What had to be kept: heads and passages put back or taken out, the fewest entries that return the answer,
// the cache that would do.
import {chooser, h, put} from '../lib/dom.js';
import {fmt, shown, spanName, typed} from '../lib/format.js';
import {ask} from '../lib/page.js';
import {Panel} from '../lib/panel.js';
import {LOOK, S, addView, choose, isOne, textOf, touch} from '../lib/state.js';
import {jobLine, startJob} from './run.js';

const WAYS = [['put_back', 'Put back'], ['taken_out', 'Taken out']];
const line = jobLine();
const intro = h('div', {class: 'kv-cause-words', id: 'kv-cause-words', 'aria-live': 'polite'});
const rescueBox = h('div', {id: 'kv-cause-rescue-words'}), wouldBox = h('div', {id: 'kv-cause-would'});
const tops = h('div', {class: 'kv-guide'});
const button = (text, onclick, more = '') => h('button', {class: `kv-button ${more}`, onclick}, text);

// "Find the cause": for the answer of A at this budget, with about how long it takes.
function finder(reply) {
  if (!reply.decoded)
    return h('p', {}, `${reply.name} was not decoded: choose a budget with a mark below it.`);
  const about = reply.seconds ? `about ${fmt.seconds(Math.max(1, reply.seconds))}` : '';
  return h('div', {class: 'kv-tools'},
    h('button', {class: 'kv-button kv-primary', id: 'kv-find-cause',
      onclick: () => startJob('find_cause', {run: S.run, sel: S.sel}, line)},
    reply.stopped ? 'Go on' : 'Find the cause'),
    h('span', {class: 'kv-muted'}, [about, S.meta.origin === 'own' ? '' : 'loads the model first',
      'Stop keeps what is done'].filter(Boolean).join(' · ')));
}

const known = reply => reply.known.length ? h('p', {class: 'kv-guide'}, 'Known here: ',
  reply.known.map(k => [button(k.words, () => choose({a: k.method, budget: k.share}, 'cause'), 'kv-small'),
    ' '])) : null;

const dots = ([words, found]) => h('p', {class: 'kv-places'}, h('span', {class: 'kv-place-row', role: 'img',
  'aria-label': `random sets ${words}: ${found.filter(Boolean).length} of ${found.length} return the answer`},
h('span', {class: 'kv-muted'}, `${found.length} random sets, ${words}`), ' ',
found.map(hit => h('i', {class: hit ? 'kv-dot kv-hit' : 'kv-dot'}))));

function topWords(reply) {
  const way = reply.tops[LOOK.direction];
  const one = t => h('li', {}, h('button', {class: 'kv-word', dir: 'auto', onclick: () => choose(t.tok
    ? {tok: t.tok} : {layer: t.layer, head: t.head}, 'cause')}, t.name), h('span', {}, t.words));
  const list = (title, rows) => rows.length
    ? h('div', {}, h('h4', {}, title), h('ol', {class: 'kv-strongest'}, rows.map(one))) : null;
  put(tops, h('div', {class: 'kv-split'}, list('Strongest heads', way.head),
    list('Strongest passages', way.passage)), h('p', {}, reply.add_up));
}

const barWords = p => Array.isArray(p.customdata) ? p.customdata[p.customdata.length - 1]
  : typeof p.customdata === 'string' ? p.customdata : '';

function headRect() {
  const {layer, head} = S.sel;
  if (!isOne(layer)) return [];
  const [from, to] = isOne(head) ? [head, head + 1] : [0, S.meta.model.kv_heads];
  return [{x0: from - 0.5, x1: to - 0.5, y0: layer - 0.5, y1: layer + 0.5}];
}

function rescueWords(p, panel) {
  const {rows} = panel.plot.spec?.layout.meta || {};
  const tok = t => `token ${t} “${shown(textOf([t, t + 1]))}”`;
  if (Array.isArray(p.customdata) && !Array.isArray(p.pointNumber)) {
    return `put back: ${rows[p.customdata[0]]}, ${tok(p.customdata[1])}`;
  }
  if (p.pointNumber?.length !== 2) return '';
  const {cells} = panel.plot.spec.layout.meta, heat = panel.plot.spec.data[0];
  const first = cells.x0 + p.pointNumber[1] * cells.size;
  const span = [first, Math.min(cells.x1, first + cells.size)];
  heat.flat ||= typed({...heat.customdata, shape: ''});
  const width = Number(String(heat.customdata.shape).split(',')[1]);
  const kept = heat.flat[(p.pointNumber[0] * width + p.pointNumber[1]) * cells.channels.length];
  return `${rows[p.pointNumber[0]]}, ${spanName(span)} “${shown(textOf(span), 24)}”: kept ${kept} of `
    + `${span[1] - span[0]}`;
}

export function buildCause() {
  const reads = ['run', 'budget', 'a'], tab = 'cause';
  const way = h('div', {class: 'kv-tools', role: 'radiogroup', 'aria-label': 'Direction'},
    WAYS.map(([id, name]) =>
    h('label', {class: 'kv-check'}, h('input', {type: 'radio', name: 'kv-direction', value: id,
      id: `kv-way-${id}`, checked: id === LOOK.direction,
      onchange() { LOOK.direction = id; touch(['direction']); }}), name)));
  // Asked for in the order in which they stand: the words, then what is in sight first.
  addView({id: 'cause', tab, el: intro, reads: [...reads, 'direction'], async refresh() {
    const reply = await ask('cause');
    if (reply.lost) return;
    const found = !reply.error && reply.found;
    for (const box of [each, rescued, agreed, rescueBox]) box.hidden = !found;
    for (const box of [would, holding, mapFold]) box.hidden = reply.error || !reply.would;
    if (reply.error) { put(intro, reply.error); return; }
    if (!found) {
      put(intro, h('p', {},
        `What did ${reply.name} lose that the answer needed? Each head's and each passage's `
        + 'lost entries are put back one by one, and taken out of the whole cache; '
        + 'then the fewest entries that '
        + 'return the answer are searched, beside 20 random sets.'), known(reply), finder(reply));
      return;
    }
    rescued.hidden = rescueBox.hidden = !reply.rescue;
    put(intro, reply.rescue ? h('p', {class: 'kv-try-sentence'}, reply.rescue) : null, h('p', {}, reply.gap),
      reply.notes.map(note => h('p', {class: 'kv-guide'}, note)),
      h('p', {class: 'kv-guide'}, `${reply.name}: ${reply.cost}.`), reply.stopped ? finder(reply) : null);
    put(rescueBox, reply.details.map(words => h('p', {}, words)), reply.controls.map(dots),
      h('p', {class: 'kv-guide'}, '● returns the answer ○ does not'));
    put(wouldBox, h('p', {}, reply.would_words),
      reply.would_notes.map(note => h('p', {class: 'kv-guide'}, note)));
    topWords(reply);
  }});
  const panel = (id, title, height, reads, more) => new Panel({id: `cause-${id}`, title, tab, height, reads,
    view: `cause_${id}`, whenNear: true, ...more});
  const rescue = panel('rescue', 'The entries that return the answer', 220, reads, {
    args: () => ({columns: rescue.plot.pixels() || 300}),
    onHover: p => rescueWords(p, rescue),
    onPick: p => {
      const at = rescue.plot.spec.layout.meta.heads;
      if (Array.isArray(p.customdata) && !Array.isArray(p.pointNumber)) {
        const [row, t] = p.customdata;
        choose({layer: at[row][0], head: at[row][1], tok: [t, t + 1]}, 'cause');
      }
    }});
  rescue.plot.sides = 90;
  const heads = panel('heads', 'Heads', 400, [...reads, 'direction'], {
    args: () => ({direction: LOOK.direction}), onHover: barWords, mark: headRect,
    onPick: p => p.pointNumber?.length === 2
      && choose({layer: p.pointNumber[0], head: p.pointNumber[1]}, 'cause')});
  const unit = chooser('Dots are', [['head', 'KV heads'], ['passage', 'passages']], 'head',
    v => { LOOK.unit = v; touch(['unit']); }, {id: 'kv-cause-unit'});
  const scatter = panel('scatter', 'Put back against taken out', 400, [...reads, 'unit'], {
    args: () => ({unit: LOOK.unit}), tools: [unit], onHover: barWords,
    onPick: p => Array.isArray(p.customdata) && choose(LOOK.unit === 'head'
      ? {layer: p.customdata[0], head: p.customdata[1]} : {tok: p.customdata.slice(0, 2)}, 'cause')});
  const bars = panel('passages', 'Passages', 280, [...reads, 'direction'], {
    args: () => ({direction: LOOK.direction}), onHover: barWords,
    onPick: p => Array.isArray(p.customdata) && choose({tok: p.customdata.slice(0, 2)}, 'cause'),
    mark: () => S.sel.tok ? [{x0: S.sel.tok[0] - 0.5, x1: S.sel.tok[1] - 0.5, y0: 0, y1: 1,
      yref: 'paper'}] : []});
  const agree = panel('agreement', 'Does each method keep what matters?', 220, [...reads, 'b'],
    {onHover: barWords});
  const held = panel('held', 'Who holds the cache that would do', 220, [...reads, 'b'], {onHover: barWords});
  const map = panel('map', 'Found by search', 400, ['run'],
    {args: () => ({columns: map.plot.pixels() || 300})});
  map.plot.sides = 90;
  const each = h('div', {}, way, tops, h('div', {class: 'kv-split'}, heads.el, scatter.el), bars.el);
  const rescued = h('div', {}, rescue.el);
  const agreed = h('div', {}, agree.el), holding = h('div', {}, held.el);
  const mapFold = h('details', {class: 'kv-more', id: 'kv-cause-found'},
    h('summary', {}, 'Which entries the cache that would do holds'), map.el);
  const would = h('div', {}, h('h3', {class: 'kv-panel-title'}, 'The cache that would do'), wouldBox);
  const beside = h('div', {class: 'kv-split'}, holding, agreed);
  return [intro, line, rescueBox, rescued, each, would, beside, mapFold];
}
