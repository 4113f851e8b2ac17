// The cells of a map on a canvas, at once: they stand where the figure will, until plotly.js has been read.
import {h, put} from './dom.js';
import {typed} from './format.js';
import {resolve} from './plotly.js';

const TOP = 10, BOTTOM = 44;  // px, as the figure's own margins will be

// Shown in `box`, which lies over the figure, where this is a map.
export function sketch(box, {data: [heat], layout}) {
  if (heat?.type !== 'heatmap' || !heat.z?.bdata) return;
  const [rows, columns] = heat.z.shape.split(',').map(Number), codes = typed({...heat.z, shape: ''});
  const {margin: {l, r}, yaxis: {range: [first, last], domain: [low, high] = [0, 1]}} = layout;
  const room = box.clientHeight - TOP - BOTTOM, width = box.clientWidth - l - r;
  const canvas = h('canvas', {class: 'kv-sketch', width: columns, height: rows,
    style: `left:${l}px;width:${width}px;top:${TOP + (1 - high) * room}px;height:${(high - low) * room}px`});
  const ink = canvas.getContext('2d'), shades = {};
  const shade = code => {
    const value = (code - heat.zmin) / (heat.zmax - heat.zmin);
    return resolve(heat.colorscale.filter(([from]) => from <= value).pop()[1]);
  };
  codes.forEach((code, i) => {
    const row = Math.floor(i / columns);
    ink.fillStyle = shades[code] ??= shade(code);
    ink.fillRect(i % columns, first > last ? row : rows - 1 - row, 1, 1);
  });
  put(box, canvas);
}
