// How much each head's output changed, A beside B and head by head.
function buildEffect() {
  const words = p => {
    if (p.pointNumber?.length !== 2) return '';
    const group = S.meta.model.query_heads / S.meta.model.kv_heads, [layer, head] = p.pointNumber;
    const v = typeof p.customdata === 'number' ? p.customdata : null;
    return `layer ${layer}, query head ${head} (KV head ${Math.floor(head / group)})`
      + (v === null ? '' : v < 0 ? ': no value' : `: ${fmt.error(v)} relative change`);
  };
  const pick = (layer, head) => choose({layer, head: Math.floor(head * S.meta.model.kv_heads / S.meta.model.query_heads)}, 'effect');
  const map = side => new Panel({id: `effect-${side}`, title: `How much each head's output changed`, view: 'effect_map', tab: 'effect',
    height: 380, reads: ['run', 'budget', 'a', 'b'], args: () => ({side}), needsB: side === 'b', onHover: words,
    onPick: p => p.pointNumber?.length === 2 && pick(...p.pointNumber), after: note,
    mark: () => S.sel.layer === null || S.sel.layer === undefined ? [] : [headRect()]});
  const headRect = () => {
    const {layer, head} = S.sel, group = S.meta.model.query_heads / S.meta.model.kv_heads;
    const [from, to] = head === null || head === undefined ? [0, S.meta.model.query_heads] : [head * group, (head + 1) * group];
    return {x0: from - 0.5, x1: to - 0.5, y0: layer - 0.5, y1: layer + 0.5};
  };
  const line = h('p', {class: 'kv-guide'});
  const note = reply => put(line, [reply.queries && `Measured ${reply.queries}`, reply.compared].filter(Boolean).join(' · '));
  const dots = new Panel({id: 'effect-dots', title: 'Error per head: A against B', view: 'effect_scatter', tab: 'effect', height: 420,
    reads: ['run', 'budget', 'a', 'b'], needsB: true, after: note,
    onHover: p => Array.isArray(p.customdata) || ArrayBuffer.isView(p.customdata)
      ? `layer ${p.customdata[0]}, query head ${p.customdata[1]} (KV head ${p.customdata[2]}): A ${fmt.error(10 ** p.x)}, B ${fmt.error(10 ** p.y)}` : '',
    onPick: p => p.customdata && choose({layer: p.customdata[0], head: p.customdata[2]}, 'effect')});
  const layers = new Panel({id: 'effect-layers', title: 'Error per layer, heads summed', view: 'effect_layers', tab: 'effect', height: 300,
    reads: ['run', 'budget', 'a', 'b'], onHover: p => `layer ${p.x}: ${Number(p.y).toPrecision(2)}% change`,
    onPick: p => choose({layer: Math.round(p.x)}, 'effect')});
  return [line, h('div', {class: 'kv-split'}, map('a').el, map('b').el), dots.el, layers.el];
}

fmt.error = v => v > 10 ? '>1,000%' : v < 0.02 ? `${(100 * v).toPrecision(2)}%` : `${fmt.count(100 * v)}%`;
