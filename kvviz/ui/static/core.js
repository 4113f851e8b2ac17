// Small helpers. Everything that shows text goes through `h`: text becomes text nodes, never markup.
const app = element.querySelector('#kv-app');
const boot = JSON.parse(props.boot || '{}');

function h(tag, attrs = {}, ...kids) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'class') node.className = value;
    else if (key in node && typeof value !== 'string') node[key] = value;
    else node.setAttribute(key, value === true ? '' : String(value));
  }
  node.append(...kids.flat(3).filter(kid => kid !== null && kid !== undefined && kid !== false)
    .map(kid => kid instanceof Node ? kid : document.createTextNode(String(kid))));
  return node;
}

const put = (node, ...kids) => { node.replaceChildren(...h('i', {}, ...kids).childNodes); return node; };

// A labelled <select> whose options are [value, text] pairs.
function chooser(label, options, value, onchange, attrs = {}) {
  const select = h('select', {'aria-label': attrs.title || label, ...attrs,
    onchange: () => onchange(select.value)});
  select.fill = (pairs, now) => {
    const wanted = JSON.stringify(pairs);
    if (select.dataset.pairs !== wanted) {
      put(select, pairs.map(([v, text]) => h('option', {value: v}, text)));
      select.dataset.pairs = wanted;
    }
    select.value = String(now);
  };
  select.fill(options, value);
  const box = h('label', {class: 'kv-choose'}, h('span', {}, label), select);
  box.select = select;
  return box;
}

// Numbers as the page writes them everywhere.
const fmt = {
  count: n => Math.round(n).toLocaleString('en-US'),
  share: s => {
    const p = 100 * s;
    return (p < 2 && p > 0 && Math.abs(p - Math.round(p)) > 1e-6 ? p.toFixed(1)
      : String(Math.abs(p - Math.round(p)) < 0.05 ? Math.round(p) : p.toFixed(1))) + '%';
  },
  mb: b => (b / 1e6).toFixed(1),
  seconds: s => s < 10 ? `${s.toFixed(1)} s` : s < 90 ? `${Math.round(s)} s`
    : `${Math.round(s / 60)} min`,
};

// Whitespace made visible and length bounded, for read-outs (the server does the same for figures).
function shown(text, limit = 20) {
  const seen = text.replace(/ /g, '·').replace(/\n/g, '⏎').replace(/\t/g, '⇥')
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, '\u25a1');
  const points = [...seen];
  return points.length > limit ? points.slice(0, limit - 1).join('') + '…' : seen;
}

const debounce = (fn, ms) => {
  let timer;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => fn(...args), ms); };
};

function typed(spec) {  // plotly.py writes numpy arrays as {dtype, bdata, shape}
  if (Array.isArray(spec) || !spec || !spec.bdata) return spec;
  const kinds = {f8: Float64Array, f4: Float32Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array,
    u2: Uint16Array, i4: Int32Array, u4: Uint32Array};
  const bytes = Uint8Array.from(atob(spec.bdata), ch => ch.charCodeAt(0));
  const flat = new (kinds[spec.dtype] || Float64Array)(bytes.buffer);
  const shape = String(spec.shape || '').split(',').map(Number).filter(n => n > 0);
  if (shape.length < 2) return flat;
  return Array.from({length: shape[0]}, (_, row) => flat.subarray(row * shape[1], (row + 1) * shape[1]));
}

function save(name, data, type = 'text/plain') {
  const url = URL.createObjectURL(data instanceof Blob ? data : new Blob([data], {type}));
  const link = h('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Polite announcements for screen readers.
const live = h('div', {class: 'kv-only-read', 'aria-live': 'polite', role: 'status'});
const say = debounce(text => { live.textContent = text; }, 300);

const banner = h('div', {class: 'kv-banner', role: 'alert', hidden: true});
function connectionLost(lost) {
  if (banner.hidden !== lost) return;
  banner.hidden = !lost;
  if (lost) {
    put(banner, 'Connection lost. What you see stays; changes will not be computed. ',
      h('button', {class: 'kv-button', onclick: () => refreshAll()}, 'Reconnect'));
  }
}

// One request to Python. Resolves to a dict, {error: sentence} when it could not be answered.
async function ask(view, args = {}, sel = S.sel) {
  try {
    const reply = await server.ask({view, run: S.run, sel, args});
    connectionLost(false);
    return reply && typeof reply === 'object' ? reply : {error: 'This view could not be drawn.'};
  } catch (error) {
    if (!(await alive())) connectionLost(true);
    return {error: 'This view could not be drawn. The rest of the page is up to date.'};
  }
}

async function alive() {
  try { await fetch(location.pathname, {method: 'HEAD', cache: 'no-store'}); return true; }
  catch (error) { return false; }
}
