// Change what was kept, then decode again: the edit beside three random controls.
const tryBox = {edits: [], scope: 'all', grow: false};

function buildTry() {
  const scope = chooser('In', [['all', 'all layers']], 'all', v => { tryBox.scope = v; }, {id: 'kv-try-scope'});
  const pin = h('button', {class: 'kv-button', id: 'kv-pin', onclick: () => addEdit('pin')}, 'Pin selection');
  const evict = h('button', {class: 'kv-button', id: 'kv-evict', onclick: () => addEdit('evict')}, 'Evict selection');
  const undo = h('button', {class: 'kv-button kv-small', id: 'kv-undo', onclick: () => { tryBox.edits.pop(); show(); }}, 'Undo');
  const list = h('ol', {class: 'kv-edits'}), hint = h('p', {class: 'kv-guide'});
  const size = (grow, text) => h('label', {class: 'kv-check'}, h('input', {type: 'radio', name: 'kv-size', checked: !grow,
    onchange: () => { tryBox.grow = grow; }}), text);
  const go = h('button', {class: 'kv-button kv-primary', id: 'kv-again', onclick: () => {
    trigger('try_again', {run: S.run, sel: S.sel, edits: tryBox.edits, grow: tryBox.grow});
  }}, 'Decode again');
  tryBox.result = h('section', {id: 'kv-try-result', 'aria-live': 'polite', 'aria-label': 'Result'});

  function addEdit(kind) {
    const s = S.sel;
    if (!s.tok) return;
    tryBox.edits.push({kind, tok: s.tok, text: shown(textOf(s.tok), 24), layer: tryBox.scope === 'all' ? null : s.layer,
      head: tryBox.scope === 'head' ? s.head : null});
    show();
  }

  function show() {
    if (!S.meta) return;
    const s = S.sel, one = s.layer !== null && s.layer !== undefined, head = one && s.head !== null && s.head !== undefined;
    scope.select.fill([['all', 'all layers'], ...(one ? [['layer', `layer ${s.layer}`]] : []),
      ...(head ? [['head', `layer ${s.layer}, KV head ${s.head}`]] : [])], tryBox.scope);
    if (scope.select.value !== tryBox.scope) tryBox.scope = scope.select.value = 'all';
    pin.disabled = evict.disabled = !s.tok;
    undo.hidden = !tryBox.edits.length;
    const decoded = isDecoded(s.a, s.budget) && !s.a.includes('+');
    go.disabled = !tryBox.edits.length || !decoded;
    put(hint, !decoded ? `${label(s.a)} was not decoded at ${fmt.share(s.budget)}: choose a budget with a mark under the slider.`
      : !s.tok ? 'Choose tokens in the text or in a map.'
        : `Chosen: ${spanName(s.tok)} “${shown(textOf(s.tok), 24)}”. ${S.meta.origin === 'own' ? '' : 'Decoding loads the model first.'}`);
    put(list, tryBox.edits.map(e => h('li', {}, `${e.kind === 'pin' ? 'Pin' : 'Evict'} ${spanName(e.tok)} “${e.text}” in `
      + (e.layer === null ? 'all layers' : e.head === null ? `layer ${e.layer}` : `layer ${e.layer}, KV head ${e.head}`))));
  }

  document.addEventListener('kv:sel', show);
  document.addEventListener('kv:text', show);
  document.addEventListener('kv:run', () => { tryBox.edits = []; show(); showExperiment(); });
  return [h('h3', {class: 'kv-panel-title'}, 'Change what was kept, then decode again'),
    h('p', {class: 'kv-guide'}, 'Only here may a change be called a cause: the same edit is compared with random edits of the same size.'),
    h('div', {class: 'kv-box'}, h('div', {class: 'kv-tools'}, h('b', {}, '1 Edit'), pin, evict, scope, undo), hint, list,
      h('div', {class: 'kv-tools'}, h('b', {}, '2 Size'), size(false, 'Keep the cache size'), size(true, 'Let it grow or shrink')),
      h('div', {class: 'kv-tools'}, h('b', {}, '3'), go, h('span', {class: 'kv-muted'}, 'runs the edit and three random controls'))),
    tryBox.result];
}

function showExperiment() {
  const tried = S.meta?.experiment;
  if (!tried || !Array.isArray(tried.rows)) {
    put(tryBox.result, '');
    return;
  }
  put(tryBox.result, h('p', {class: 'kv-try-sentence'}, tried.sentence),
    h('div', {class: 'kv-scroll'}, h('table', {class: 'kv-table'}, h('thead', {}, h('tr', {},
      ['', 'Answer', '', 'KL', 'Output error', 'Held'].map(t => h('th', {scope: 'col'}, t)))),
    h('tbody', {}, tried.rows.map(r => h('tr', {}, h('th', {scope: 'row'}, r.name), h('td', {class: 'kv-wrap', dir: 'auto'}, r.text || '(empty)'),
      h('td', {}, VERDICTS[r.verdict] ? h('b', {class: `kv-${r.verdict}`}, VERDICTS[r.verdict]) : ''),
      h('td', {}, r.kl), h('td', {}, r.error || '–'), h('td', {}, r.held)))))));
}
