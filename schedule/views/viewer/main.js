// The page: what is shown, and how mouse and keyboard change it. Everything is drawn from `state`.

const data = JSON.parse(document.getElementById('data').textContent);
const kinds = data.kinds;
for (const kind of Object.values(kinds)) kind.rgb = kind.colors.map(parseColor);

const dark = window.matchMedia && matchMedia('(prefers-color-scheme: dark)').matches;
const state = {
  runs: data.runs.map((run) => decodeRun(run, kinds)),
  camera: {from: 0, to: 1, scroll: 0},
  theme: dark ? 'dark' : 'light',
  critical: false, memory: true, lanes: true, selected: null, found: [], foundAt: -1,
};
const end = Math.max(...state.runs.map((run) => run.makespan)) || 1;
const element = (id) => document.getElementById(id);
const canvas = element('canvas'), tip = element('tip'), panel = element('panel'), query = element('query');
const painter = new Painter(canvas, state);

let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; painter.draw(); });
}
function resize() {
  const box = element('stage').getBoundingClientRect();
  painter.resize(Math.max(200, box.width), Math.max(100, box.height), window.devicePixelRatio || 1);
  redraw();
}

function setCamera(from, to) {
  const span = Math.min(1.1 * end, Math.max(1e-6 * end, to - from));
  from = Math.min(Math.max(from, -0.05 * end), 1.05 * end - span);
  Object.assign(state.camera, {from, to: from + span});
  redraw();
}
function fit() {
  state.camera.scroll = 0;
  setCamera(0, 1.01 * end);
}
// Zooms by a factor; what lies under pixel x stays there.
function zoom(factor, x) {
  const {from, to} = state.camera, time = painter.time(x);
  setCamera(time - (time - from) * factor, time + (to - time) * factor);
}
function pan(pixels) {
  const {from, to} = state.camera, by = pixels * (to - from) / (painter.width - GUTTER);
  setCamera(from + by, to + by);
}
function scroll(pixels) {
  state.camera.scroll += pixels;
  redraw();
}

function select(run, action) {
  state.selected = run && {run, action};
  panel.hidden = !run;
  if (run) showLines(panel, detailLines(run, action, (other, one) => { select(other, one); reveal(other, one); }));
  redraw();
}
// Moves the camera so that an action is in sight and wide enough to read.
function reveal(run, action) {
  const {from, to} = state.camera, wanted = 40 * Math.max(run.end[action] - run.start[action], 1e-6 * end);
  const span = Math.min(to - from, wanted), middle = (run.start[action] + run.end[action]) / 2;
  if (run.start[action] < from || run.end[action] > to || to - from > wanted)
    setCamera(middle - span / 2, middle + span / 2);
  const row = painter.rowOf(run, run.rank[action]);
  if (row && (row.top < state.camera.scroll + AXIS || row.top + row.height > state.camera.scroll + painter.height))
    state.camera.scroll = row.top - painter.height / 2;
}
function search(text) {
  state.found = state.runs.flatMap((run) => find(run, text).map((action) => ({run, action})));
  state.foundAt = -1;
  element('hits').textContent = text ? (state.found.length ? '' : 'not found') : '';
  nextFound(1);
}
function nextFound(by) {
  const count = state.found.length;
  if (!count) return;
  state.foundAt = (state.foundAt + by + count) % count;
  const {run, action} = state.found[state.foundAt];
  element('hits').textContent = (state.foundAt + 1) + ' of ' + count;
  select(run, action);
  reveal(run, action);
}

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  redraw();
}
const toggle = (name) => () => {
  state[name] = !state[name];
  element(name).setAttribute('aria-pressed', state[name]);
  redraw();
};
const actions = {
  fit, critical: toggle('critical'), memory: toggle('memory'), lanes: toggle('lanes'),
  theme: () => setTheme(state.theme === 'dark' ? 'light' : 'dark'),
  help: () => { element('keys').hidden = !element('keys').hidden; },
};
for (const [name, act] of Object.entries(actions)) element(name).onclick = act;

const keys = {
  f: fit, c: actions.critical, m: actions.memory, l: actions.lanes, t: actions.theme, '?': actions.help,
  '+': () => zoom(0.8, painter.width / 2), '=': () => zoom(0.8, painter.width / 2), '-': () => zoom(1.25, painter.width / 2),
  ArrowLeft: () => pan(-80), ArrowRight: () => pan(80), ArrowUp: () => scroll(-60), ArrowDown: () => scroll(60),
  n: () => nextFound(1), N: () => nextFound(-1),
  '/': () => { query.focus(); query.select(); },
  Escape: () => { select(null); element('keys').hidden = true; },
};
document.addEventListener('keydown', (event) => {
  if (event.target === query) {
    if (event.key === 'Escape') query.blur();
    return;
  }
  const act = keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
query.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter') return;
  if (query.value === query.dataset.last) {
    nextFound(event.shiftKey ? -1 : 1);
  } else {
    query.dataset.last = query.value;
    search(query.value);
  }
});

const point = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
canvas.addEventListener('wheel', (event) => {
  event.preventDefault();
  if (event.shiftKey) return scroll(event.deltaY || event.deltaX);
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return pan(event.deltaX);
  zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) / 400), point(event)[0]);
}, {passive: false});

let drag = null;
canvas.addEventListener('pointerdown', (event) => {
  const [x, y] = point(event);
  drag = {x, y, moved: false};
  if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener('pointermove', (event) => {
  const [x, y] = point(event);
  if (drag) {
    if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3) drag.moved = true;
    if (!drag.moved) return;
    pan(drag.x - x);
    scroll(drag.y - y);
    Object.assign(drag, {x, y});
    tip.hidden = true;
    return;
  }
  const hit = painter.layout && painter.at(x, y);
  tip.hidden = !hit;
  if (!hit) return;
  showLines(tip, 'action' in hit ? hoverLines(hit.run, hit.action)
                 : 'stop' in hit ? stopLines(hit.rank, hit.stop) : memoryLines(hit.run, hit.rank, hit.time));
  const stage = element('stage').getBoundingClientRect();
  tip.style.left = Math.min(x + 14, stage.width - tip.offsetWidth - 4) + 'px';
  tip.style.top = (y + 18 + tip.offsetHeight > stage.height ? y - 10 - tip.offsetHeight : y + 18) + 'px';
});
canvas.addEventListener('pointerup', (event) => {
  const clicked = drag && !drag.moved;
  drag = null;
  if (!clicked) return;
  const hit = painter.at(...point(event));
  if (hit && 'action' in hit) select(hit.run, hit.action); else select(null);
});
canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
canvas.addEventListener('dblclick', fit);

// Paper is white, and a picture for it may be drawn finer.
let themeOnScreen = state.theme;
window.addEventListener('beforeprint', () => {
  themeOnScreen = state.theme;
  setTheme('light');
  painter.resize(painter.width, painter.height, 3);
  painter.draw();
});
window.addEventListener('afterprint', () => { setTheme(themeOnScreen); resize(); });
window.addEventListener('resize', resize);

function start() {
  const several = state.runs.length > 1;
  showLines(element('titles'), state.runs.map((run, i) => (several ? 'AB'[i] + ': ' : '') + run.title));
  document.title = state.runs.map((run) => run.title.split(':')[0]).join(' and ');
  const used = new Set(state.runs.flatMap((run) => run.kind.filter(Boolean)));
  for (const run of state.runs)
    for (const parts of run.parts.values()) parts.forEach((part) => used.add(part.kind));
  const legends = new Map();
  for (const kind of Object.values(kinds))
    if (used.has(kind) && !kind.compound) legends.set(kind.legend, kind.colors[0]);
  element('legend').replaceChildren(...[...legends].map(([legend, color]) => {
    const one = document.createElement('span');
    one.textContent = legend;
    one.style.setProperty('--color', color);
    return one;
  }));
  element('lanes').hidden = !state.runs.some((run) => run.isProgram);
  setTheme(state.theme);
  fit();
  resize();
}
start();
// For scripts in the page, its tests among them.
window.viewer = {state, painter, actionText, setCamera, fit};
