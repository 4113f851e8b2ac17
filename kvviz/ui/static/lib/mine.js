// The runs made in this browser: ids, questions and times, kept by the browser and nowhere else.
const KEY = 'kvviz-runs', MOST = 12, LONGEST = 60;

export function myRuns() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) || '[]');
    return Array.isArray(kept) ? kept.filter(one => typeof one?.id === 'string') : [];
  } catch (error) { return []; }
}

function keep(runs) {
  try { localStorage.setItem(KEY, JSON.stringify(runs.slice(0, MOST))); } catch (error) { /* no storage */ }
}

export function remember(meta) {
  if (meta.origin !== 'own' || myRuns().some(one => one.id === meta.id)) return;
  const at = new Date().toLocaleString([], {dateStyle: 'short', timeStyle: 'short'});
  keep([{id: meta.id, title: `${at} · ${String(meta.question).slice(0, LONGEST)}`}, ...myRuns()]);
}

export const forget = id => keep(myRuns().filter(one => one.id !== id));
