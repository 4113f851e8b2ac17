// Loss against budget, a line a method.
import {chooser, h} from '../lib/dom.js';
import {fmt, plainTitle} from '../lib/format.js';
import {Panel} from '../lib/panel.js';
import {LOOK, S, choose, stepIndex, touch} from '../lib/state.js';

export function buildSweep() {
  const pick = chooser('Measure', [['kl', 'Mean KL']], LOOK.measure, v => {
    LOOK.measure = v;
    touch(['measure']);
  }, {id: 'kv-measure'});
  const words = p => typeof p.customdata === 'string' ? p.customdata : p.y;
  const panel = new Panel({id: 'sweep', title: 'Loss against budget, this document', view: 'sweep',
    tab: 'sweep', height: 460,
    reads: ['run', 'a', 'b', 'tok', 'measure', 'budget'], args: () => ({measure: LOOK.measure}),
    after: reply => pick.select.fill(reply.measures, LOOK.measure),
    onHover: p => `${plainTitle(p.data?.name) || ''}: ${words(p)} at ${fmt.share(Number(p.x))} kept`,
    onPick: p => choose({budget: S.meta.steps[stepIndex(Number(p.x))]}, 'sweep')});
  const grid = new Panel({id: 'ablation', title: 'Formula or setting?', view: 'ablation', tab: 'sweep',
    height: 280, reads: ['run', 'budget'],
    onHover: p => typeof p.customdata === 'string' ? p.customdata : ''});
  const box = h('div', {}, grid.el);
  document.addEventListener('kv:run', () => { box.hidden = !S.meta.ablation; });
  const load = grid.load.bind(grid);
  grid.view.refresh = async seq => { if (S.meta.ablation) await load(seq); };
  return [h('div', {class: 'kv-tools'}, pick), panel.el, box];
}
