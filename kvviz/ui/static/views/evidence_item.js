// An item of a sweep in the lenses: its kept run, else the same asked again at once. The form stays as it is.
import {h} from '../lib/dom.js';
import {ask, page} from '../lib/page.js';
import {showPage} from '../lib/pages.js';
import {tellStatus} from '../lib/status.js';
import {openRun} from './opening.js';
import {isRunning, startRun} from './run.js';
import {EV, askSweep} from './evidence_state.js';

const made = new Map();  // what was asked: the run that it came to

// `sel` is what is looked at where it differs from the page's choice; `panel` tells what did not work.
export async function openItem(item, sel, panel) {
  panel.tell(`Opening ${item}`);
  const reply = await askSweep('evidence_item', {item}, {...EV.sel, ...sel});
  if (reply.error) { panel.tell(reply.error); return; }
  const asked = JSON.stringify(reply.fields), name = `Item ${reply.item} of “${EV.meta.title}”`;
  const have = reply.run || await kept(made.get(asked));
  if (!have && isRunning()) {
    panel.tell('Something is being computed. Stop it, or wait for its end.');
    return;
  }
  panel.tell('\u00a0');
  showPage('run');
  scrollTo(0, 0);
  if (have) {
    await openRun(have, reply.sel);
    tell(`${name}: the run that ${reply.run ? 'the sweep kept' : 'was made of it'}. `);
    return;
  }
  const line = h('div', {class: 'kv-job', 'aria-live': 'polite'});
  const run = () => {
    tell(`${name} is run as the sweep ran it, to be seen in the lenses. `, line);
    startRun(reply.fields, {line, sel: reply.sel, ended: id => {
      made.set(asked, id);
      tell(`${name}, run as the sweep ran it. `);
    }});
  };
  const {model} = reply.fields;
  if (reply.here || page.boot.form.models.some(one => one.id === model)) run();
  else {  // a file may name any model: none is fetched because of a click on a dot
    const button = {class: 'kv-button kv-small', id: 'kv-evidence-run', onclick: run};
    tell(`${name} was answered by ${model}, which is none of the models offered here. `,
      h('button', button, 'Run it with this model'));
  }
}

// A run that was made of an item, as long as the server has it.
async function kept(id) {
  return id && !(await ask('meta', {}, {}, id)).error ? id : null;
}

function tell(words, more = null) {
  const back = h('button', {class: 'kv-button kv-small', id: 'kv-evidence-back', onclick: () => {
    tellStatus('');
    showPage('evidence');
  }}, 'Back to Evidence');
  tellStatus([words, back, more].filter(Boolean));
}
