// The legend of a figure as words below it, each with a drawing of its trace's own sign.
import {h} from './dom.js';
import {plainTitle} from './format.js';
import {css} from './plotly.js';

const SHAPES = {square: 'M3 1H15V13H3Z', 'triangle-up': 'M9 1.5 15 12.5H3Z',
  'triangle-down': 'M9 12.5 15 1.5H3Z',
  diamond: 'M9 0.5 15.5 7 9 13.5 2.5 7Z',
  x: 'M5 2 9 5.5 13 2 14 3 10.5 7 14 11 13 12 9 8.5 5 12 4 11 7.5 7 4 3Z',
  star: 'M9 1 10.8 5.2 15.3 5.5 11.8 8.4 13 13 9 10.5 5 13 6.2 8.4 2.7 5.5 7.2 5.2Z',
  circle: 'M9 2a5 5 0 1 0 .01 0Z'};
const DASHES = {dot: '2 2', dash: '5 3', dashdot: '5 2 2 2'};
const first = value => Array.isArray(value) ? value[0] : value;

function svg(tag, attrs) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attrs)) node.setAttribute(k, v);
  return node;
}

export function legendKey(trace) {
  const box = svg('svg', {width: 18, height: 14, 'aria-hidden': 'true'});
  const m = trace.marker || {}, symbol = String(first(m.symbol) || 'circle');
  const tone = first(m.color) || trace.line?.color || css('muted');
  const edge = m.line?.color && typeof m.line.color === 'string' ? m.line.color : tone;
  const open = symbol.endsWith('-open');
  const paint = {fill: open ? 'none' : tone, stroke: open ? tone : edge, 'stroke-width': open ? 1.5 : 1};
  if (trace.fill === 'toself') {
    const fill = trace.fillcolor || trace.fillpattern?.bgcolor || tone, line = trace.fillpattern?.fgcolor
      || css('muted');
    box.append(svg('path', {d: SHAPES.square, fill, stroke: css('muted')}));
    if (trace.fillpattern?.shape === '.') {
      for (const x of [6, 12]) box.append(svg('circle', {cx: x, cy: 7, r: 1.3, fill: line}));
    } else if (trace.fillpattern) {
      box.append(svg('path', {d: 'M3 7 9 1M3 13 15 1M9 13 15 7', stroke: line, 'stroke-width': 1.2}));
    }
  } else {
    if (/lines/.test(trace.mode || '')) {
      box.append(svg('line', {x1: 0, x2: 18, y1: 7, y2: 7, stroke: trace.line?.color || tone,
        'stroke-width': Math.min(3, trace.line?.width || 2), 'stroke-dasharray': DASHES[trace.line?.dash]
          || ''}));
    }
    if (/markers/.test(trace.mode || '') || trace.type === 'bar') {
      box.append(svg('path', {d: SHAPES[symbol.replace('-open', '')] || SHAPES.circle, ...paint}));
    }
  }
  return h('span', {class: 'kv-key'}, box, plainTitle(trace.name));
}

// A colour bar as a strip in the legend: its two ends in words, its steps, what it measures.
export function legendBar(bar, colorscale, words) {
  const ends = bar.ticktext || [];
  const stepped = colorscale.length > 2
    && colorscale.every(([at], i) => i === 0 || i % 2 === 0 || i === colorscale.length - 1
    || Math.abs(at - (colorscale[i + 1]?.[0] ?? at)) < 1e-6);
  const tones = stepped ? colorscale.filter((_, i) => i % 2 === 0).map(([, tone]) => tone) : null;
  const strip = tones ? h('span', {class: 'kv-strip-bar'},
    tones.map(tone => h('i', {style: `background:${tone}`})))
    : h('span', {class: 'kv-strip-bar'}, h('i', {class: 'kv-ramp', style:
      `background:linear-gradient(90deg, ${colorscale.map(([at, tone]) =>
        `${tone} ${100 * at}%`).join(', ')})`}));
  const name = words || plainTitle(bar.title?.text);
  return h('span', {class: 'kv-key'}, plainTitle(ends[0]), strip, plainTitle(ends[ends.length - 1]), name
    ? ` · ${name}` : '');
}
