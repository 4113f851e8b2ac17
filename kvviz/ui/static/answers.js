// The finding in words, and the answers side by side.
const findingBox = h('section', {class: 'kv-finding', id: 'kv-finding', 'aria-label': 'Finding',
  'aria-live': 'polite', tabindex: -1});
const cardsBox = h('section', {class: 'kv-cards', id: 'kv-cards', 'aria-label': 'Answers'});
const allBox = h('section', {class: 'kv-all', id: 'kv-all', hidden: true, 'aria-label': 'All answers'});
const stripBox = h('div', {class: 'kv-strip', hidden: true});
let strip = null;

// "M1" and method names inside a finding are buttons: the sentence is a way into the picture.
function linked(sentence) {
  const names = [...S.meta.methods.map(m => [m.label, () => choose({a: m.id}, 'finding')]),
    ...S.meta.marks.map(m => [m.name, () => choose({tok: [m.start, m.end]}, 'finding')])]
    .sort((p, q) => q[0].length - p[0].length);
  const found = names.length ? sentence.split(new RegExp(`(?<![\\w-])(${names.map(([n]) =>
    n.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|')})(?![\\w-])`)) : [sentence];
  return found.map(part => {
    const hit = names.find(([name]) => name === part);
    return hit ? h('button', {class: 'kv-word', onclick: hit[1]}, part) : part;
  });
}

addView({id: 'finding', reads: ['run', 'a', 'b', 'budget'], el: findingBox, async refresh() {
  const reply = await ask('finding');
  if (reply.error) { put(findingBox, h('p', {}, reply.error)); return; }
  put(findingBox, h('span', {class: 'kv-eyebrow'}, 'Finding'),
    h('div', {class: 'kv-lines'}, reply.lines.map((line, i) => h('p', {class: i ? '' : 'kv-lead'}, linked(line)))), placeDots(),
    h('p', {class: 'kv-caution'}, [...(reply.notices || []), reply.caution].join(' ')));
}});

// One dot for each place at which the example asked the same question: filled where it was found.
function placeDots() {
  const places = S.meta.places;
  if (!places) return null;
  const rows = [S.sel.a, S.sel.b].filter(Boolean).map(method => {
    const found = Object.entries(places.found?.[method] || {}).find(([share]) => Math.abs(Number(share) - S.sel.budget) < 1e-6);
    return found && [method, found[1]];
  }).filter(Boolean);
  if (!rows.length) return null;
  return h('p', {class: 'kv-places'}, rows.map(([method, found]) => h('span', {class: 'kv-place-row', role: 'img',
    'aria-label': `${label(method)}: found at ${found.filter(Boolean).length} of ${found.length} places`},
  h('span', {class: 'kv-muted'}, label(method)), found.map((hit, i) => h('i', {class: hit ? 'kv-dot kv-hit' : 'kv-dot',
    title: `${places.what || 'Answer'} at ${fmt.share(places.depths?.[i] ?? 0)} of the text: ${hit ? 'found' : 'not found'}`})))),
  h('span', {class: 'kv-muted'}, '● found ○ not found, from the start of the text to its end'));
}

const VERDICTS = {right: 'right', wrong: 'wrong', grey: 'no verdict'};

// On a phone one answer is shown at a time, chosen by three chips; on wider screens all stand side by side.
let shownCard = 'a';
function cardChips(cards) {
  const chips = cards.map(data => h('button', {class: 'kv-button kv-answer-chip', role: 'tab', id: `kv-chip-${data.role}`,
    'aria-selected': String(data.role === shownCard), onclick: () => {
      shownCard = data.role;
      for (const one of cardsBox.querySelectorAll('.kv-card')) one.classList.toggle('kv-shown', one.dataset.role === shownCard);
      for (const one of chips) one.setAttribute('aria-selected', String(one.id === `kv-chip-${shownCard}`));
    }}, {full: 'Full', a: 'A', b: 'B'}[data.role], ' ', VERDICTS[data.verdict]
    ? h('span', {class: `kv-verdict kv-${data.verdict}`}, VERDICTS[data.verdict]) : null));
  return h('div', {class: 'kv-answer-chips', role: 'tablist', 'aria-label': 'Answers'}, chips);
}

function card(data) {
  const role = {full: '', a: 'A', b: 'B'}[data.role];
  const mark = data.verdict && VERDICTS[data.verdict] ? h('span', {class: `kv-verdict kv-${data.verdict}`,
    title: data.verdict_words}, VERDICTS[data.verdict]) : null;
  const words = (data.words || []).map(([text, differs]) => differs ? h('mark', {class: 'kv-differs'}, text) : text);
  return h('article', {class: `kv-card kv-card-${data.role}${data.banner ? ' kv-stale' : ''}${data.role === shownCard ? ' kv-shown' : ''}`,
    'data-role': data.role},
    h('header', {}, role ? h('span', {class: `kv-badge kv-badge-${data.role}`}, role) : null,
      h('h3', {}, data.label), mark),
    data.banner ? h('p', {class: 'kv-notice'}, data.banner, ' ', decodeButton()) : null,
    h('p', {class: 'kv-answer', dir: 'auto'}, words.length ? words : h('span', {class: 'kv-muted'}, 'No text.')),
    h('p', {class: 'kv-meta'}, data.kl_line || '\u00a0',
      data.role !== 'full' && data.kl_line ? h('button', {class: 'kv-link-button',
        onclick: () => showStrip(data.role)}, 'by token') : null),
    h('p', {class: 'kv-meta'}, data.budget_line),
    (data.notes || []).map(note => h('p', {class: 'kv-meta kv-note'}, note)));
}

function decodeButton() {
  const at = fmt.share(S.sel.budget);
  return h('button', {class: 'kv-button kv-small kv-decode', onclick: () => {
    runKind = 'more';
    trigger('decode_more', {run: S.run, budget: S.sel.budget});
  }}, S.meta.origin === 'own' ? `Decode at ${at}` : `Load the model and decode at ${at}`);
}

addView({id: 'cards', reads: ['run', 'a', 'b', 'budget'], el: cardsBox, async refresh() {
  const asked = S.sel;
  const reply = await ask('cards');
  if (reply.error) { put(cardsBox, h('p', {}, reply.error)); return; }
  cardsBox.classList.toggle('kv-two', reply.cards.length === 2);
  if (!reply.cards.some(c => c.role === shownCard)) shownCard = 'a';
  put(cardsBox, cardChips(reply.cards), reply.cards.map(card));
  const exact = reply.cards.find(c => c.role === 'a')?.budget_line;  // bytes as allocated, ranges of uneven methods
  if (exact) {
    bar.exact = {key: `${asked.a}@${asked.budget}`, text: exact};
    showBudget(stepIndex(S.sel.budget));
  }
  if (!stripBox.hidden) showStrip(strip.role);
}});

function showStrip(role) {
  if (!strip) {
    strip = new Panel({id: 'strip', title: 'KL by token', view: 'kl_strip', height: 150, reads: ['run', 'a', 'b', 'budget'],
      args: () => ({role: strip.role}), onHover: p => `token ${p.x} of the answer: KL ${Number(p.y).toPrecision(2)} nats`});
    stripBox.append(strip.el);
  }
  strip.role = role;
  stripBox.hidden = false;
  strip.view.dirty = true;
  refresh(strip.view);
}

const allButton = h('button', {class: 'kv-button kv-small', id: 'kv-all-button', 'aria-expanded': 'false',
  onclick: () => {
    allBox.hidden = !allBox.hidden;
    allButton.setAttribute('aria-expanded', String(!allBox.hidden));
    allButton.textContent = allBox.hidden ? 'All answers' : 'Hide all answers';
    allView.dirty = true;
    if (!allBox.hidden) refresh(allView);
  }}, 'All answers');

// One more method on the run that is shown: what the model has read is used again where it is still held.
function addMethod() {
  const have = S.meta.methods.map(m => m.id), rest = Object.entries(boot.methods || {}).filter(([id]) => !have.includes(id));
  if (!rest.length) return null;
  const pick = chooser('Add a method', [['', 'choose'], ...rest], '', method => {
    if (!method) return;
    runKind = 'more';
    trigger('decode_more', {run: S.run, method});
  }, {id: 'kv-add-method'});
  return h('div', {class: 'kv-tools'}, pick, h('span', {class: 'kv-muted'}, S.meta.origin === 'own' ? '' : 'loads the model first'));
}

const allView = addView({id: 'all', reads: ['run'], el: allBox, async refresh() {
  if (allBox.hidden) { allView.dirty = true; return; }
  const reply = await ask('all_answers');
  if (reply.error) { put(allBox, reply.error); return; }
  const sign = {right: '✓', wrong: '✗'};
  put(allBox, h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table kv-answers'},
    h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Method'),
      reply.budgets.map(b => h('th', {scope: 'col'}, `${fmt.share(b)} kept`)))),
    h('tbody', {}, reply.methods.map(m => h('tr', {}, h('th', {scope: 'row'}, m.label),
      m.cells.map((c, i) => h('td', {}, !c ? '–' : h('button', {class: 'kv-cell', title: c.text,
        onclick: () => choose({a: m.id, budget: reply.budgets[i]}, 'all')},
        sign[c.verdict] ? h('b', {class: `kv-${c.verdict}`, 'aria-label': VERDICTS[c.verdict]}, sign[c.verdict]) : null,
        h('span', {dir: 'auto'}, c.start || '(empty)'), h('small', {}, c.kl))))))))), addMethod());
}});
