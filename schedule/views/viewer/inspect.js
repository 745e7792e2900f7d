// What the page says about an action: a few lines beside the cursor, and a panel for the selected one.

function unitText(run, time) { return timeText(time) + (run.unit ? ' ' + run.unit : ''); }

// Why an action starts when it does.
function reasonText(run, action) {
  const start = run.start[action], other = bindingOf(run, action);
  if (start === 0) return 'starts at once';
  if (other < 0) return 'starts at ' + unitText(run, start);
  const who = actionText(run, other) + (run.rank[other] === run.rank[action] ? '' : ' of rank ' + run.rank[other]);
  if (run.kind[action].lane === 'receive' && run.kind[other].lane === 'send') return 'starts with ' + who;
  const transfer = start - run.end[other];
  if (run.measured) return 'starts ' + unitText(run, Math.max(0, transfer)) + ' after ' + who;
  return 'waits for ' + who + (transfer > 1e-6 * run.makespan ? ', then ' + unitText(run, transfer) + ' of transfer' : '');
}

function slackText(run, action) {
  if (run.measured) return 'measured';
  return run.slack[action] > 0 ? 'slack ' + unitText(run, run.slack[action]) : 'on a critical path';
}

function hoverLines(run, action) {
  return [
    actionText(run, action) + ', rank ' + run.rank[action] + ', step ' + run.step[action],
    unitText(run, run.start[action]) + ' to ' + unitText(run, run.end[action]) + ', takes ' +
      unitText(run, run.end[action] - run.start[action]),
    reasonText(run, action),
    slackText(run, action),
  ];
}

function stopLines(rank, stop) { return ['rank ' + rank + ' stops before ' + stop.text, ...stop.waits]; }

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; Math.abs(bytes) >= 1024 && unit + 1 < units.length; ++unit) bytes /= 1024;
  return Number(bytes.toPrecision(4)) + ' ' + units[unit];
}

function memoryLines(run, rank, time) {
  const {activations, bytes, unsharded} = run.ranks[rank], at = (series) => valueAt(series, time);
  const lines = ['rank ' + rank + ' at ' + unitText(run, time),
                 'activations ' + at(activations) + ', peak ' + activations.peak];
  if (run.isProgram) lines.push('unsharded stages ' + at(unsharded) + ', peak ' + unsharded.peak);
  if (bytes) lines.push(bytesText(at(bytes)) + ', peak ' + bytesText(bytes.peak));
  return lines;
}

// Puts text into an element, one <div> per line; a line may be [text, function] for a link.
function showLines(element, lines) {
  element.replaceChildren(...lines.map((line) => {
    const one = document.createElement('div'), [text, follow] = Array.isArray(line) ? line : [line];
    one.textContent = text;
    if (follow) {
      one.className = 'link';
      one.tabIndex = 0;
      one.onclick = follow;
      one.onkeydown = (event) => { if (event.key === 'Enter') follow(); };
    }
    return one;
  }));
}

function detailLines(run, action, select) {
  const link = (other) => ['  ' + actionText(run, other) + ', rank ' + run.rank[other] + ', ' +
                           unitText(run, run.start[other]) + ' to ' + unitText(run, run.end[other]),
                           () => select(run, other)];
  const all = hoverLines(run, action), shown = 12;
  const list = (title, others) => {
    if (!others.length) return;
    all.push(title, ...others.slice(0, shown).map(link));
    if (others.length > shown) all.push('  and ' + (others.length - shown) + ' more');
  };
  list('runs after', run.dependencies[action]);
  list('runs before', dependentsOf(run, action));
  return all;
}
