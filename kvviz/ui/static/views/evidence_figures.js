// The figures over a sweep, and what a click on one of their points does.
import {h} from '../lib/dom.js';
import {Panel} from '../lib/panel.js';
import {openItem} from './evidence_item.js';
import {EV, onEvidence, reads} from './evidence_state.js';

const first = p => Array.isArray(p.customdata) ? p.customdata[0] : '';
const common = {apart: onEvidence, of: () => ({sel: EV.sel, run: EV.id}), onHover: first};

// {name: element}; `look` looks at something else in the sweep.
export function figures(look) {
  const budget = new Panel({...common, id: 'evidence-budget', title: 'Against the share kept',
    view: 'evidence_budget', height: 390, reads: reads('measure', 'a', 'b', 'budget'),
    onPick: p => {
      const [, method, name] = p.customdata || [];
      if (name) look({budget: name, ...method !== EV.sel.a ? {b: method} : {}});
    }});
  const pairs = new Panel({...common, id: 'evidence-pairs', title: 'B minus A, item by item',
    view: 'evidence_pairs', height: 290, reads: reads('measure', 'a', 'b', 'budget')});
  const items = new Panel({...common, id: 'evidence-items', title: 'Item by item: A against B',
    view: 'evidence_items', height: 370, reads: reads('measure', 'a', 'b', 'budget'),
    onPick: (p, panel) => p.customdata?.[1] && openItem(p.customdata[1], {}, panel)});
  const slices = new Panel({...common, id: 'evidence-slices', title: 'Where it holds',
    view: 'evidence_slices',
    height: 240, reads: reads('measure', 'a', 'b', 'budget', 'by')});
  const needles = new Panel({...common, id: 'evidence-needles', title: 'Needle grid',
    view: 'evidence_needles',
    height: 300, reads: reads('grown'), onPick: (p, panel) => {
      const [, item, a, name] = p.customdata || [];
      if (item) openItem(item, a === 'full' ? {} : {a, budget: name}, panel);
    }});
  const grid = h('div', {}, needles.el), load = needles.load.bind(needles);
  needles.view.refresh = async seq => {
    grid.hidden = !EV.meta.needles;
    if (EV.meta.needles) await load(seq);
  };
  return {budget: budget.el, pairs: pairs.el, items: items.el, slices: slices.el, needles: grid};
}
