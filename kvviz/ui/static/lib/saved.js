// Servers that know replies beforehand: of a page saved as a file, with nobody else behind it, and of a page
// that opens.
const SAME = 1e-6;
const equal = (p, q) => typeof p === 'number' && typeof q === 'number' ? Math.abs(p - q) < SAME
  : JSON.stringify(p ?? null) === JSON.stringify(q ?? null);

// `replies` are {view, side, columns, sel: the fields that this view reads, reply}.
const of = (replies, {view, sel = {}, args = {}}) => replies.filter(one => one.view === view
  && equal(one.side, args.side) && Object.keys(one.sel).every(key => equal(one.sel[key], sel[key])));

// Of a map's, the one with most columns that has no more of them than pixels.
const fits = (known, columns = Infinity) => known.filter(one => !one.columns || one.columns <= columns).pop();

export function savedServer(replies) {
  return {async ask({view, sel = {}, args = {}}) {
    const known = args.give ? [] : of(replies, {view, sel, args});
    const found = fits(known, args.columns) || known[0];
    return found ? found.reply : {lost: true, error: 'This file holds the views of its story only.'};
  }};
}

// A server that is not asked for what came beside the page: `coming` are the replies to what this run opens
// on, as long as nothing in it was changed.
const UNCHANGED = {rule: 'mean', by: 'ab', direction: 'put_back'};
export function serverAfter(coming, run, server) {
  const asIs = ({sel, args}) => !sel?.marks?.length && Object.entries(args).every(([key, value]) =>
    ['side', 'columns'].includes(key) || UNCHANGED[key] === value);
  return {async ask(body) {
    const known = body.run === run && asIs(body) ? of(await coming, body) : [];
    return fits(known, body.args.columns)?.reply || server.ask(body);
  }};
}
