// An item of a sweep in the lenses: its kept run, else the form filled with it.
import {h} from '../lib/dom.js';
import {showPage} from '../lib/pages.js';
import {tellStatus} from '../lib/status.js';
import {openRun, openSetup} from './opening.js';
import {EV, askSweep} from './evidence_state.js';
import {fillForm} from './form.js';

// `sel` is what is looked at where it differs from the page's choice; `panel` tells what did not work.
export async function openItem(item, sel, panel) {
  panel.tell(`Opening ${item}`);
  const reply = await askSweep('evidence_item', {item}, {...EV.sel, ...sel});
  if (reply.error) { panel.tell(reply.error); return; }
  panel.tell('\u00a0');
  const back = h('button', {class: 'kv-button kv-small', id: 'kv-evidence-back', onclick: () => {
    tellStatus('');
    showPage('evidence');
  }}, 'Back to Evidence');
  showPage('run');
  scrollTo(0, 0);
  if (reply.run) {
    await openRun(reply.run, reply.sel);
    tellStatus([`Item ${reply.item} of “${EV.meta.title}”: the run that the sweep kept. `, back]);
    return;
  }
  fillForm(reply.fields);
  openSetup();
  tellStatus([`Item ${reply.item} of “${EV.meta.title}”: the sweep kept no run of it, so the form is filled. `
    + 'Press Run to see it in the lenses. ', back]);
}
