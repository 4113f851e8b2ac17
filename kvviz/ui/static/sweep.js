// Loss against budget, and what was dropped while generating.
const MEASURES = [['kl', 'Mean KL'], ['output_error', 'Output error'], ['mark_held', 'Marked or chosen tokens held'], ['overlap', 'Overlap with A'],
  ['bytes', 'Memory, MB'], ['expected', 'Expected answer']];

function buildSweep() {
  const pick = chooser('Measure', MEASURES, LOOK.measure, v => { LOOK.measure = v; touch(['measure']); }, {id: 'kv-measure'});
  const panel = new Panel({id: 'sweep', title: 'Loss against budget, this document', view: 'sweep', tab: 'sweep', height: 460,
    reads: ['run', 'a', 'b', 'tok', 'measure', 'budget'], args: () => ({measure: LOOK.measure}),
    onHover: p => `${p.data?.name || ''} ${p.text || ''} at ${fmt.share(10 ** Number(p.x) <= 1.01 && Number(p.x) <= 0 ? 10 ** Number(p.x) : Number(p.x))}`.trim(),
    onPick: p => {
      const x = Number(p.x), share = x <= 0 ? 10 ** x : x > 1 ? x / 100 : x;
      choose({budget: S.meta.steps[stepIndex(share)]}, 'sweep');
    }});
  return [h('div', {class: 'kv-tools'}, pick), panel.el];
}

function buildSteps() {
  const panel = new Panel({id: 'steps', title: 'What was dropped while the answer was written', view: 'steps', tab: 'steps', height: 420,
    reads: ['run', 'a', 'budget'], onHover: p => p.pointNumber ? `step ${p.x}, layer ${p.y}` : ''});
  return [panel.el];
}
