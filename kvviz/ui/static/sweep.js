// Loss against budget, and what was dropped while generating.
const MEASURES = [['kl', 'Mean KL'], ['output_error', 'Output error'], ['mark_held', 'Marked or chosen tokens held'], ['overlap', 'Overlap with A'],
  ['bytes', 'Memory, MB'], ['expected', 'Expected answer']];

function buildSweep() {
  const pick = chooser('Measure', MEASURES, LOOK.measure, v => { LOOK.measure = v; touch(['measure']); }, {id: 'kv-measure'});
  const panel = new Panel({id: 'sweep', title: 'Loss against budget, this document', view: 'sweep', tab: 'sweep', height: 460,
    reads: ['run', 'a', 'b', 'tok', 'measure', 'budget'], args: () => ({measure: LOOK.measure}),
    onHover: p => `${plainTitle(p.data?.name) || ''}: ${typeof p.customdata === 'string' ? p.customdata : p.y} at ${fmt.share(Number(p.x))} kept`,
    onPick: p => choose({budget: S.meta.steps[stepIndex(Number(p.x))]}, 'sweep')});
  return [h('div', {class: 'kv-tools'}, pick), panel.el];
}

function buildSteps() {
  const panel = new Panel({id: 'steps', title: 'What was dropped while the answer was written', view: 'steps', tab: 'steps', height: 420,
    reads: ['run', 'a', 'budget'], onHover: p => p.pointNumber ? `step ${p.x}, layer ${p.y}` : ''});
  return [panel.el];
}
