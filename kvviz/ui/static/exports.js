// Header: title, stored examples, link, exports.
function buildHead() {
  const place = document.getElementById('kv-head');
  if (!place) { setTimeout(buildHead, 50); return; }
  const copy = h('button', {class: 'kv-button', id: 'kv-copy', onclick: async () => {
    let done = true;
    try { await navigator.clipboard.writeText(location.href); } catch (error) { done = false; }
    copy.textContent = done ? 'Link copied' : 'Copy from the address bar';
    setTimeout(() => { copy.textContent = 'Copy link'; }, 2500);
  }}, 'Copy link');
  const item = (kind, text) => h('button', {class: 'kv-menu-item', onclick: () => exportRun(kind)}, text);
  const menu = h('details', {class: 'kv-menu', id: 'kv-export'}, h('summary', {class: 'kv-button'}, 'Export'),
    h('div', {class: 'kv-menu-list'}, item('zip', 'Whole run (.zip)'), item('npz', 'Kept masks (.npz)'),
      item('html', 'Report (.html)'), item('py', 'Python lines (.py)')));
  document.addEventListener('click', event => { if (!menu.contains(event.target)) menu.open = false; });
  menu.addEventListener('keydown', event => { if (event.key === 'Escape') menu.open = false; });
  put(place, h('a', {class: 'kv-skip', href: '#kv-finding', onclick: event => {
    event.preventDefault();
    findingBox.focus();
  }}, 'Go to the finding'),
  h('div', {class: 'kv-headline'}, h('h1', {}, 'kvviz'),
    h('p', {}, 'What does a language model forget when its cache is cut?')),
  h('div', {class: 'kv-head-tools'}, copy, menu), sourceLine);
}

async function exportRun(kind) {
  document.getElementById('kv-export').open = false;
  put(statusLine, 'Preparing the file');
  statusLine.hidden = false;
  const reply = await ask('export', {kind});
  statusLine.hidden = !reply.error;
  put(statusLine, reply.error || '');
  if (reply.text !== undefined) save(reply.name, reply.text, reply.type);
  else if (reply.path) {
    const link = h('a', {href: `${(window.gradio_config?.root || '')}/gradio_api/file=${reply.path}`, download: reply.name});
    document.body.append(link);
    link.click();
    link.remove();
  }
}

// One line saying which run is shown, and the ways to another.
const sourceLine = h('div', {class: 'kv-source', id: 'kv-source'});
function showSource() {
  const m = S.meta;
  const what = {stored: 'Stored example', own: 'Your run', file: 'Opened file'}[m.origin];
  const options = boot.stored.map(s => [s.id, s.title]);
  if (!options.some(([id]) => id === m.id)) options.unshift([m.id, m.title]);
  const pick = chooser('Example', options, m.id, id => openRun(id, {}), {id: 'kv-stored'});
  put(sourceLine, h('p', {}, h('b', {}, what), ` · ${m.model.id} · ${m.model.dtype} · ${fmt.count(m.n)} tokens`
    + (m.date ? ` · ${m.date}` : '') + ' · greedy',
  m.stored_note ? h('span', {class: 'kv-muted'}, ` · ${m.stored_note}`) : null),
  options.length > 1 ? pick : null);
}

const sleep = ms => new Promise(done => { setTimeout(done, ms); });

// Opens the fields. Right after the page has loaded they may not be there yet, so it tries again.
async function openSetup() {
  const field = () => document.querySelector('#kv-document-field textarea');
  for (let tries = 0; tries < 20 && !field()?.offsetParent; tries += 1) {
    document.querySelector('#kv-setup > button, #kv-setup button.label-wrap')?.click();
    await sleep(400);
  }
  document.getElementById('kv-setup')?.scrollIntoView({block: 'start', behavior: calm() ? 'auto' : 'smooth'});
  field()?.focus({preventScroll: true});
}
