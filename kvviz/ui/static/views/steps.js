// What was dropped while the answer was written, and where it came from. A click names those tokens and
// crosses them out in the document.
import {h, put} from '../lib/dom.js';
import {fmt, shown, typed} from '../lib/format.js';
import {Panel} from '../lib/panel.js';
import {S, choose, textOf} from '../lib/state.js';
import {crossOut} from './document.js';

const MOST_WORDS = 40;

// The counts of one cell by name.
function counts(panel, layer, cut) {
  const meta = panel.plot.spec.layout.meta, width = meta.channels.length;
  const flat = typed({...panel.plot.spec.data[0].customdata, shape: ''});
  const at = (layer * meta.steps.length + cut) * width;
  return Object.fromEntries(meta.channels.map((name, i) => [name, flat[at + i]]));
}

function cutWords(moment, layer, value) {
  const many = n => n === 1 ? 'entry' : 'entries';
  const from = value.document === undefined ? ''
    : `, ${fmt.count(value.document)} of ${fmt.count(value.tokens)} different tokens are in your text`;
  return `cut after ${moment}, layer ${layer}: `
    + `${fmt.count(value.entries)} ${many(value.entries)} dropped${from}`;
}

export function buildSteps() {
  const words = h('p', {class: 'kv-guide', id: 'kv-dropped'});
  const list = (panel, layer, cut) => {
    if (!panel.reply.dropped.length) {
      put(words, 'This run holds counts only: which tokens were dropped was not recorded.');
      return;
    }
    const tokens = panel.reply.dropped[cut][layer], read = tokens.filter(t => t < S.meta.n);
    const written = tokens.length - read.length, moment = panel.plot.spec.layout.meta.moments[cut];
    crossOut(read, `Crossed out: what layer ${layer} dropped after ${moment}.`);
    put(words, tokens.length ? `Dropped by layer ${layer} then: ` : '', read.slice(0, MOST_WORDS).map(t =>
      h('button', {class: 'kv-word', title: `token ${t}`,
        onclick: () => choose({tok: [t, t + 1], layer}, 'steps')},
        shown(textOf([t, t + 1])))), read.length > MOST_WORDS ? ` and ${read.length - MOST_WORDS} more` : '',
    written ? ` · ${fmt.count(written)} of the answer itself` : '');
  };
  const panel = new Panel({id: 'steps', title: 'What was dropped while the answer was written', view: 'steps',
    tab: 'steps', height: 420, reads: ['run', 'a', 'budget'],
    onHover: p => {
      if (p.pointNumber?.length !== 2) return '';
      const [layer, cut] = p.pointNumber, {moments} = panel.plot.spec.layout.meta;
      return cutWords(moments[cut], layer, counts(panel, layer, cut));
    },
    onPick: p => p.pointNumber?.length === 2 && list(panel, ...p.pointNumber),
      after: () => { put(words); crossOut(null); }});
  return [panel.el, words];
}
