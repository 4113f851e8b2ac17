// What a token of the answer looked at: the text by the full cache's attention; what A evicted is hollow.
import {h, put} from '../lib/dom.js';
import {ask} from '../lib/page.js';
import {S} from '../lib/state.js';
import {lightUp} from './document.js';

const HOLLOW = 8;
export const lookLine = h('p', {class: 'kv-guide', id: 'kv-looked', 'aria-live': 'polite'});
let data = null, key = '', locked = null, at = null;

const nowKey = () => JSON.stringify([S.run, S.sel.a, S.sel.b, S.sel.budget, S.sel.layer, S.sel.head]);

// Asked once a selection; of a long text once a token.
async function fetched(step) {
  const wanted = nowKey();
  if (data && key === wanted && (data.all || data.rows[step])) return data;
  const reply = await ask('looked', {step});
  if (reply.lost || reply.error || wanted !== nowKey()) return null;
  [data, key] = [reply, wanted];
  return reply;
}

async function lookAt(step) {
  at = step;
  const reply = await fetched(step);
  if (!reply || at !== step || !reply.rows[step]) return;
  const codes = reply.rows[step], code = t => t < codes.length ? codes.charCodeAt(t) - 48 : 0;
  put(lookLine, reply.words[step],
    ' Lit is the full cache’s attention; that of A’s and B’s own words is not stored.',
    ' Hollow: mostly evicted by A.',
    locked === step ? ' Locked; Esc frees it.' : '');
  lightUp({code, cls: t => {
    const c = code(t);
    return c >= HOLLOW ? 'kv-t kv-hollow' : `kv-t ${c ? `kv-gain-${c}` : ''}`;
  }});
}

function lookAway() {
  at = locked;
  if (locked !== null) { lookAt(locked); return; }
  put(lookLine, '');
  lightUp(null);
}

// The full cache's answer, a piece a token. `stops`: the last one only ended it, and is no word.
export function answerTokens(tokens, stops) {
  const paint = spans => spans.forEach((s, i) => s.classList.toggle('kv-locked', i === locked));
  locked = null;
  const lock = i => {
    locked = locked === i ? null : i;
    paint(spans);
    if (locked === null) lookAway(); else lookAt(i);
  };
  const spans = tokens.map((token, i) => h('span', {class: 'kv-look', onmouseenter: () => lookAt(i),
    onmouseleave: lookAway, onclick: () => lock(i)}, token));
  if (stops) {
    put(spans.at(-1), ' ■');
    spans.at(-1).title = `The answer ends here: ${tokens.at(-1)}`;
    spans.at(-1).classList.add('kv-muted');
  }
  return h('span', {tabindex: 0, role: 'application', id: 'kv-full-tokens',
    'aria-label': 'Answer of the full cache: arrows choose a token and show what it looked at',
    onkeydown: event => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (by) lock(Math.max(0, Math.min(tokens.length - 1, (locked ?? -1) + by)));
      else if (event.key === 'Escape') { locked = null; paint(spans); lookAway(); }
      else return;
      event.preventDefault();
    }}, spans);
}

document.addEventListener('kv:sel', () => { if (locked !== null) lookAt(locked); });
