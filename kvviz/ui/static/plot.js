// An owned plot: a <div> that plotly.js draws into. Figures name colour roles ("role:kept"); they are
// resolved from CSS variables here, and again when the theme changes.
const plotlyUrl = (window.gradio_config?.root || '').replace(/\/$/, '') + props.plotly_url;
let plotlyPromise = null;
function plotly() {  // evaluated with a private `module`, so no other plotly.js on the page can interfere
  plotlyPromise ??= Promise.resolve(window.kvPlotly).then(early => early || fetch(plotlyUrl).then(reply => {
    if (!reply.ok) throw new Error('plotly.js is missing');
    return reply.text();
  })).then(source => {
    const m = {exports: {}};
    new Function('module', 'exports', source)(m, m.exports);
    return m.exports;
  });
  return plotlyPromise;
}

const css = name => getComputedStyle(app).getPropertyValue(`--kv-${name}`).trim();

// "role:kept" is the colour; "role:kept/0.4" the colour at 40% opacity.
function colour(text) {
  const [name, alpha] = text.slice(5).split('/');
  const value = css(name) || css('muted');
  if (!alpha) return value;
  const hex = value.replace('#', ''), part = at => parseInt(hex.slice(at, at + 2), 16);
  return `rgba(${part(0)},${part(2)},${part(4)},${alpha})`;
}

function resolve(value) {
  if (typeof value === 'string') return value.startsWith('role:') ? colour(value) : value;
  if (Array.isArray(value)) {
    return value.length && typeof value[0] === 'number' && value.length > 32 ? value : value.map(resolve);
  }
  if (value && typeof value === 'object') {
    if (value.bdata) return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolve(v)]));
  }
  return value;
}

// One legend entry as an inline drawing of the trace's own sign, and its name.
function legendKey(trace) {
  const svg = (tag, attrs) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [k, v] of Object.entries(attrs)) node.setAttribute(k, v);
    return node;
  };
  const box = svg('svg', {width: 18, height: 14, 'aria-hidden': 'true'});
  const m = trace.marker || {}, symbol = String(Array.isArray(m.symbol) ? m.symbol[0] : m.symbol || 'circle');
  const tone = Array.isArray(m.color) ? m.color[0] : m.color || trace.line?.color || css('muted');
  const edge = m.line?.color && typeof m.line.color === 'string' ? m.line.color : tone;
  const open = symbol.endsWith('-open'), paint = {fill: open ? 'none' : tone, stroke: open ? tone : edge, 'stroke-width': open ? 1.5 : 1};
  const shapes = {square: 'M3 1H15V13H3Z', 'triangle-up': 'M9 1.5 15 12.5H3Z', 'triangle-down': 'M9 12.5 15 1.5H3Z',
    diamond: 'M9 0.5 15.5 7 9 13.5 2.5 7Z', circle: 'M9 2a5 5 0 1 0 .01 0Z'};
  if (trace.fill === 'toself') {
    box.append(svg('path', {d: shapes.square, fill: trace.fillcolor || trace.fillpattern?.bgcolor || tone, stroke: css('muted')}));
    const line = trace.fillpattern?.fgcolor || css('muted');
    if (trace.fillpattern?.shape === '.') for (const x of [6, 12]) box.append(svg('circle', {cx: x, cy: 7, r: 1.3, fill: line}));
    else box.append(svg('path', {d: 'M3 7 9 1M3 13 15 1M9 13 15 7', stroke: line, 'stroke-width': 1.2}));
  } else {
    if (/lines/.test(trace.mode || '')) {
      box.append(svg('line', {x1: 0, x2: 18, y1: 7, y2: 7, stroke: trace.line?.color || tone, 'stroke-width': Math.min(3, trace.line?.width || 2),
        'stroke-dasharray': {dot: '2 2', dash: '5 3', dashdot: '5 2 2 2'}[trace.line?.dash] || ''}));
    }
    if (/markers/.test(trace.mode || '') || trace.type === 'bar') box.append(svg('path', {d: shapes[symbol.replace('-open', '')] || shapes.circle, ...paint}));
  }
  return h('span', {class: 'kv-key'}, box, plainTitle(trace.name));
}

const plots = new Set();

class Plot {
  constructor({height, name, onPick, onBox, onZoom, onHover, onReset, narrow}) {
    Object.assign(this, {name, onPick, onBox, onZoom, onHover, onReset, narrow, spec: null, extra: []});
    this.host = h('div', {class: 'kv-plot', style: `height:${height}px`});
    this.el = h('div', {class: 'kv-plot-box', tabindex: 0, role: 'application',
      'aria-roledescription': 'figure', 'aria-label': name}, this.host);
    this.legend = h('div', {class: 'kv-legend kv-fig-legend'});
    this.quiet = 0;
    plots.add(this);
    keys(this);
    new ResizeObserver(() => this.fit()).observe(this.host);
  }

  async draw(text) {
    this.spec = typeof text === 'string' ? JSON.parse(text) : text;
    await this.paint();
  }

  async paint() {
    if (!this.spec || !this.host.isConnected || !this.host.clientWidth) return;
    const Plotly = await plotly();
    const {data, layout} = resolve({data: this.spec.data, layout: this.spec.layout});
    this.base = layout.shapes || [];
    const title = layout.title;
    delete layout.title;  // it stands above the figure; images get it back
    this.forImage = {title, margin: {...layout.margin}};
    layout.margin = {...layout.margin, t: 10, b: Math.min(44, layout.margin?.b ?? 44)};
    layout.selections = [];
    layout.selectdirection = 'h';
    const small = window.innerWidth < 700;
    Object.assign(layout, {
      autosize: true, uirevision: this.revision || 'kept', height: this.host.clientHeight,
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: layout.plot_bgcolor || 'rgba(0,0,0,0)',
      dragmode: small ? false : layout.dragmode || (this.onBox ? 'select' : 'zoom'),
      font: {size: 12, ...layout.font, color: css('text'), family: 'system-ui, sans-serif'},
      hoverlabel: {bgcolor: css('page'), bordercolor: css('muted'), font: {color: css('text')}},
      shapes: [...this.base, ...this.marks()],
    });
    this.forImage.showlegend = layout.showlegend;
    layout.showlegend = false;  // it stands below the figure; images get it back
    put(this.legend, data.filter(t => t.showlegend && t.name).map(legendKey), this.barBelow ? this.lowerBar(data, layout) : null);
    this.trimBars(data, layout);
    this.wrapTitles(layout);
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      axis.gridcolor ??= css('grid');
      axis.linecolor ??= css('grid');
      axis.zerolinecolor ??= css('grid');
      if (this.narrow && small) axis.title = undefined;
    }
    this.quiet += 1;
    await Plotly.react(this.host, data, layout,
      {displayModeBar: false, responsive: false, doubleClick: this.onReset ? false : 'reset',
        scrollZoom: false, ...this.spec.config});
    this.quiet -= 1;
    this.el.setAttribute('aria-label', layout.meta?.summary || this.name);
    this.el.dataset.drawn = String(Number(this.el.dataset.drawn || 0) + 1);
    if (!this.wired) this.wire(Plotly);
  }

  // The colour bar as a strip in the legend below, which leaves the map its whole width.
  lowerBar(data, layout) {
    const trace = data.find(t => t.marker?.colorbar), bar = trace?.marker.colorbar;
    if (!bar) return null;
    trace.marker = {...trace.marker, showscale: false};
    layout.margin.r = 16;
    const ends = bar.ticktext || [], tones = trace.marker.colorscale.filter((_, i) => i % 2 === 0).map(([, tone]) => tone);
    return h('span', {class: 'kv-key'}, ends[0], h('span', {class: 'kv-strip-bar'}, tones.map(tone => h('i', {style: `background:${tone}`}))),
      ends[ends.length - 1], ` · ${plainTitle(bar.title?.text)}`);
  }

  // A colour bar without room for its words is left out: the legend below names both ends.
  trimBars(data, layout) {
    const inner = this.host.clientHeight - layout.margin.t - layout.margin.b;
    for (const trace of data) {
      const bar = trace.marker?.colorbar || trace.colorbar;
      if (bar?.title?.text && 6 * bar.title.text.length > inner) bar.title = {...bar.title, text: ''};
      if (bar && (inner < 90 || window.innerWidth < 700)) (trace.marker?.colorbar ? trace.marker : trace).showscale = false;
    }
  }

  // Long axis titles in as many lines as the axis is long.
  wrapTitles(layout) {
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^[xy]axis\d*$/.test(key) || !axis.title?.text) continue;
      const room = key[0] === 'x' ? this.host.clientWidth - 140 : this.host.clientHeight - layout.margin.t - layout.margin.b;
      const most = Math.max(14, Math.floor(room / 6.6));
      const lines = axis.title.text.replace(/<br>/g, ' ').split(' ').reduce((out, word) => {
        const now = out[out.length - 1];
        if (now && (now + word).length + 1 > most) out.push(word); else out[out.length - 1] = now ? `${now} ${word}` : word;
        return out;
      }, ['']);
      axis.title = {...axis.title, text: lines.join('<br>'), standoff: 8};
      if (key[0] === 'x') layout.margin.b += 15 * (lines.length - 1);
    }
  }

  wire(Plotly) {
    this.wired = true;
    const on = (name, fn) => this.host.on(name, fn);
    on('plotly_click', event => this.pick(event.points[0]));
    on('plotly_hover', event => this.onHover && this.onHover(event.points[0]));
    on('plotly_selected', event => {
      if (!event || !event.range || !this.onBox || this.quiet) return;
      const axis = Object.keys(event.range).find(key => key.startsWith('x')) || 'x';
      const {range} = event;
      Plotly.relayout(this.host, {selections: []});
      this.onBox(range[axis], range[axis.replace('x', 'y')]);
    });
    on('plotly_relayout', event => {
      if (this.quiet || !this.onZoom) return;
      const key = Object.keys(event).find(name => /^xaxis\d*\.range\[0\]$/.test(name));
      if (key) this.onZoom(event[key], event[key.replace('[0]', '[1]')]);
    });
    on('plotly_doubleclick', () => this.onReset && this.onReset());
  }

  pick(point) { if (point && this.onPick) this.onPick(point); }

  // Rectangles drawn over the figure: the selection, with a halo in the page colour.
  marks() {
    return this.extra.flatMap(m => [['page', 4], ['text', 2]].map(([role, width]) => ({
      type: 'rect', xref: m.xref || 'x', yref: m.yref || 'y', x0: m.x0, x1: m.x1, y0: m.y0, y1: m.y1,
      line: {color: css(role), width}, fillcolor: 'rgba(0,0,0,0)', layer: 'above'})));
  }

  async mark(extra) {
    if (JSON.stringify(extra) === JSON.stringify(this.extra)) return;
    this.extra = extra;
    if (!this.wired) return;
    const Plotly = await plotly();
    this.quiet += 1;
    await Plotly.relayout(this.host, {shapes: [...this.base, ...this.marks()]});
    this.quiet -= 1;
  }

  async zoom(x0, x1) {
    if (!this.wired) return;
    const Plotly = await plotly();
    await Plotly.relayout(this.host, {'xaxis.range[0]': x0, 'xaxis.range[1]': x1});
  }

  async fit() {
    if (!this.host.clientWidth || !this.spec) return;
    if (!this.wired) { await this.paint(); return; }
    if (this.width === this.host.clientWidth) return;
    this.width = this.host.clientWidth;
    const Plotly = await plotly();
    this.quiet += 1;
    await Plotly.relayout(this.host, {width: this.width, height: this.host.clientHeight});
    this.quiet -= 1;
  }

  async image(format) {
    const Plotly = await plotly();
    const data = this.host.data.map(t => t.marker?.colorbar ? {...t, marker: {...t.marker, showscale: true}} : t);
    const figure = {data, layout: {...this.host.layout, ...this.forImage, width: undefined,
      height: this.host.clientHeight + 30, paper_bgcolor: css('page')}};
    const still = await Plotly.toImage(figure, {format, width: Math.max(900, this.host.clientWidth),
      height: this.host.clientHeight + 30, scale: format === 'png' ? 2 : 1});
    const blob = await (await fetch(still)).blob();
    save(`kvviz-${this.name.toLowerCase().replace(/[^a-z0-9]+/g, '-')}.${format}`, blob);
  }
}

// Figures follow the theme: Gradio sets the class `dark` on the body.
let wasDark = document.body.classList.contains('dark');
new MutationObserver(() => {
  const dark = document.body.classList.contains('dark');
  if (dark === wasDark) return;
  wasDark = dark;
  plots.forEach(plot => plot.paint());
  document.dispatchEvent(new CustomEvent('kv:theme'));
}).observe(document.body, {attributes: true, attributeFilter: ['class']});
