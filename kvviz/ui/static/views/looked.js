// What a token of the answer looked at: the text by the full cache's attention; what A evicted is hollow.
import {h, put} from '../lib/dom.js';
import {ask} from '../lib/page.js';
import {S} from '../lib/state.js';
import {lightUp} from './document.js';

const HOLLOW = 8;
export const lookLine = h('p', {class: 'kv-guide', id: 'kv-looked', 'aria-live': 'polite'});
// `own`: {role, label, parts}, whose answer a token is of, and where it leaves the full cache's.
let data = null, key = '', locked = null, at = null;

const nowKey = () => JSON.stringify([S.run, S.sel.a, S.sel.b, S.sel.budget, S.sel.layer, S.sel.head]);
const isAt = (place, own, step) => Boolean(place) && place.own.role === own.role && place.step === step;

// Asked once a selection; of a long text once a token.
async function fetched(step) {
  const wanted = nowKey();
  if (data && key === wanted && (data.all || data.rows[step])) return data;
  const reply = await ask('looked', {step});
  if (reply.lost || reply.error || wanted !== nowKey()) return null;
  [data, key] = [reply, wanted];
  return reply;
}

// Up to and with the token at which the answers part, both caches were asked the same.
function ofAnother({role, label, parts}, step) {
  if (role === 'full') return '';
  return step === parts ? ` Here ${label} writes another token than the full cache.`
    : ` ${label} writes the same token.`;
}

async function lookAt(own, step) {
  at = {own, step};
  const free = isAt(locked, own, step) ? ' Locked; Esc frees it.' : '';
  if (step > (own.parts ?? step)) {
    put(lookLine, `From here on ${own.label} goes on from words of its own. The full cache never read them, `
      + `so there is nothing to light up.${free}`);
    lightUp(null);
    return;
  }
  const reply = await fetched(step);
  if (!reply || !isAt(at, own, step) || !reply.rows[step]) return;
  const codes = reply.rows[step], code = t => t < codes.length ? codes.charCodeAt(t) - 48 : 0;
  put(lookLine, reply.words[step], ofAnother(own, step), ' Lit is the full cache’s attention.',
    ' Hollow: mostly evicted by A.', free);
  lightUp({code, cls: t => {
    const c = code(t);
    return c >= HOLLOW ? 'kv-t kv-hollow' : `kv-t ${c ? `kv-gain-${c}` : ''}`;
  }});
}

function lookAway() {
  at = locked;
  if (locked !== null) { lookAt(locked.own, locked.step); return; }
  put(lookLine, '');
  lightUp(null);
}

function lock(place) {
  locked = place;
  for (const span of document.querySelectorAll('#kv-cards .kv-look')) {
    span.classList.toggle('kv-locked', Boolean(place) && span.dataset.role === place.own.role
      && Number(span.dataset.step) === place.step);
  }
  lookAway();
}

// An answer by token; `pieces` are [text, whether it differs from the full cache, which token]. `stops`: the
// last one only ended it, and is no word.
export function answerTokens(pieces, own, stops) {
  locked = null;
  const last = pieces.at(-1)[2];
  const spans = pieces.map(([text, differs, step]) => h('span', {class: 'kv-look', 'data-role': own.role,
    'data-step': step, onmouseenter: () => lookAt(own, step), onmouseleave: lookAway,
    onclick: () => lock(isAt(locked, own, step) ? null : {own, step})},
  differs ? h('mark', {class: 'kv-differs'}, text) : text));
  if (stops) {
    put(spans.at(-1), ' ■');
    spans.at(-1).title = `The answer ends here: ${pieces.at(-1)[0]}`;
    spans.at(-1).classList.add('kv-muted');
  }
  return h('span', {tabindex: 0, role: 'application', id: `kv-${own.role}-tokens`,
    'aria-label': `Answer of ${own.label}: arrows choose a token and show what it looked at`,
    onkeydown: event => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      const from = locked?.own.role === own.role ? locked.step : -1;
      if (by) lock({own, step: Math.max(0, Math.min(last, from + by))});
      else if (event.key === 'Escape') lock(null);
      else return;
      event.preventDefault();
    }}, spans);
}

document.addEventListener('kv:sel', () => { if (locked !== null) lookAt(locked.own, locked.step); });
