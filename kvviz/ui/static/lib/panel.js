// A figure with its frame: title, one-line guide, plot, read-out line, table and downloads.
import {fileName, h, put, save} from './dom.js';
import {fmt, plainTitle} from './format.js';
import {ask} from './page.js';
import {Plot} from './plot.js';
import {libraryIsHere} from './plotly.js';
import {sketch} from './sketch.js';
import {S, addView, redo, refresh} from './state.js';

const NEAR = '200px 0px';  // above and below what is in sight

export class Panel {
  constructor({id, title, height, view, tab, reads, args = () => ({}), tools = [], needsB = false,
    onPick, onBox, onZoom, onHover, onReset, mark, after, readout = true, apart = null, whenNear = false,
    of = () => ({sel: S.sel, run: S.run})}) {
    Object.assign(this, {name: view, args, needsB, mark, after, of});
    this.title = h('h3', {class: 'kv-panel-title'}, title);
    this.guide = h('p', {class: 'kv-guide'});
    this.chip = h('span', {class: 'kv-chip', hidden: true});
    this.readout = h('p', {class: 'kv-readout', 'aria-live': 'polite'}, '\u00a0');
    this.plot = new Plot({height, name: title, onPick: p => onPick && onPick(p, this), onBox, onZoom, onReset,
      apart, onHover: p => { const text = onHover && onHover(p, this); if (text) this.tell(text); }});
    this.tableBox = h('div', {class: 'kv-table-box', hidden: true});
    this.trouble = h('p', {class: 'kv-trouble', hidden: true});
    this.wait = h('div', {class: 'kv-wait'}, 'Drawing');
    const get = (text, fn) => h('button', {class: 'kv-link-button', onclick: fn}, text);
    this.foot = h('div', {class: 'kv-panel-foot'},
      this.tableButton = get('Show as table', () => this.table()), readout ? this.readout
        : h('span', {class: 'kv-gap'}),
      get('PNG', () => this.image('png')), get('SVG', () => this.image('svg')),
      get('CSV', () => this.download('csv')), get('JSON', () => this.download('json')));
    this.el = h('section', {class: 'kv-panel', id: `kv-${id}`, 'aria-label': title},
      h('div', {class: 'kv-panel-head'}, this.title, this.chip, ...tools), this.guide,
      h('div', {class: 'kv-stage'}, this.plot.el, this.wait), this.plot.legend, this.trouble,
      this.foot, this.tableBox,
      h('p', {class: 'kv-toolong'}, 'This view took too long. The rest of the page is up to date. ',
        get('Try again', () => redo(this.view))));
    this.view = addView({id, reads, tab, apart, el: this.el, far: whenNear, refresh: seq => this.load(seq)});
    if (whenNear) this.watch();
    document.addEventListener('kv:sel', () => this.remark());
  }

  // Asked for and drawn when it comes near what is in sight, so that a long tab opens at once.
  watch() {
    new IntersectionObserver(entries => {
      this.view.far = !entries[entries.length - 1].isIntersecting;
      refresh(this.view);
    }, {rootMargin: NEAR}).observe(this.el);
  }

  async load(seq) {
    const {sel, run} = this.of();  // the run that is shown, or the one beside it
    this.el.hidden = !run || (this.needsB && !sel.b);
    if (this.el.hidden) return;
    const reply = await ask(this.name, this.args(), sel, run);
    if (reply.lost || seq < this.drawn) return;  // a newer answer is already on the page
    this.drawn = seq;
    this.trouble.hidden = !reply.error && !reply.note;
    put(this.trouble, reply.error || reply.note || '');
    if (reply.error || !reply.figure) { this.wait.hidden = true; return; }
    this.reply = reply;
    const spec = JSON.parse(reply.figure), meta = spec.layout.meta || {};
    const text = reply.title || plainTitle(spec.layout.title?.text);
    if (text) put(this.title, text);
    this.el.setAttribute('aria-label', this.title.textContent);
    if (spec.layout.height) this.plot.host.style.height = `${Math.max(120, spec.layout.height - 50)}px`;
    put(this.guide, meta.guide || '');
    this.chip.hidden = !meta.chip;
    put(this.chip, meta.chip || '');
    this.tell('\u00a0');  // what was read out belonged to the figure before
    if (!libraryIsHere()) sketch(this.wait, spec);
    await this.plot.draw(spec);
    this.wait.hidden = true;
    this.remark();
    if (this.after) this.after(reply, this);
    if (!this.tableBox.hidden) await this.fillTable();
  }

  remark() { if (this.mark && this.reply && this.of().run) this.plot.mark(this.mark(this.reply)); }

  tell(text) { put(this.readout, text); }

  table() {
    this.tableBox.hidden = !this.tableBox.hidden;
    this.tableButton.textContent = this.tableBox.hidden ? 'Show as table' : 'Hide table';
    if (!this.tableBox.hidden) this.fillTable();
  }

  given(give, more = {}) {
    const {sel, run} = this.of();
    return ask(this.name, {...this.args(), ...more, give}, sel, run);
  }

  // `from`: the row that the page of rows begins with; without it they are those around what is chosen.
  async fillTable(from) {
    const reply = await this.given('rows', from === undefined ? {} : {from});
    if (reply.lost) return;
    const table = () => [pages(reply, row => this.fillTable(row)), rowsTable(reply.rows || [])];
    put(this.tableBox, reply.error || table());
    if (from !== undefined) this.tableBox.querySelector('.kv-pages button:enabled')?.focus();
  }

  // What a saved file is called: the view, and the title, which says the method and the budget.
  get fileWords() { return `${this.name} ${this.title.textContent}`; }

  image(kind) { return this.plot.image(kind, this.fileWords); }

  async download(kind) {
    const reply = await this.given(kind);
    if (reply.error) { this.trouble.hidden = false; put(this.trouble, reply.error); return; }
    save(fileName(this.fileWords, kind), reply.text, kind === 'csv' ? 'text/csv' : 'application/json');
  }
}

// Which rows of a long table these are, and the way to the others: `turn(row)` asks for those from a row on.
export function pages({rows = [], of = 0, from = null, page: size}, turn) {
  if (!(of > rows.length)) return null;
  const at = from ?? 0, placed = from !== null;
  const button = (words, row, off) => h('button', {class: 'kv-button kv-small', disabled: off,
    onclick: () => turn(row)}, words);
  const words = placed ? `Rows ${fmt.count(at + 1)} to ${fmt.count(at + rows.length)} of ${fmt.count(of)}.`
    : `${fmt.count(rows.length)} of ${fmt.count(of)} rows.`;
  const back = Math.max(0, at - size), on = at + size, last = at + rows.length >= of;
  return h('p', {class: 'kv-guide kv-pages'}, `${words} `, placed
    ? [button('Previous', back, !at), ' ', button('Next', on, last)]
    : button('From the first row', 0, false));
}

function rowsTable(rows) {
  if (!rows.length) return h('p', {class: 'kv-guide'}, 'No rows.');
  const columns = Object.keys(rows[0]);
  const show = v => v === null || v === undefined ? '–' : typeof v === 'number' && !Number.isInteger(v)
    ? Number(v.toPrecision(3)) : Array.isArray(v) ? v.join(' ') : v === true ? 'yes' : v === false ? 'no' : v;
  return h('table', {class: 'kv-table'},
    h('thead', {}, h('tr', {}, columns.map(c => h('th', {scope: 'col'}, c.replace(/_/g, ' '))))),
    h('tbody', {}, rows.map(row => h('tr', {}, columns.map(c => h('td', {}, String(show(row[c]))))))));
}
