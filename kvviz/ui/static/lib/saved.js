// The server of a page that was saved as a file: the replies it was saved with, and nobody else.
const SAME = 1e-6;
const equal = (p, q) => typeof p === 'number' && typeof q === 'number' ? Math.abs(p - q) < SAME
  : JSON.stringify(p ?? null) === JSON.stringify(q ?? null);

// `replies` are {view, side, columns, sel: the fields that this view reads, reply}.
export function savedServer(replies) {
  return {async ask({view, sel = {}, args = {}}) {
    const known = args.give ? [] : replies.filter(one => one.view === view
      && equal(one.side, args.side) && Object.keys(one.sel).every(key => equal(one.sel[key], sel[key])));
    // A map with no more columns than pixels, where one was saved.
    const fits = known.filter(one => !one.columns || one.columns <= (args.columns || Infinity));
    const found = fits[fits.length - 1] || known[0];
    return found ? found.reply : {lost: true, error: 'This file holds the views of its story only.'};
  }};
}
