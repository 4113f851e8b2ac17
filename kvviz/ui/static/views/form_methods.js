// The methods of the form, in groups that say what they look at, with ready-made sets.
import {h} from '../lib/dom.js';

const boxes = new Map();  // method id -> checkbox
const more = h('input', {type: 'text', 'aria-label': 'Methods with other options'});

const option = m => {
  const box = h('input', {type: 'checkbox', value: m.id});
  boxes.set(m.id, box);
  return h('label', {class: 'kv-method', title: m.idea}, box, m.label,
    m.five ? h('span', {class: 'kv-star', title: 'One of the five papers'}, '★') : null);
};

export function methodGroups(offer) {
  const choose = ids => {
    for (const [id, box] of boxes) box.checked = ids.includes(id);
    field.dispatchEvent(new Event('change', {bubbles: true}));
  };
  const field = h('div', {class: 'kv-methods', id: 'kv-methods-field'},
    h('div', {class: 'kv-tools'}, h('span', {class: 'kv-label'}, 'Sets'),
      offer.sets.map(one => h('button', {class: 'kv-button kv-small kv-set',
        onclick: () => choose(one.methods)}, one.name))),
    offer.groups.filter(group => group.methods.length).map(group => h('fieldset', {class: 'kv-group'},
      h('legend', {}, group.name[0].toUpperCase() + group.name.slice(1)), group.methods.map(option))),
    h('p', {class: 'kv-guide'}, h('span', {class: 'kv-star'}, '★'), ' one of the five papers'));
  return field;
}

// Methods with options are written out: a list to choose from, and room for any other.
export function variantField(offer) {
  const list = h('datalist', {id: 'kv-variant-names'},
    offer.variants.map(one => h('option', {value: one.name}, one.label)));
  more.setAttribute('list', 'kv-variant-names');
  return h('label', {class: 'kv-field', id: 'kv-variants-field'},
    h('span', {class: 'kv-label'}, 'Methods with other options, parted by blanks, such as '
      + 'snapkv:window=16,allocation=global'), more, list);
}

export const chosenMethods = () => ({
  methods: [...boxes].filter(([, box]) => box.checked).map(([id]) => id),
  variants: more.value.split(/[\s;]+/).filter(Boolean)});

export function setMethods(methods, variants) {
  for (const [id, box] of boxes) box.checked = methods.includes(id);
  more.value = [...methods.filter(id => !boxes.has(id)), ...variants].join(' ');
}

const aboutOption = o => h('li', {title: o.allowed},
  h('code', {}, `${o.name}=${o.default ?? 'none'}`), ` ${o.help}`);

// What each does, in its own words, with its paper, and what its options do.
export function aboutMethods(offer) {
  const all = offer.groups.flatMap(group => group.methods);
  const words = m => [h('dt', {}, m.label, m.reconstructed ? ' (reconstructed)' : ''),
    h('dd', {}, m.idea, m.paper ? h('span', {class: 'kv-muted'}, ` ${m.paper}`) : null,
      h('ul', {}, m.options.map(aboutOption), h('li', {}, h('code', {}, `allocation=${m.allocation}`))))];
  return h('details', {class: 'kv-more kv-about', id: 'kv-about'}, h('summary', {}, 'What the methods do'),
    h('dl', {}, all.map(words)));
}
