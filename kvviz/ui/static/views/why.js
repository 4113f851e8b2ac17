// Attention against effect for one head, and why one token was kept or dropped.
import {chooser, h, put} from '../lib/dom.js';
import {shown} from '../lib/format.js';
import {Panel} from '../lib/panel.js';
import {LOOK, S, addView, choose, textOf, touch} from '../lib/state.js';
import {fillCard, whyCard} from './why_card.js';

const whyShown = h('span', {class: 'kv-muted', id: 'kv-why-shown'});
const READS = ['run', 'a', 'b', 'budget', 'layer', 'head', 'tok'];
let shownHead = [0, 0];  // [layer, KV head] of the figure

function axisChooser(name, key, first) {
  const box = chooser(name, [[first, first]], first, v => { LOOK[key] = v; touch(['axes']); },
    {title: `${name} axis`});
  box.select.classList.add('kv-axis');
  return box;
}

function stepper() {
  const step = (key, by) => () => {
    const m = S.meta.model, [layer, head] = shownHead;
    const [count, now] = key === 'layer' ? [m.layers, layer] : [m.kv_heads, head];
    choose({layer, head, [key]: (now + by + count) % count}, 'why');
  };
  const button = (text, title, fn) =>
    h('button', {class: 'kv-button kv-small', title, 'aria-label': title, onclick: fn}, text);
  return h('span', {class: 'kv-check'}, 'Layer', button('‹', 'Previous layer', step('layer', -1)),
    button('›', 'Next layer', step('layer', 1)), 'KV head', button('‹', 'Previous KV head', step('head', -1)),
    button('›', 'Next KV head', step('head', 1)), whyShown);
}

const tokenAt = p => Number.isInteger(p.customdata) && !p.data?.type?.includes('heatmap') ? p.customdata
  : null;

function dotWords(p) {
  const t = tokenAt(p);
  return t === null ? '' : [`token ${t} “${shown(textOf([t, t + 1]))}”`,
    S.codes?.words(t)].filter(Boolean).join(' · ');
}

// [nodes beside the document, nodes below both].
export function buildWhy() {
  const x = axisChooser('Across', 'x', ''), y = axisChooser('Up', 'y', 'effect');
  const check = (text, key, value) => h('label', {class: 'kv-check'}, h('input', {type: 'checkbox',
    onchange: event => { LOOK[key] = event.target.checked === value; touch(['axes']); }}), text);
  const line = h('p', {class: 'kv-guide', id: 'kv-why-line'});
  const after = reply => {
    shownHead = reply.shown;
    put(whyShown, `${reply.default ? 'shown: ' : ''}layer ${reply.shown[0]}, KV head ${reply.shown[1]}`
      + (reply.default ? ' (largest difference)' : ''));
    x.select.fill(reply.axes, reply.x);
    y.select.fill(reply.axes, reply.y);
    put(line, [reply.line && reply.line[0].toUpperCase() + reply.line.slice(1),
      reply.remark].filter(Boolean).join(' · '));
  };
  const dots = new Panel({id: 'why', title: 'Attention against effect', view: 'why', tab: 'why', height: 480,
    reads: [...READS, 'axes'], args: () => ({x: LOOK.x, y: LOOK.y, sinks: LOOK.sinks, ranks: !!LOOK.ranks}),
    onHover: dotWords, after,
    onPick: p => { const t = tokenAt(p); if (t !== null) choose({tok: [t, t + 1]}, 'why'); }});
  const mini = new Panel({id: 'why-mini', title: 'Who holds this token', view: 'why_mini', tab: 'why',
    height: 260, reads: READS,
    onHover: p => p.pointNumber ? `layer ${p.pointNumber[0]}, KV head ${p.pointNumber[1]}` : '',
    onPick: p => p.pointNumber?.length === 2
      && choose({layer: p.pointNumber[0], head: p.pointNumber[1]}, 'why')});
  document.addEventListener('kv:text', () => touch(['card']));  // its words come from the text
  addView({id: 'why-card', tab: 'why', el: whyCard, reads: [...READS, 'card'], refresh: fillCard});
  return [[h('div', {class: 'kv-tools'}, stepper()), h('div', {class: 'kv-tools'}, x, y,
    check('Without first 4 tokens', 'sinks', false), check('Rank axes', 'ranks', true)), dots.el, line],
  [h('div', {class: 'kv-card-and-map'}, whyCard, mini.el)]];
}
