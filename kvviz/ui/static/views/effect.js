// How much each head's output changed, A beside B and head by head.
import {h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {Panel} from '../lib/panel.js';
import {S, choose, isOne} from '../lib/state.js';

const groupSize = () => S.meta.model.query_heads / S.meta.model.kv_heads;
const kvHead = head => Math.floor(head / groupSize());
const pick = (layer, head) => choose({layer, head: kvHead(head)}, 'effect');

function mapWords(p) {
  if (p.pointNumber?.length !== 2) return '';
  const [layer, head] = p.pointNumber, v = typeof p.customdata === 'number' ? p.customdata : null;
  const value = v === null ? '' : v < 0 ? ': no value' : `: ${fmt.error(v)} relative change`;
  return `layer ${layer}, query head ${head} (KV head ${kvHead(head)})${value}`;
}

function dotWords(p) {
  const at = p.customdata;
  if (!Array.isArray(at) && !ArrayBuffer.isView(at)) return '';
  return `layer ${at[0]}, query head ${at[1]} (KV head ${at[2]}): `
    + `A ${fmt.error(at[3])}, B ${fmt.error(at[4])}`;
}

function headRect() {
  const {layer, head} = S.sel, group = groupSize();
  if (!isOne(layer)) return [];
  const [from, to] = isOne(head) ? [head * group, (head + 1) * group] : [0, S.meta.model.query_heads];
  return [{x0: from - 0.5, x1: to - 0.5, y0: layer - 0.5, y1: layer + 0.5}];
}

// [nodes beside the document, nodes below both].
export function buildEffect() {
  const line = h('p', {class: 'kv-guide'});
  const after = reply => put(line,
    [reply.queries && `Measured ${reply.queries}`, reply.compared].filter(Boolean).join(' · '));
  const common = {tab: 'effect', reads: ['run', 'budget', 'a', 'b'], after};
  const map = side => new Panel({...common, id: `effect-${side}`,
    title: 'How much each head\'s output changed',
    view: 'effect_map', height: 380, args: () => ({side}), needsB: side === 'b', onHover: mapWords,
    onPick: p => p.pointNumber?.length === 2 && pick(...p.pointNumber), mark: headRect});
  const dots = new Panel({...common, id: 'effect-dots', title: 'Error per head: A against B',
    view: 'effect_scatter',
    height: 420, needsB: true, onHover: dotWords,
    onPick: p => p.customdata && choose({layer: p.customdata[0], head: p.customdata[2]}, 'effect')});
  const layers = new Panel({...common, id: 'effect-layers', title: 'Error per layer, heads summed',
    view: 'effect_layers',
    height: 300, onHover: p => `layer ${p.x}: ${fmt.error(Number(p.y) / 100)} change`,
    onPick: p => choose({layer: Math.round(p.x)}, 'effect')});
  return [[line, h('div', {class: 'kv-split'}, map('a').el, map('b').el), dots.el], [layers.el]];
}
