// Four captions for a first visit. Each sets the selection; the numbers come from the run.
const tourBox = h('section', {class: 'kv-tour', id: 'kv-tour', 'aria-label': 'Tour', hidden: true});
let tourAt = 0;
const TOUR_KEY = 'kvviz-tour-over';

function tourOver() {
  tourBox.hidden = true;
  try { localStorage.setItem(TOUR_KEY, '1'); } catch (error) { /* private mode: it shows again */ }
}

function buildTour() {
  document.addEventListener('kv:run', () => {
    let over = false;
    try { over = localStorage.getItem(TOUR_KEY) === '1'; } catch (error) { /* no storage, show it */ }
    tourAt = 0;
    if (!over && S.meta.origin === 'stored') showTour(); else tourBox.hidden = true;
  });
  document.addEventListener('kv:sel', event => {
    if (!tourBox.hidden && tourAt === 1 && event.detail.src !== 'tour' && event.detail.changed.includes('budget')) showTour();
  });
  return tourBox;
}

async function showTour() {
  tourBox.hidden = false;
  const reply = await ask('tour');
  if (reply.error) { tourBox.hidden = true; return; }
  const step = reply.steps[tourAt], last = tourAt === reply.steps.length - 1;
  const next = () => {
    if (last) { tourOver(); openSetup(); return; }
    tourAt += 1;
    const mark = S.meta.marks[0];
    if (mark) choose({tok: [mark.start, mark.end]}, 'tour');
    if (tourAt === 1) showTab('kept');
    showTour();
  };
  put(tourBox, h('span', {class: 'kv-eyebrow'}, `Tour ${tourAt + 1} of ${reply.steps.length}`), h('p', {}, step),
    h('button', {class: 'kv-button kv-primary', onclick: next}, ['Show me why', 'Next'][tourAt] || (last ? 'Use my own text' : 'Next')),
    h('button', {class: 'kv-button', onclick: tourOver}, 'Skip tour'));
}
