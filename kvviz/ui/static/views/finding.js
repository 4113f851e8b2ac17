// The finding in words, and one dot for each place at which the example asked the same question.
import {h, put} from '../lib/dom.js';
import {fmt} from '../lib/format.js';
import {ask} from '../lib/page.js';
import {S, addView, choose, label} from '../lib/state.js';
import {findingBox} from '../lib/status.js';
import {jobLine, startJob} from './run.js';

// "M1" and method names inside a finding are buttons: the sentence is a way into the picture.
function linked(sentence) {
  const names = [...S.meta.methods.map(m => [m.label, () => choose({a: m.id}, 'finding')]),
    ...S.meta.marks.map(m => [m.name, () => choose({tok: [m.start, m.end]}, 'finding')])]
    .sort((p, q) => q[0].length - p[0].length);
  const any = names.map(([name]) => name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|');
  const parts = any ? sentence.split(new RegExp(`(?<![\\w-])(${any})(?![\\w-])`)) : [sentence];
  return parts.map(part => {
    const hit = names.find(([name]) => name === part);
    return hit ? h('button', {class: 'kv-word', onclick: hit[1]}, part) : part;
  });
}

addView({id: 'finding', reads: ['run', 'a', 'b', 'budget'], el: findingBox, async refresh() {
  const reply = await ask('finding');
  if (reply.lost) return;
  if (reply.error) { put(findingBox, h('p', {}, reply.error)); return; }
  put(findingBox, h('span', {class: 'kv-eyebrow'}, 'Finding'),
    h('div', {class: 'kv-lines'},
      reply.lines.map((line, i) => h('p', {class: i ? '' : 'kv-lead'}, linked(line)))),
        sameButton(reply.same), placeDots(),
    h('p', {class: 'kv-caution'}, [...(reply.notices || []), reply.caution].join(' ')));
}});

// B with A's settings, where they differ: chosen where the run has it, else decoded.
const sameLine = jobLine();
function sameButton(same) {
  if (!same) return sameLine;
  const take = () => {
    if (same.held) choose({b: same.method}, 'finding');
    if (!same.held) startJob('decode_more', {run: S.run, method: same.method}, sameLine, {b: same.method});
    else if (!same.decoded) startJob('decode_more', {run: S.run, budget: S.sel.budget}, sameLine);
  };
  return [h('p', {}, h('button', {class: 'kv-button kv-small', id: 'kv-same', onclick: take},
    'Same settings'), ' ',
    h('span', {class: 'kv-muted'}, `${same.label}${same.held ? '' : ': decodes it'}`)), sameLine];
}

function placeDots() {
  const places = S.meta.places;
  if (!places) return null;
  const at = found => Object.entries(found
    || {}).find(([share]) => Math.abs(Number(share) - S.sel.budget) < 1e-6);
  const rows = [S.sel.a, S.sel.b].filter(Boolean).map(method => [method, at(places.found?.[method])])
    .filter(([, found]) => found);
  if (!rows.length) return null;
  const where = i => `${places.what || 'Answer'} at ${fmt.share(places.depths?.[i] ?? 0)} of the text`;
  const row = ([method, [, found]]) => h('span', {class: 'kv-place-row', role: 'img',
    'aria-label': `${label(method)}: found at ${found.filter(Boolean).length} of ${found.length} places`},
  h('span', {class: 'kv-muted'}, label(method)), ' ',
  found.map((hit, i) => h('i', {class: hit ? 'kv-dot kv-hit' : 'kv-dot',
    title: `${where(i)}: ${hit ? 'found' : 'not found'}`})));
  return h('p', {class: 'kv-places'}, rows.map(row),
    h('span', {class: 'kv-muted'}, '● found ○ not found, from the start of the text to its end'));
}
