// What a user does with the page, as events, and what the page then shows. Its last element gets the
// results as JSON: {step: problem or ""}.

const results = {};
function step(name, body) {
  try {
    body();
    results[name] = '';
  } catch (error) {
    results[name] = String(error.message || error);
  }
}
function expect(found, wanted, what) {
  if (JSON.stringify(found) !== JSON.stringify(wanted))
    throw new Error((what ? what + ': ' : '') + 'expected ' + JSON.stringify(wanted) + ', got ' + JSON.stringify(found));
}
const {painter, state: shown, actionText: textOf} = viewer;
const surface = document.getElementById('canvas');
const textIn = (id) => document.getElementById(id).innerText;

// The action with a text, and its middle in coordinates of the window.
function named(text, run = shown.runs[0]) {
  for (let action = 0; action < run.size; ++action)
    if (run.kind[action] && textOf(run, action) === text) return action;
  throw new Error('no ' + text);
}
function middleOf(action, run = shown.runs[0]) {
  painter.draw();
  const box = painter.boxOf(run, action), at = surface.getBoundingClientRect();
  return {clientX: at.left + (box.left + box.right) / 2, clientY: at.top + (box.top + box.bottom) / 2};
}
function pointer(type, at) { surface.dispatchEvent(new PointerEvent(type, {...at, bubbles: true, pointerId: 1})); }
function press(key) { document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})); }
function colorAt(at) {
  painter.draw();
  const box = surface.getBoundingClientRect(), ratio = surface.width / box.width;
  return [...painter.context.getImageData((at.clientX - box.left) * ratio, (at.clientY - box.top) * ratio, 1, 1).data.slice(0, 3)];
}
