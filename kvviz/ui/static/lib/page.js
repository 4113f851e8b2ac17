// What Gradio hands to the page (its element, calls and events), and the one way to ask Python.
import {debounce, h, put} from './dom.js';
import {S, refreshAll} from './state.js';

export const page = {app: null, boot: {}, server: null, trigger: null,
  plotly: {},  // where plotly.js is, small and whole
  offline: false};  // a page saved as a file: it knows the views of its story, and nobody answers

// Polite announcements for screen readers.
export const live = h('div', {class: 'kv-only-read', 'aria-live': 'polite', role: 'status'});
export const say = debounce(text => { live.textContent = text; }, 300);

const GENERAL = 'This view could not be drawn. The rest of the page is up to date.';
const LOST = 'Connection lost. What you see stays; changes will not be computed.';
export const banner = h('div', {class: 'kv-banner', role: 'alert', hidden: true});
export const connection = {lost: false};

function connectionLost(lost) {
  if (connection.lost === lost) return;
  connection.lost = lost;
  banner.hidden = !lost;
  if (lost) put(banner, `${LOST} `,
    h('button', {class: 'kv-button kv-small', onclick: reconnect}, 'Reconnect'));
  document.dispatchEvent(new CustomEvent('kv:connection'));
  if (!lost) refreshAll();  // views kept what they showed
}

async function reconnect() {
  if (!(await alive())) return;
  connectionLost(false);
}

// One request to Python. Resolves to a dict; {error: sentence} when it could not be answered, and
// {lost: true, error} when nobody is there: then a view leaves what it shows.
// Another run than the one shown is asked about by its id.
export async function ask(view, args = {}, sel = S.sel, run = S.run) {
  let reply = null;
  try { reply = await page.server.ask({view, run, sel, args}); } catch (error) { /* told below */ }
  if (reply && typeof reply === 'object') {
    connectionLost(false);
    return reply;
  }
  const there = await alive();
  connectionLost(!there);
  return there ? {error: GENERAL} : {error: LOST, lost: true};
}

export async function alive() {
  try {
    return (await fetch(document.baseURI, {method: 'HEAD', cache: 'no-store'})).status < 500;
  } catch (error) { return false; }
}

export const NOT_SENT = 'The file could not be sent. It may be too large, or the connection was lost.';

// A file sent as any upload is: its place on the server, null where it did not arrive.
export async function sent(file) {
  const body = new FormData();
  body.append('files', file);
  try {
    const reply = await fetch(new URL('gradio_api/upload', document.baseURI), {method: 'POST', body});
    return reply.ok ? (await reply.json())[0] : null;
  } catch (error) { return null; }
}
