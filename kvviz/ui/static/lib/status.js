// What stands above the views: one line on what goes on, and the box of the finding.
import {h, put} from './dom.js';

export const findingBox = h('section', {class: 'kv-finding', id: 'kv-finding', 'aria-label': 'Finding',
  'aria-live': 'polite', tabindex: -1});
export const statusLine = h('p', {class: 'kv-status', hidden: true, role: 'status'});

export function tellStatus(message, failed = false) {
  put(statusLine, message || '');
  statusLine.className = `kv-status${failed ? ' kv-failed' : ''}`;
  statusLine.hidden = !message;
}
