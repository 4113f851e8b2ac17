// "Add this view": the story of the run that is shown, step by step; played, edited, taken along.
import {copyLink, h, put} from '../lib/dom.js';
import {fmt, spanName} from '../lib/format.js';
import {page, say} from '../lib/page.js';
import {S, isOne, label} from '../lib/state.js';
import {MOST_STEPS, MOST_WORDS, setSteps, story, storyLink, viewNow} from '../lib/story.js';
import {tabs} from '../lib/tabs.js';
import {exportRun} from './export.js';
import {openStage} from './stage.js';
import {closeStrip, walk} from './strip.js';

const list = h('ol', {class: 'kv-steps'}), note = h('p', {class: 'kv-guide', role: 'status'});
const sentence = h('input', {type: 'text', id: 'kv-step-words', maxlength: MOST_WORDS, dir: 'auto',
  'aria-label': 'One sentence about this view', placeholder: 'One sentence about this view',
  onkeydown: event => { if (event.key === 'Enter') { event.preventDefault(); add(); } }});
const button = (text, onclick, attrs = {}) =>
  h('button', {class: 'kv-button kv-small', onclick, ...attrs}, text);
const tools = h('div', {class: 'kv-tools'},
  button('Play on stage', () => openStage(story.steps), {id: 'kv-play-story',
    title: 'Full screen: arrow keys or space walk, P plays the budget, Escape ends'}),
  button('Walk through', () => walk({name: 'Story', steps: story.steps}), {id: 'kv-walk-story'}),
  button('Save as a page (.html)', () => exportRun('page'), {id: 'kv-save-story',
    title: 'One file that plays without a network'}),
  button('Copy link', shareStory, {id: 'kv-link-story'}));
const box = h('section', {class: 'kv-story', id: 'kv-story', 'aria-label': 'Story', hidden: true});
export const storyButton = h('button', {class: 'kv-button', id: 'kv-story-button', 'aria-expanded': 'false',
  onclick: () => toggle()}, 'Story');
export const addButton = h('button', {class: 'kv-button kv-small', id: 'kv-add-view',
  title: 'Make what is shown a step of a story', onclick: () => { toggle(true); sentence.focus(); }},
'Add this view');

const NAMES = {answers: 'Answers', text: 'Text', budget: 'Budget'};
const tabName = id => tabs.get(id)?.button.textContent || NAMES[id] || id;
const showsWhat = () => [['answers', 'Answers'], ['text', 'Text'], ['budget', 'Budget'],
  ...[...tabs].filter(([id, tab]) => !tab.button.hidden && id !== 'beside')
    .map(([id, tab]) => [id, tab.button.textContent])];

function toggle(open = box.hidden) {
  box.hidden = !open;
  storyButton.setAttribute('aria-expanded', String(open));
  if (open) box.scrollIntoView({block: 'nearest'});
}

function add() {
  if (story.steps.length >= MOST_STEPS) {
    put(note, `A story has up to ${MOST_STEPS} steps.`);
    return;
  }
  change([...story.steps, viewNow(sentence.value.trim())], `Step ${story.steps.length + 1} added.`);
  sentence.value = '';
  sentence.focus();
}

// The steps from now on; `told` is said, and `focus` names the button that keeps the focus.
function change(steps, told, focus) {
  setSteps(steps);
  closeStrip();
  draw();
  say(told);
  if (focus) list.querySelector(focus)?.focus();
}

function move(i, by) {
  const steps = [...story.steps], to = i + by;
  if (to < 0 || to >= steps.length) return;
  [steps[i], steps[to]] = [steps[to], steps[i]];
  change(steps, `Step ${i + 1} is step ${to + 1} now.`, `[data-move="${to}:${by}"]`);
}

const with_ = (i, patch) => story.steps.map((step, at) => at === i ? {...step, ...patch} : step);

function viewWords({view: sel}) {
  return [label(sel.a), sel.b ? label(sel.b) : null, `${fmt.budget(sel.budget)} kept`,
    isOne(sel.layer) ? `layer ${sel.layer}` : null, isOne(sel.head) ? `KV head ${sel.head}` : null,
    sel.tok ? `tokens ${spanName(sel.tok)}` : null].filter(Boolean).join(' · ');
}

function row(step, i) {
  const what = h('select', {class: 'kv-step-edit', 'aria-label': `What step ${i + 1} shows`,
    onchange: event => change(with_(i, {shows: event.target.value}), `Step ${i + 1} changed.`)},
  showsWhat().map(([id, name]) => h('option', {value: id, selected: id === step.shows}, name)));
  return h('li', {}, h('div', {class: 'kv-step-row'},
    h('input', {type: 'text', class: 'kv-step-text', value: step.words, readOnly: page.offline,
      maxlength: MOST_WORDS, dir: 'auto',
      'aria-label': `Sentence of step ${i + 1}`,
      onchange: event => change(with_(i, {words: event.target.value.trim()}), `Step ${i + 1} changed.`)}),
    what,
    button('Show', () => walk({name: 'Story', steps: story.steps, at: i}),
      {'aria-label': `Show step ${i + 1}`}),
    h('span', {class: 'kv-step-row kv-step-edit'}, button('↑', () => move(i, -1),
      {'aria-label': `Move step ${i + 1} up`, 'data-move': `${i}:-1`,
      disabled: i === 0}),
    button('↓', () => move(i, 1), {'aria-label': `Move step ${i + 1} down`, 'data-move': `${i}:1`,
      disabled: i === story.steps.length - 1}),
    button('Take this view', () => change(with_(i, {...viewNow(''), words: step.words}),
      `Step ${i + 1} shows this view now.`), {'aria-label': `Let step ${i + 1} show this view`}),
    h('button', {class: 'kv-x', 'aria-label': `Delete step ${i + 1}`,
      onclick: () => change(story.steps.filter((_, at) => at !== i), `Step ${i + 1} deleted.`)}, '×'))),
  h('p', {class: 'kv-muted', dir: 'auto'}, `${viewWords(step)}`));
}

function draw() {
  const count = story.steps.length;
  storyButton.textContent = count ? `Story (${count})` : 'Story';
  put(list, story.steps.map(row));
  tools.hidden = !count;
  put(note, page.offline ? '' : count
    ? 'The browser keeps this draft; Export, Whole run keeps it with the run.'
    : 'Choose what you want to show, write one sentence, add it. The steps play on a stage for a talk.');
}

async function shareStory(event) {
  const link = storyLink(story.steps), {target} = event;
  if (!link) {
    put(note, 'This story is too long for a link. Save it as a page, or shorten its sentences.');
    return;
  }
  await copyLink(target, link);
  history.replaceState(history.state, '', link);
}

export function buildStory() {
  put(box, h('h3', {class: 'kv-panel-title'}, 'Story'),
    h('div', {class: 'kv-step-row kv-step-edit'}, sentence,
      button('Add this view', add, {id: 'kv-add-step'})),
    list, tools, note);
  document.addEventListener('kv:story', () => {
    draw();
    if (page.offline || location.hash.startsWith('#story=')) toggle(story.steps.length > 0);
  });
  return box;
}
