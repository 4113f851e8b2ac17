// plotly.js and the page's colours. Figures name colour roles ("role:kept"); they are resolved from CSS
// variables here, and again when the theme changes.
import {page} from './page.js';

let loading = null;
// evaluated with a private `module`, so no other plotly.js on the page can interfere
export function plotly() {
  loading ??= Promise.resolve(window.kvPlotly).then(early => early || fetch(page.plotly).then(reply => {
    if (!reply.ok) throw new Error('plotly.js is missing');
    return reply.text();
  })).then(source => {
    const m = {exports: {}};
    new Function('module', 'exports', source)(m, m.exports);
    return m.exports;
  });
  return loading;
}

export const css = name => getComputedStyle(document.body).getPropertyValue(`--kv-${name}`).trim();

// "role:kept" is the colour; "role:kept/0.4" the colour at 40% opacity.
function colour(text) {
  const [name, alpha] = text.slice(5).split('/');
  const value = css(name) || css('muted');
  if (!alpha) return value;
  const hex = value.replace('#', ''), part = at => parseInt(hex.slice(at, at + 2), 16);
  return `rgba(${part(0)},${part(2)},${part(4)},${alpha})`;
}

export function resolve(value) {
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

// Figures follow the theme: Gradio sets the class `dark` on the body.
let wasDark = document.body.classList.contains('dark');
new MutationObserver(() => {
  const dark = document.body.classList.contains('dark');
  if (dark === wasDark) return;
  wasDark = dark;
  document.dispatchEvent(new CustomEvent('kv:theme'));
}).observe(document.body, {attributes: true, attributeFilter: ['class']});
