// plotly.js and the page's colours. Figures name colour roles ("role:kept"); they are resolved from CSS
// variables here, and again when the theme changes.
import {page} from './page.js';

const WHOLE_ONLY = 'scattergl';  // the small plotly.js has no WebGL
const loading = {};  // {small or whole: its promise}
const here = new Set();  // those that have been read

// The plotly.js for these traces: the small one wherever it can draw them. A saved page holds what it needs.
export function library(traces = []) {
  if (page.offline) return Promise.resolve(window.kvPlotly);
  const which = traces.some(t => t.type === WHOLE_ONLY) ? 'whole' : 'small';
  return loading[which] ??= read(which);
}

// Read behind the first picture: a browser needs longer for it than for the rest of the page.
async function read(which) {
  try {
    await painted();
    const {default: Plotly} = await import(page.plotly[which]);
    here.add(which);
    return Plotly;
  } catch (error) {
    delete loading[which];  // the next figure asks again
    throw error;
  }
}

// Until what has been put on the page can be seen; a page in the background is not painted.
const painted = () => new Promise(done => {
  if (document.hidden) done();
  else requestAnimationFrame(() => setTimeout(done));
});

export const libraryIsHere = () => page.offline || here.size > 0;

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
