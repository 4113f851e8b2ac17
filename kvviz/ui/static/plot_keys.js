// Keyboard in figures: arrows move a cursor over cells or dots, Enter selects, Esc clears.
function keys(plot) {
  let at = null;  // {trace, row, col} in a heatmap, {trace, index} in a scatter

  const traces = () => (plot.host._fullData || []);
  const grid = () => traces().findIndex(t => t.type === 'heatmap');
  const dots = () => traces().flatMap((t, trace) => t.type.startsWith('scatter') && /markers/.test(t.mode || '')
    ? Array.from(t.x || [], (x, index) => ({trace, index, x: Number(x), y: t.y[index]})) : [])
    .filter(dot => dot.y !== null && !Number.isNaN(dot.x)).sort((p, q) => p.x - q.x);

  function cell(step) {
    const index = grid(), t = traces()[index], z = t._input?.z ? typed(t._input.z) : t.z;
    const rows = z.length, cols = z[0].length;
    at = at && at.trace === index ? at : {trace: index, row: 0, col: 0};
    at.row = Math.max(0, Math.min(rows - 1, step.row === undefined ? at.row + (step.dy || 0) : step.row));
    at.col = Math.max(0, Math.min(cols - 1, step.col === undefined ? at.col + (step.dx || 0)
      : step.col < 0 ? cols - 1 : step.col));
    const axis = (values, start, gap, i) => values && values.length ? values[i] : (start || 0) + (gap || 1) * i;
    const custom = t.customdata ? typed(t.customdata) : null;
    return {x: axis(t.x && typed(t.x), t.x0, t.dx, at.col), y: axis(t.y && typed(t.y), t.y0, t.dy, at.row),
      z: z[at.row][at.col], pointNumber: [at.row, at.col], data: t, curveNumber: index,
      xaxis: t.xaxis, yaxis: t.yaxis, customdata: custom?.[at.row]?.[at.col]};
  }

  function dot(step) {
    const all = dots();
    if (!all.length) return null;
    let i = at && at.index !== undefined
      ? all.findIndex(d => d.trace === at.trace && d.index === at.index) + step : 0;
    i = Math.max(0, Math.min(all.length - 1, i));
    at = {trace: all[i].trace, index: all[i].index};
    const t = traces()[at.trace], custom = t.customdata;
    return {x: t.x[at.index], y: t.y[at.index], pointNumber: at.index, curveNumber: at.trace, data: t,
      text: Array.isArray(t.text) ? t.text[at.index] : t.text,
      customdata: custom ? custom[at.index] : undefined};
  }

  let here = null;
  plot.el.addEventListener('keydown', event => {
    if (!plot.wired) return;
    const by = event.shiftKey ? 10 : 1, map = grid() >= 0;
    const moves = {ArrowLeft: {dx: -by}, ArrowRight: {dx: by}, ArrowUp: {dy: -by}, ArrowDown: {dy: by},
      Home: {col: 0}, End: {col: -1}};
    if (event.key in moves) {
      const step = moves[event.key];
      if (map && grid() >= 0 && plot.upsideDown) step.dy = -(step.dy || 0);
      here = map ? cell(step) : dot(step.dx || step.dy || (step.col === 0 ? -1e9 : 1e9));
    } else if (event.key === 'm' || event.key === 'M') {
      const marks = S.meta?.marks || [];
      if (!marks.length) return;
      const now = marks.findIndex(m => S.sel.tok && m.start === S.sel.tok[0]);
      const next = marks[(now + 1) % marks.length];
      choose({tok: [next.start, next.end]}, plot.name);
      event.preventDefault();
      return;
    } else if ((event.key === 'd' || event.key === 'D') && codes?.reply.by === 'ab') {
      const line = codes.reply.codes, from = S.sel.tok ? S.sel.tok[1] : 0;
      const next = [...Array(S.meta.n).keys()].map(i => (from + i) % S.meta.n).find(t => line.charCodeAt(t) - 48 >= 2);
      if (next !== undefined) choose({tok: [next, next + 1]}, plot.name);
      event.preventDefault();
      return;
    } else if (event.key === 'Enter' && here) plot.pick(here);
    else if (event.key === 'Escape') { choose({tok: null, layer: null, head: null}, plot.name); plot.onReset && plot.onReset(); }
    else if ((event.key === '+' || event.key === '-') && plot.onStep) plot.onStep(event.key === '+' ? 0.5 : 2);
    else return;
    event.preventDefault();
    if (here && plot.onHover && event.key in moves) { plot.onHover(here); plot.cursor?.(here); }
  });
}
