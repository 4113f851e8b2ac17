// Methods that this model cannot run, each with the reason, and what makes them possible.
import {h, put} from '../lib/dom.js';
import {page} from '../lib/page.js';

const part = h('div', {'aria-live': 'polite'});
const stop = h('button', {class: 'kv-button kv-small', onclick: () => page.trigger('stop_calibration', {})},
  'Stop calibrating');
const box = h('div', {class: 'kv-calibration', hidden: true}, part, stop);

export const unavailableBox = h('div', {id: 'kv-unavailable'});

export function showUnavailable(s) {
  const calibrate = m => h('button', {class: 'kv-button kv-small', onclick: () => page.trigger('calibrate',
    {method: m.id, model: s.model, dtype: s.dtype})}, 'Calibrate for this model');
  const many = s.methods.length === 1 ? '1 method' : `${s.methods.length} methods`;
  put(unavailableBox, s.methods.length ? h('details', {class: 'kv-more', open: s.methods.length < 3},
    h('summary', {}, `${many} not available for this model`),
    h('ul', {class: 'kv-edits'}, s.methods.map(m => h('li', {}, h('b', {}, m.label), `: ${m.reason} `,
      s.calibrates && m.artefact ? calibrate(m) : null)))) : null, box);
}

export function showCalibration(s) {
  const running = s.inner === 'running';
  box.hidden = false;
  if (!box.isConnected) unavailableBox.append(box);
  stop.hidden = !running;
  put(part, h('p', {class: s.inner === 'failed' ? 'kv-failed' : 'kv-stage-line'}, h('b', {}, `${s.label}: `),
    s.message),
    running && Number.isFinite(s.fraction)
      ? h('div', {class: 'kv-progress'}, h('i', {style: `width:${100 * s.fraction}%`})) : null);
}
