// Attention against effect for one head, and why one token was kept or dropped.
const whyCard = h('section', {class: 'kv-why-card', id: 'kv-why-card', 'aria-label': 'Why this token?'});
const whyShown = h('span', {class: 'kv-muted', id: 'kv-why-shown'});
let everyMethod = false;

function axisChooser(name, key, first) {
  const box = chooser(name, [[first, first]], first, v => { LOOK[key] = v; touch(['axes']); }, {title: `${name} axis`});
  box.select.classList.add('kv-axis');
  return box;
}

function stepper() {
  const step = (key, by) => () => {
    const m = S.meta.model, [layer, head] = whyHead();
    const [count, now] = key === 'layer' ? [m.layers, layer] : [m.kv_heads, head];
    choose({layer, head, [key]: (now + by + count) % count}, 'why');
  };
  const button = (text, title, fn) => h('button', {class: 'kv-button kv-small', title, 'aria-label': title, onclick: fn}, text);
  return h('span', {class: 'kv-check'}, 'Layer', button('‹', 'Previous layer', step('layer', -1)), button('›', 'Next layer', step('layer', 1)),
    'KV head', button('‹', 'Previous KV head', step('head', -1)), button('›', 'Next KV head', step('head', 1)), whyShown);
}

let shownHead = [0, 0];
const whyHead = () => shownHead;

function buildWhy() {
  const x = axisChooser('Across', 'x', 'attention'), y = axisChooser('Up', 'y', 'effect');
  const check = (text, key, value) => h('label', {class: 'kv-check'}, h('input', {type: 'checkbox',
    onchange: event => { LOOK[key] = event.target.checked === value; touch(['axes']); }}), text);
  const extra = h('p', {class: 'kv-guide', id: 'kv-why-line'});
  const dots = new Panel({id: 'why', title: 'Attention against effect', view: 'why', tab: 'why', height: 480,
    reads: ['run', 'a', 'b', 'budget', 'layer', 'head', 'tok', 'axes'],
    args: () => ({x: LOOK.x, y: LOOK.y, sinks: LOOK.sinks, ranks: !!LOOK.ranks}),
    onHover: p => tokenAt(p) === null ? '' : `token ${tokenAt(p)} “${shown(textOf([tokenAt(p), tokenAt(p) + 1]))}”`
      + (codes ? ` · ${codes.words(tokenAt(p))}` : ''),
    onPick: p => { const t = tokenAt(p); if (t !== null) choose({tok: [t, t + 1]}, 'why'); },
    after: reply => {
      shownHead = reply.shown;
      put(whyShown, `${reply.default ? 'shown: ' : ''}layer ${reply.shown[0]}, KV head ${reply.shown[1]}`
        + (reply.default ? ' (largest difference)' : ''));
      x.select.fill(reply.axes, LOOK.x);
      y.select.fill(reply.axes, LOOK.y);
      put(extra, [reply.line && reply.line[0].toUpperCase() + reply.line.slice(1), reply.remark].filter(Boolean).join(' · '));
    }});
  const tokenAt = p => Number.isInteger(p.customdata) && !p.data?.type?.includes('heatmap') ? p.customdata : null;
  const mini = new Panel({id: 'why-mini', title: 'Who holds this token', view: 'why_mini', tab: 'why', height: 260,
    reads: ['run', 'a', 'b', 'budget', 'layer', 'head', 'tok'],
    onHover: p => p.pointNumber ? `layer ${p.pointNumber[0]}, KV head ${p.pointNumber[1]}` : '',
    onPick: p => p.pointNumber?.length === 2 && choose({layer: p.pointNumber[0], head: p.pointNumber[1]}, 'why')});
  document.addEventListener('kv:text', () => touch(['card']));  // its words come from the text
  addView({id: 'why-card', tab: 'why', el: whyCard, reads: ['run', 'a', 'b', 'budget', 'layer', 'head', 'tok', 'card'], refresh: fillCard});
  return [h('div', {class: 'kv-tools'}, stepper()), h('div', {class: 'kv-tools'}, x, y,
    check('Without first 4 tokens', 'sinks', false), check('Rank axes', 'ranks', true)), dots.el, extra, whyCard, mini.el];
}

const CARD_ROWS = [['state_words', 'State'], ['score_words', 'Score'], ['rank_words', 'Rank'], ['places_words', 'Places available'],
  ['margin_words', 'Cut-off'], ['scope_words', 'Competed with'], ['stage_words', 'Stage'], ['pooling_words', 'Pooling'],
  ['nearest_kept', 'Nearest kept'], ['nearest_evicted', 'Nearest evicted'], ['smallest_words', 'Smallest budget that keeps it']];

async function fillCard() {
  if (!S.sel.tok) {
    put(whyCard, h('h3', {class: 'kv-panel-title'}, 'Why this token?'), h('p', {class: 'kv-guide'}, 'Choose a word in the text, or a dot.'));
    return;
  }
  const reply = await ask('why_card', {every: everyMethod});
  if (reply.error) { put(whyCard, h('h3', {class: 'kv-panel-title'}, 'Why this token?'), h('p', {class: 'kv-guide'}, reply.error)); return; }
  const c = reply.card;
  const cell = v => !v ? '–' : typeof v === 'string' ? v : `“${v.text}” (token ${v.token})`;
  const rows = CARD_ROWS.filter(([key]) => c.columns.some(col => col[key]));
  const at = S.sel.tok[0], more = S.sel.tok[1] - at > 1;
  put(whyCard, h('div', {class: 'kv-panel-head'}, h('h3', {class: 'kv-panel-title'}, 'Why this token?'),
    h('label', {class: 'kv-check'}, h('input', {type: 'checkbox', checked: everyMethod, onchange: event => {
      everyMethod = event.target.checked;
      touch(['card']);
    }}), 'Every method'),
    tabs.try.button.hidden ? null : h('button', {class: 'kv-button kv-small', onclick: () => showTab('try')}, 'Pin this token in Try it')),
  h('p', {class: 'kv-token-name'}, `“${c.text}” `, h('span', {class: 'kv-muted'}, c.place_words + (c.marks.length ? ` · ${c.marks.join(', ')}` : ''))),
  more ? h('p', {class: 'kv-guide'}, `The least-held of the ${S.sel.tok[1] - at} chosen tokens. `,
    Array.from({length: Math.min(24, S.sel.tok[1] - at)}, (_, i) => h('button', {class: 'kv-link-button',
      onclick: () => choose({tok: [at + i, at + i + 1]}, 'why')}, shown(textOf([at + i, at + i + 1]), 10)))) : null,
  h('p', {}, c.held_line + '.'), h('p', {class: 'kv-guide'}, `Attention from the window ${c.attention_words} · change of the output if removed alone ${c.effect_words}`),
  h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table kv-why-table'},
    h('thead', {}, h('tr', {}, h('th', {}, `layer ${c.layer}, KV head ${c.head}`), c.columns.map(col => h('th', {scope: 'col'},
      col.method === S.sel.a ? 'A ' : col.method === S.sel.b ? 'B ' : '', col.label)))),
    h('tbody', {}, rows.map(([key, name]) => h('tr', {}, h('th', {scope: 'row'}, name),
      c.columns.map(col => h('td', {title: col[key] ? '' : col.reason}, cell(col[key])))))))),
  h('p', {class: 'kv-guide'}, c.note));
}
