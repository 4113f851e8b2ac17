// The sweep that is shown and what is looked at in it: {model, protocol, measure, a, b, budget, by}.
import {ask} from '../lib/page.js';
import {S} from '../lib/state.js';

export const EV = {id: null, meta: null, sel: {}, turn: 0, own: []};

export const askSweep = (view, args = {}, sel = EV.sel) => ask(view, args, sel, EV.id);

// When a view of the sweep can be seen.
export const onEvidence = () => S.page === 'evidence' && Boolean(EV.meta);

const ALL = ['sweep', 'sweep-model', 'sweep-protocol'];
export const reads = (...names) => [...ALL, ...names.map(name => `sweep-${name}`)];
