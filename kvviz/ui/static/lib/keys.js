// Keyboard in figures: arrows move a cursor over cells or dots, Enter selects, Esc clears.
import {typed} from './format.js';
import {S, choose} from './state.js';

const MOVES = {ArrowLeft: {dx: -1}, ArrowRight: {dx: 1}, ArrowUp: {dy: -1}, ArrowDown: {dy: 1},
  Home: {col: 0}, End: {col: -1}};
const between = (low, value, high) => Math.max(low, Math.min(high, value));

export function keys(plot) {
  let at = null;  // {trace, row, col} in a heatmap, {trace, index} in a scatter
  let here = null;

  const traces = () => (plot.host._fullData || []);
  const grid = () => traces().findIndex(t => t.type === 'heatmap');
  const dots = () => traces().flatMap((t, trace) => t.type.startsWith('scatter')
    && /markers/.test(t.mode || '')
    ? Array.from(t.x || [], (x, index) => ({trace, index, x: Number(x), y: t.y[index]})) : [])
    .filter(dot => dot.y !== null && !Number.isNaN(dot.x)).sort((p, q) => p.x - q.x);

  function cell(step) {
    const index = grid(), t = traces()[index], z = t._input?.z ? typed(t._input.z) : t.z;
    const rows = z.length, cols = z[0].length;
    at = at && at.trace === index ? at : {trace: index, row: 0, col: 0};
    at.row = between(0, at.row + (step.dy || 0), rows - 1);
    at.col = step.col === undefined ? between(0, at.col + (step.dx || 0), cols - 1) : step.col < 0 ? cols - 1
      : 0;
    const axis = (values, start, gap, i) => values && values.length ? values[i]
      : (start || 0) + (gap || 1) * i;
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
    i = between(0, i, all.length - 1);
    at = {trace: all[i].trace, index: all[i].index};
    const t = traces()[at.trace], custom = t.customdata;
    return {x: t.x[at.index], y: t.y[at.index], pointNumber: at.index, curveNumber: at.trace, data: t,
      text: Array.isArray(t.text) ? t.text[at.index] : t.text,
      customdata: custom ? custom[at.index] : undefined};
  }

  function move(step, by) {
    const [dx, dy] = [(step.dx || 0) * by, (step.dy || 0) * by];
    here = grid() >= 0 ? cell({...step, dx, dy}) : dot(dx || dy || (step.col === 0 ? -1e9 : 1e9));
    if (here && plot.onHover) plot.onHover(here);
  }

  function nextMark() {
    const marks = S.meta?.marks || [];
    if (!marks.length) return;
    const now = marks.findIndex(m => S.sel.tok && m.start === S.sel.tok[0]);
    const next = marks[(now + 1) % marks.length];
    choose({tok: [next.start, next.end]}, plot.name);
  }

  function nextDifference() {
    const next = S.codes?.nextDifference(S.sel.tok ? S.sel.tok[1] : 0);
    if (next !== undefined) choose({tok: [next, next + 1]}, plot.name);
  }

  function clear() {
    choose({tok: null, layer: null, head: null}, plot.name);
    plot.onReset?.();
  }

  plot.el.addEventListener('keydown', event => {
    if (!plot.wired || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key in MOVES) move(MOVES[key], event.shiftKey ? 10 : 1);
    else if (key === 'Enter' && here) plot.pick(here);
    else if (plot.apart) return;
    else if (key === 'm') nextMark();
    else if (key === 'd') nextDifference();
    else if (key === 'Escape') clear();
    else if ((key === '+' || key === '-') && plot.onStep) plot.onStep(key === '+' ? 0.5 : 2);
    else return;
    event.preventDefault();
  });
}
