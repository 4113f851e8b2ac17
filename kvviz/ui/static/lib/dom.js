// Small helpers over the DOM. Everything that shows text goes through `h`: text becomes text nodes, never
// markup.

export function h(tag, attrs = {}, ...kids) {
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

export const put = (node, ...kids) => { node.replaceChildren(...h('i', {},
  ...kids).childNodes); return node; };

// A labelled <select> whose options are [value, text] pairs.
export function chooser(label, options, value, onchange, attrs = {}) {
  const select = h('select', {'aria-label': attrs.title || label, ...attrs,
    onchange: () => onchange(select.value)});
  select.fill = (pairs, now) => {
    const wanted = JSON.stringify(pairs);
    if (select.dataset.pairs !== wanted) {
      put(select, pairs.map(([v, text]) => h('option', {value: v, title: text}, text)));
      select.dataset.pairs = wanted;
    }
    select.value = String(now);
  };
  select.fill(options, value);
  const box = h('label', {class: 'kv-choose'}, h('span', {}, label), select);
  box.select = select;
  return box;
}

export const debounce = (fn, ms) => {
  let timer;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => fn(...args), ms); };
};

export const sleep = ms => new Promise(done => { setTimeout(done, ms); });

export const calm = () => window.matchMedia('(prefers-reduced-motion: reduce)').matches;

export const narrow = () => window.innerWidth < 700;

// How much of a piece of work is done, 0 to 1; unknown where it is no number.
export function progressBar(fraction, name) {
  const known = Number.isFinite(fraction), percent = known ? 100 * fraction : 100;
  return h('div', {class: 'kv-progress', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100,
    'aria-valuenow': known ? Math.round(percent) : null, 'aria-label': name},
  h('i', {style: `width:${percent}%`, class: known ? '' : 'kv-unknown'}));
}

// Whether the browser let a text be copied.
export const copied = text => Promise.resolve().then(() => navigator.clipboard.writeText(text))
  .then(() => true, () => false);

// Copy a link, which its button says for a moment.
export async function copyLink(button, link) {
  button.textContent = await copied(link) ? 'Link copied' : 'Copy from the address bar';
  setTimeout(() => { button.textContent = 'Copy link'; }, 2500);
}

export const reveal = (node, block = 'start') =>
  node.scrollIntoView({block, behavior: calm() ? 'auto' : 'smooth'});

// Hands the visitor a file called `name`.
export function save(name, data, type = 'text/plain') {
  const url = URL.createObjectURL(data instanceof Blob ? data : new Blob([data], {type}));
  const link = h('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A file name from words that say what is in it.
export const fileName = (words, ending) =>
  `kvviz-${words.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0,
    80)}.${ending}`;
