// What was dropped while the answer was written.
import {Panel} from '../lib/panel.js';

export function buildSteps() {
  const panel = new Panel({id: 'steps', title: 'What was dropped while the answer was written', view: 'steps',
    tab: 'steps',
    height: 420, reads: ['run', 'a', 'budget'], onHover: p => p.pointNumber ? `step ${p.x}, layer ${p.y}`
      : ''});
  return [panel.el];
}
