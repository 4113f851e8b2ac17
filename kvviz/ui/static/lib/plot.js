// An owned plot: a <div> that plotly.js draws into.
import {fileName, h, narrow, put, save} from './dom.js';
import {keys} from './keys.js';
import {legendBar, legendKey} from './legend.js';
import {css, library, resolve} from './plotly.js';

const AXIS = /^[xy]axis\d*$/;
const STAGE_TYPE = 16;  // px: it is read from the last row
const onStage = () => document.body.classList.contains('kv-on-stage');
const BAR_WORD = 6, AXIS_WORD = 6.6;  // px a letter takes, about

export class Plot {
  // `apart`: of no run, so keys that change its selection do nothing here.
  constructor({height, name, onPick, onBox, onZoom, onHover, onReset, apart = null}) {
    Object.assign(this, {name, onPick, onBox, onZoom, onHover, onReset, apart, spec: null, extra: []});
    this.host = h('div', {class: 'kv-plot', style: `height:${height}px`});
    this.el = h('div', {class: 'kv-plot-box', tabindex: 0, role: 'application',
      'aria-roledescription': 'figure', 'aria-label': name}, this.host);
    this.legend = h('div', {class: 'kv-legend kv-fig-legend'});
    this.quiet = 0;  // more than 0 while the page itself changes the plot
    document.addEventListener('kv:theme', () => this.paint());
    keys(this);
    new ResizeObserver(() => this.fit()).observe(this.host);
  }

  async draw(spec) {
    this.spec = spec;
    await this.paint();
  }

  async paint() {
    if (!this.spec || !this.host.isConnected || !this.host.clientWidth) return;
    this.painting = true;
    const Plotly = await library(this.spec.data);
    await new Promise(done => setTimeout(done));  // what has come meanwhile is shown before this is laid out
    const {data, layout} = resolve({data: this.spec.data, layout: this.spec.layout});
    this.base = layout.shapes || [];
    const {title, showlegend} = layout;
    delete layout.title;  // title and legend stand around the figure; images get them back
    this.forImage = {title, showlegend, margin: {...layout.margin}};
    layout.margin = {...layout.margin, t: 10, b: Math.min(44, layout.margin?.b ?? 44)};
    Object.assign(layout, {
      autosize: true, uirevision: 'kept', height: this.host.clientHeight, selections: [],
        selectdirection: 'h',
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: layout.plot_bgcolor || 'rgba(0,0,0,0)', showlegend: false,
      dragmode: narrow() ? false : layout.dragmode || (this.onBox ? 'select' : 'zoom'),
      font: {...layout.font, size: onStage() ? STAGE_TYPE : layout.font?.size || 12,
        color: css('text'), family: 'system-ui, sans-serif'},
      hoverlabel: {bgcolor: css('page'), bordercolor: css('muted'), font: {color: css('text')}},
      shapes: [...this.base, ...this.marks()],
    });
    const rank = t => t.legendrank ?? 1000;
    const named = data.filter(t => t.showlegend && t.name).sort((p, q) => rank(p) - rank(q));
    put(this.legend, named.map(legendKey), this.lowerBar(data, layout));
    this.wrapTitles(layout);
    for (const [key, axis] of Object.entries(layout)) {
      if (!AXIS.test(key)) continue;
      for (const line of ['gridcolor', 'linecolor', 'zerolinecolor']) axis[line] ??= css('grid');
    }
    const before = this.width;
    this.width = this.host.clientWidth;  // `fit` has nothing left to do for it
    this.quiet += 1;
    if (this.drawer && this.drawer !== Plotly) {
      this.drawer.purge(this.host);
      this.wired = false;
    }
    this.drawer = Plotly;
    await Plotly.react(this.host, data, layout, {displayModeBar: false, responsive: false, scrollZoom: false,
      doubleClick: this.onReset ? false : 'reset', ...this.spec.config});
    this.quiet -= 1;
    this.painting = false;
    this.el.setAttribute('aria-label', layout.meta?.summary || this.name);
    this.el.dataset.drawn = String(Number(this.el.dataset.drawn || 0) + 1);
    if (!this.wired) this.wire(Plotly);
    if (before && before !== this.width) this.onWidth?.();
  }

  // A colour bar for which there is no room beside the figure stands as a strip in the legend below.
  lowerBar(data, layout) {
    const inner = this.host.clientHeight - layout.margin.t - layout.margin.b;
    const trace = data.find(t => t.marker?.colorbar || t.colorbar);
    if (!trace) return null;
    const holder = trace.marker?.colorbar ? trace.marker : trace, bar = holder.colorbar;
    if (this.barBelow || narrow() || inner < 90) {
      holder.showscale = false;
      if (layout.margin.r > 16 && !layout.xaxis2) layout.margin.r = 16;
      return legendBar(bar, holder.colorscale || [], layout.meta?.scale);
    }
    if (bar.title?.text && BAR_WORD * bar.title.text.length > inner) bar.title = {...bar.title, text: ''};
    return null;
  }

  // Long axis titles in as many lines as the axis is long.
  wrapTitles(layout) {
    const large = onStage() && !narrow();
    if (large) layout.margin.b += 8;
    for (const [key, axis] of Object.entries(layout)) {
      if (!AXIS.test(key) || !axis.title?.text) continue;
      const room = key[0] === 'x' ? this.host.clientWidth - 140
        : this.host.clientHeight - layout.margin.t - layout.margin.b;
      const most = Math.max(14, Math.floor(room / AXIS_WORD / (large ? 1.25 : 1)));
      const lines = axis.title.text.replace(/<br>/g, ' ').split(' ').reduce((out, word) => {
        const now = out[out.length - 1];
        if (now && (now + word).length + 1 > most) out.push(word);
        else out[out.length - 1] = now ? `${now} ${word}` : word;
        return out;
      }, ['']);
      axis.title = {...axis.title, text: lines.join('<br>'), standoff: 8};
      if (large) axis.title.font = {...axis.title.font, size: STAGE_TYPE - 1};
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
    if (this.wired) await this.relayout({shapes: [...this.base, ...this.marks()]});
  }

  async relayout(change) {
    this.quiet += 1;
    await this.drawer.relayout(this.host, change);
    this.quiet -= 1;
  }

  async fit() {
    const width = this.host.clientWidth;
    if (!width || !this.spec) return;
    if (!this.wired) {  // a figure that is on its way needs no second drawing
      if (!this.painting) await this.paint();
      return;
    }
    if (this.width === width) return;
    const before = this.width;
    this.width = width;
    await this.relayout({width, height: this.host.clientHeight});
    if (before) this.onWidth?.();
  }

  // Device pixels across the figure's own axes: no map is asked for with more columns than these.
  pixels() {
    const size = this.host._fullLayout?._size, width = this.host.clientWidth;
    if (!width) return 0;
    return Math.floor((size ? size.w : width - this.sides) * window.devicePixelRatio);
  }

  async image(format, name) {
    const data = this.host.data.map(t => t.marker?.colorbar ? {...t, marker: {...t.marker, showscale: true}}
      : t.colorbar ? {...t, showscale: true} : t);
    const height = this.host.clientHeight + 30;
    const figure = {data, layout: {...this.host.layout, ...this.forImage, width: undefined, height,
      paper_bgcolor: css('page')}};
    const width = Math.max(900, this.host.clientWidth), scale = format === 'png' ? 2 : 1;
    const still = await this.drawer.toImage(figure, {format, width, height, scale});
    save(fileName(name, format), await (await fetch(still)).blob());
  }
}
