// The data that the page carries, decoded into arrays by action. html.cc documents the encoding.
// Actions are numbered along the rows of a schedule, idle slots included.

const LANES = ['compute', 'send', 'receive', 'data'];

function parseColor(text) {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

// Cumulative changes as two arrays: times, and the value from each time on.
function decodeSeries(changes, perUnit) {
  const times = [0], values = [0];
  let tick = 0, value = 0;
  for (let i = 0; i < changes.length; i += 2) {
    tick += changes[i];
    value += changes[i + 1];
    times.push(tick / perUnit);
    values.push(value);
  }
  return {times, values, peak: values.reduce((most, one) => Math.max(most, one), 0)};
}

// The stages that are unsharded at a time: from the start of UNSHARD to the end of RESHARD.
function unshardedSeries(run, first, last) {
  const changes = [];
  for (let action = first; action < last; ++action) {
    const token = run.token[action];
    if (token === 'UNSHARD') changes.push([run.start[action], 1]);
    if (token === 'RESHARD') changes.push([run.end[action], -1]);
  }
  changes.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const times = [0], values = [0];
  let value = 0, peak = 0;
  for (const [time, change] of changes) {
    value += change;
    peak = Math.max(peak, value);
    times.push(time);
    values.push(value);
  }
  return {times, values, peak};
}

// The actions of one lane by start. `ends` is the latest end up to each of them, so that a binary
// search finds the first one in sight even where transfers overlap.
function makeLane(run, actions) {
  actions.sort((a, b) => run.start[a] - run.start[b] || a - b);
  const ends = new Float64Array(actions.length);
  let latest = 0;
  actions.forEach((action, i) => { ends[i] = latest = Math.max(latest, run.end[action]); });
  return {actions: Uint32Array.from(actions), ends};
}

function decodeRun(data, kinds) {
  const size = data.ranks.reduce((sum, row) => sum + row.kinds.length, 0);
  const run = {
    title: data.title, unit: data.unit, measured: data.measured, makespan: data.end / data.per_unit, size,
    rendezvous: data.rendezvous, isProgram: data.program, slices: data.slices,
    kind: new Array(size), token: new Array(size), parts: new Map(),
    rank: new Int32Array(size), step: new Int32Array(size),
    stage: new Int32Array(size), microbatch: new Int32Array(size),
    start: new Float64Array(size), end: new Float64Array(size), slack: new Float64Array(size),
    shade: new Uint8Array(size), dependencies: new Array(size), ranks: [],
    stops: data.stops.map((stop) => stop && {text: stop[0], time: stop[1] / data.per_unit, waits: stop[2]}),
  };
  let action = 0;
  data.ranks.forEach((row, rank) => {
    const first = action, lanes = LANES.map(() => []);
    const shadeOf = new Map(data.stages[rank].map((stage, nth) => [stage, nth % 3]));
    let column = 0, compound = 0, dependency = 0, computeEnd = 0, compute = -1;
    for (let step = 0; step < row.kinds.length; ++step, ++action) {
      run.rank[action] = rank;
      run.step[action] = step;
      run.dependencies[action] = [];
      const kind = kinds[row.kinds[step]];
      run.kind[action] = kind;
      if (!kind) continue;  // idle
      run.token[action] = kind.token;
      const stage = row.stages[column], microbatch = row.microbatches[column];
      run.stage[action] = stage;
      run.microbatch[action] = microbatch;
      run.shade[action] = shadeOf.get(stage);
      if (kind.compound) {
        const [letters, otherStage, otherMicrobatch] = row.compounds.slice(3 * compound, 3 * compound + 3);
        run.parts.set(action, [
          {kind: kinds[letters[0]], stage, microbatch, shade: shadeOf.get(stage)},
          {kind: kinds[letters[1]], stage: otherStage, microbatch: otherMicrobatch,
           shade: shadeOf.get(otherStage)}]);
        ++compound;
      }
      const tick = computeEnd + row.starts[column];
      run.start[action] = tick / data.per_unit;
      run.end[action] = (tick + row.durations[column]) / data.per_unit;
      run.slack[action] = row.slacks[column] / data.per_unit;
      const posted = kind.lane === 'receive' && data.rendezvous ? -1 : compute;
      if (posted >= 0) run.dependencies[action].push(posted);
      for (; row.dependencies[dependency] !== 0; ++dependency)
        run.dependencies[action].push(action - row.dependencies[dependency]);
      ++dependency;
      if (kind.lane === 'compute') {
        computeEnd = tick + row.durations[column];
        compute = action;
      }
      lanes[LANES.indexOf(kind.lane)].push(action);
      ++column;
    }
    run.ranks.push({
      first, last: action, lanes: lanes.map((lane) => makeLane(run, lane)),
      activations: decodeSeries(row.activations, data.per_unit),
      bytes: row.bytes && decodeSeries(row.bytes, data.per_unit),
      unsharded: unshardedSeries(run, first, action),
    });
  });
  return run;
}

function partText(token, stage, microbatch) {
  return stage + token + (microbatch < 0 ? '' : microbatch);
}

// '3B7', '3UNSHARD', '(0F3;3B1)OVERLAP_F_B'
// As in the other pictures: "1.1" for slice 1 of microbatch 1.
function microbatchText(microbatch, slices) {
  return slices === 1 ? String(microbatch) : Math.floor(microbatch / slices) + '.' + microbatch % slices;
}

function actionText(run, action) {
  const parts = run.parts.get(action);
  if (!parts) return partText(run.token[action], run.stage[action], run.microbatch[action]);
  const texts = parts.map((part) => partText(part.kind.token, part.stage, part.microbatch));
  return '(' + texts.join(';') + ')' + run.token[action];
}

// The actions that wait for each action; made when it is first asked for.
function dependentsOf(run, action) {
  if (!run.dependents) {
    run.dependents = Array.from({length: run.size}, () => []);
    for (let one = 0; one < run.size; ++one)
      for (const other of run.dependencies[one]) run.dependents[other].push(one);
  }
  return run.dependents[action];
}

// The dependency that decides when an action starts: the one that ends at this moment, or else the
// one on another rank whose transfer took until then; in a measured run the one that ends last. A
// RECV starts with its SEND. -1: none.
function bindingOf(run, action) {
  const near = 1e-6 * run.makespan;
  let binding = -1, latest = -Infinity;
  for (const other of run.dependencies[action]) {
    const isPartner = run.kind[action].lane === 'receive' && run.kind[other].lane === 'send';
    const time = isPartner ? run.start[other] : run.end[other];
    if (!run.measured && Math.abs(time - run.start[action]) <= near && time > 0) return other;
    if ((run.measured || run.rank[other] !== run.rank[action]) && time > latest) {
      latest = time;
      binding = other;
    }
  }
  return binding;
}

// Actions whose text, or a part's, is `text`, ignoring case.
function find(run, text) {
  const wanted = text.trim().toUpperCase(), found = [];
  for (let action = 0; wanted && action < run.size; ++action) {
    if (!run.kind[action]) continue;
    const parts = run.parts.get(action) || [];
    if (actionText(run, action).toUpperCase() === wanted ||
        parts.some((part) => partText(part.kind.token, part.stage, part.microbatch) === wanted))
      found.push(action);
  }
  return found;
}

// The value of a series at a time.
function valueAt(series, time) {
  let low = 0, high = series.times.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (series.times[middle] <= time) low = middle; else high = middle;
  }
  return series.values[low];
}

// The indices [first, last) of a lane's actions that overlap [from, to].
function rangeOf(run, lane, from, to) {
  const search = (before) => {
    let low = 0, high = lane.actions.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (before(middle)) low = middle + 1; else high = middle;
    }
    return low;
  };
  return [search((i) => lane.ends[i] < from), search((i) => run.start[lane.actions[i]] <= to)];
}
