// Puts the page together, opens a run, follows the tabs.
const TABS = [['kept', 'Kept'], ['why', 'Why'], ['effect', 'Effect'], ['sweep', 'Sweep'], ['try', 'Try it'], ['steps', 'Steps']];
const tabs = {};

function buildTabs() {
  const list = h('div', {class: 'kv-tabs', role: 'tablist', 'aria-label': 'Views'});
  const sheets = h('div', {class: 'kv-sheets'});
  const build = {kept: buildKept, why: buildWhy, effect: buildEffect, sweep: buildSweep, try: buildTry, steps: buildSteps};
  for (const [id, name] of TABS) {
    const button = h('button', {role: 'tab', id: `kv-tab-${id}`, 'aria-controls': `kv-sheet-${id}`, class: 'kv-tab',
      onclick: () => showTab(id)}, name);
    const sheet = h('div', {role: 'tabpanel', id: `kv-sheet-${id}`, class: 'kv-sheet', 'aria-labelledby': `kv-tab-${id}`, hidden: true},
      h('p', {class: 'kv-echo'}), ...build[id]());
    button.hidden = sheet.children.length < 2;
    tabs[id] = {button, sheet};
    list.append(button);
    sheets.append(sheet);
  }
  list.addEventListener('keydown', event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    const ids = TABS.map(([id]) => id).filter(id => !tabs[id].button.hidden);
    const next = ids[(ids.indexOf(S.tab) + step + ids.length) % ids.length];
    showTab(next);
    tabs[next].button.focus();
  });
  return h('div', {class: 'kv-views'}, list, sheets);
}

function showTab(id) {
  if (!tabs[id] || tabs[id].button.hidden) id = 'kept';
  S.tab = id;
  for (const [name, {button, sheet}] of Object.entries(tabs)) {
    button.setAttribute('aria-selected', String(name === id));
    button.tabIndex = name === id ? 0 : -1;
    sheet.hidden = name !== id;
  }
  if (S.run) writeLink();
  if (S.run) views.forEach(refresh);
}

async function openRun(id, wanted, tab) {
  const before = S.run;
  S.run = id;
  const m = await ask('meta', {}, {});
  if (m.error) {
    S.run = before;
    put(statusLine, m.error);
    statusLine.hidden = false;
    if (!before && boot.stored.length && id !== boot.stored[0].id) await openRun(boot.stored[0].id, {});
    else if (!before) emptyPage();
    return;
  }
  S.meta = m;
  m.own_marks = m.marks;
  S.doc = null;
  codes = null;
  Object.assign(methodNames, Object.fromEntries(m.methods.map(x => [x.id, x.label])));
  const known = value => m.methods.some(x => x.id === value) ? value : undefined;
  const sel = {...m.opening};
  for (const [key, value] of Object.entries(wanted)) if (value !== null && value !== undefined && value !== '') sel[key] = value;
  sel.a = known(sel.a) || m.methods[0].id;
  sel.b = known(sel.b) || m.methods.map(x => x.id).find(x => x !== sel.a) || null;
  const inside = (value, count) => Number.isInteger(value) && value >= 0 && value < count ? value : null;
  sel.layer = inside(sel.layer, m.model.layers);
  sel.head = inside(sel.head, m.model.kv_heads);
  sel.budget = m.steps[stepIndex(sel.budget || m.steps[0])];
  if (!sel.tok || !(sel.tok[0] >= 0 && sel.tok[1] > sel.tok[0] && sel.tok[1] <= m.n)) sel.tok = null;
  sel.marks = (sel.marks || []).filter(([from, to]) => from < to && to <= m.n).slice(0, 12);
  S.sel = sel;
  m.marks = allMarks();
  app.classList.remove('kv-empty');
  tabs.steps.button.hidden = !m.evictions;
  showSource();
  fillBar();
  S.seq += 1;
  app.dataset.sel = JSON.stringify({...sel, run: S.run, seq: S.seq, src: 'open'});
  document.dispatchEvent(new CustomEvent('kv:run'));
  views.forEach(view => { view.dirty = true; });
  showTab(tab || S.tab);
  await loadText();
  docView.dirty = true;
  await refresh(docView);
  if (sel.tok) scrollToToken(sel.tok[0]);
  app.setAttribute('aria-busy', 'false');
  app.dataset.ready = id;
}

function emptyPage() {
  app.classList.add('kv-empty');
  app.setAttribute('aria-busy', 'false');
  app.dataset.ready = 'empty';
  put(findingBox, h('span', {class: 'kv-eyebrow'}, 'Nothing to show yet'),
    h('p', {class: 'kv-lead'}, 'Paste a text, ask a question about it, choose methods, and press Run.'),
    h('p', {class: 'kv-caution'}, 'The first run fetches a small model; the page says how far it is.'));
  openSetup();
}

function mount() {
  plotly().catch(() => {});  // 5 MB of script: read while the run is asked for
  const explore = h('div', {class: 'kv-explore'}, buildBar(), cardsBox,
    h('div', {class: 'kv-cards-foot'}, allButton), stripBox, allBox,
    h('div', {class: 'kv-work'}, buildDocument(), buildTabs()));
  put(app, banner, buildTour(), statusLine, liveBox, findingBox, explore, live);
  buildHead();
  mountRun();
  const link = readLink();
  showTab(link.tab && tabs[link.tab] ? link.tab : 'kept');
  if (link.run) openRun(link.run, link.sel, link.tab);
  else if (boot.stored.length) openRun(boot.stored[0].id, link.sel, link.tab);
  else emptyPage();
}

mount();
