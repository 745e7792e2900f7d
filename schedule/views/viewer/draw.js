// Draws what the camera sees on the canvas: an axis, and for each rank of each run a row of computes,
// thin lanes of transfers and data-parallel actions, and a curve of memory.

const GUTTER = 84, AXIS = 22, LANE = 6;
const THEMES = {
  light: {back: '#ffffff', text: '#222222', faint: '#777777', line: '#e4e4e4', label: '#000000',
          edge: '#ffffff', mark: '#c00000', area: '#9db4cc', area2: '#b79ad6'},
  dark: {back: '#16181c', text: '#e8e8e8', faint: '#9aa0a6', line: '#2c3036', label: '#000000',
         edge: '#16181c', mark: '#ff8a80', area: '#4d6a8a', area2: '#7c6a9a'},
};

// The rows from top to bottom, in pixels of the whole picture: {run, rank, top, height, lanes,
// memory}. `state` says what is shown.
function layoutRows(state, height) {
  const numRanks = Math.max(...state.runs.map((run) => run.ranks.length));
  const rows = [], several = state.runs.length > 1;
  for (let rank = 0; rank < numRanks; ++rank)
    state.runs.forEach((run, side) => { if (run.ranks[rank]) rows.push({run, side, rank}); });
  const extra = (row) => (state.lanes && row.run.isProgram ? 3 * LANE : 0) + (state.memory ? 22 : 0) + 4;
  const extras = rows.reduce((sum, row) => sum + extra(row), several ? 6 * numRanks : 0);
  const compute = Math.max(10, Math.min(28, Math.floor((height - AXIS - extras) / rows.length)));
  let top = AXIS;
  for (const row of rows) {
    row.top = top;
    row.height = compute;
    row.lanes = state.lanes && row.run.isProgram ? top + compute : 0;
    row.memory = state.memory ? top + compute + (row.lanes ? 3 * LANE : 0) + 2 : 0;
    top += compute + extra(row);
    if (several && row.side === state.runs.length - 1) top += 6;
  }
  return {rows, height: top};
}

function tickOf(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((times) => times * power).find((tick) => tick >= rough);
}

function timeText(time) { return String(Number(time.toPrecision(6))); }

class Painter {
  constructor(canvas, state) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    this.state = state;
    this.strip = document.createElement('canvas');
    this.strip.height = 1;
  }

  resize(width, height, ratio) {
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(time) {
    const {from, to} = this.state.camera;
    return GUTTER + (time - from) / (to - from) * (this.width - GUTTER);
  }
  time(x) {
    const {from, to} = this.state.camera;
    return from + (x - GUTTER) / (this.width - GUTTER) * (to - from);
  }

  draw() {
    const {context, state} = this;
    this.theme = THEMES[state.theme];
    this.back = parseColor(this.theme.back);
    context.fillStyle = this.theme.back;
    context.fillRect(0, 0, this.width, this.height);
    this.layout = layoutRows(state, this.height);
    state.camera.scroll = Math.max(0, Math.min(state.camera.scroll, this.layout.height - this.height));
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.width - GUTTER, this.height);
    context.clip();
    this.drawGrid();
    for (const row of this.visibleRows()) this.drawRow(row);
    this.drawSelection();
    context.restore();
    this.drawGutter();
    this.drawAxis();
  }

  visibleRows() {
    const scroll = this.state.camera.scroll;
    return this.layout.rows.filter((row, i, rows) => {
      const bottom = i + 1 < rows.length ? rows[i + 1].top : this.layout.height;
      return bottom > scroll + AXIS && row.top < scroll + this.height;
    });
  }

  ticks() {
    const {from, to} = this.state.camera;
    const tick = tickOf(90 * (to - from) / (this.width - GUTTER)), all = [];
    for (let n = Math.max(0, Math.ceil(from / tick)); n * tick <= to; ++n) all.push(n * tick);
    return all;
  }
  drawGrid() {
    this.context.fillStyle = this.theme.line;
    for (const time of this.ticks()) this.context.fillRect(this.x(time), AXIS, 1, this.height);
  }
  drawAxis() {
    const {context, theme, state} = this;
    context.fillStyle = theme.back;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = theme.faint;
    context.font = '11px sans-serif';
    context.textAlign = 'center';
    const unit = state.runs[0].unit;
    for (const time of this.ticks())
      context.fillText(timeText(time) + (unit && time ? ' ' + unit : ''), this.x(time), AXIS - 8);
  }
  drawGutter() {
    const {context, theme, state} = this;
    context.font = '11px sans-serif';
    context.textAlign = 'right';
    for (const row of this.visibleRows()) {
      const y = row.top - state.camera.scroll;
      context.fillStyle = theme.text;
      const name = state.runs.length > 1 ? ' ' + 'AB'[row.side] : '';
      context.fillText('rank ' + row.rank + name, GUTTER - 8, y + row.height / 2 + 4);
      if (!row.memory) continue;
      context.fillStyle = theme.faint;
      context.fillText('peak ' + row.run.ranks[row.rank].activations.peak, GUTTER - 8,
                       row.memory - state.camera.scroll + 14);
    }
  }

  drawRow(row) {
    const {state} = this, y = row.top - state.camera.scroll;
    const {lanes} = row.run.ranks[row.rank];
    this.drawLane(row.run, lanes[0], y, row.height);
    if (row.lanes) {
      for (let lane = 1; lane < 4; ++lane)
        this.drawLane(row.run, lanes[lane], row.lanes - state.camera.scroll + (lane - 1) * LANE + 1, LANE - 2);
    }
    if (row.run.stops[row.rank]) this.drawStop(row.run.stops[row.rank], y, row.height);
    if (row.memory) this.drawMemory(row, row.memory - state.camera.scroll);
  }

  // A bar behind which the rank waits forever, and the action that never runs.
  drawStop(stop, y, height) {
    const {context, theme} = this, x = this.x(stop.time) + 1;
    context.fillStyle = theme.mark;
    context.fillRect(x, y, 3, height - 1);
    context.font = 'bold 11px sans-serif';
    context.textAlign = 'left';
    const label = '! ' + stop.text, size = context.measureText(label).width;
    // To the left of the bar, over the last action, if there is no room to its right.
    const left = x + 6 + size <= this.width ? x + 6 : x - 5 - size;
    context.fillStyle = theme.back;
    context.fillRect(left - 2, y + height / 2 - 7, size + 4, 15);
    context.fillStyle = theme.mark;
    context.fillText(label, left, y + height / 2 + 4);
  }

  drawLane(run, lane, y, height) {
    const {from, to} = this.state.camera;
    const [first, last] = rangeOf(run, lane, from, to);
    if (last - first > (this.width - GUTTER) / 3) {
      this.drawStrip(run, lane, first, last, y, height);
    } else {
      for (let i = first; i < last; ++i) this.drawAction(run, lane.actions[i], y, height);
    }
  }

  isFaded(run, action) { return this.state.critical && run.slack[action] > 0; }

  drawAction(run, action, y, height) {
    const {context, theme} = this;
    const left = this.x(run.start[action]), width = Math.max(0.5, this.x(run.end[action]) - left);
    const parts = run.parts.get(action) ||
      [{kind: run.kind[action], shade: run.shade[action], microbatch: run.microbatch[action]}];
    context.globalAlpha = this.isFaded(run, action) ? 0.25 : 1;
    parts.forEach((part, i) => {
      const top = y + i * height / parts.length, each = height / parts.length;
      context.fillStyle = part.kind.colors[part.shade];
      context.fillRect(left, top, Math.max(0.5, width - (width > 3 ? 1 : 0)), each - (parts.length > 1 ? 0.5 : 0));
      if (each < 9 || width < 9) return;
      context.fillStyle = theme.label;
      context.font = (each < 14 ? 9 : 11) + 'px sans-serif';
      context.textAlign = 'center';
      const number = part.microbatch < 0 ? '' : microbatchText(part.microbatch, run.slices);
      const text = part.kind.token.length === 1 && width > 7 * (number.length + 1) + 6 ? part.kind.token + number : number;
      if (width > 6.5 * text.length + 2)
        context.fillText(text, left + width / 2, top + each / 2 + (each < 14 ? 3 : 4));
    });
    context.globalAlpha = 1;
  }

  // Many actions per pixel: each column has their mean colour, weighted by time.
  drawStrip(run, lane, first, last, y, height) {
    const columns = Math.ceil(this.width - GUTTER), sum = new Float32Array(4 * columns);
    const {from, to} = this.state.camera, scale = columns / (to - from);
    for (let i = first; i < last; ++i) {
      const action = lane.actions[i];
      const parts = run.parts.get(action);
      const color = parts ? parts[0].kind.rgb[parts[0].shade] : run.kind[action].rgb[run.shade[action]];
      const left = Math.max(0, (run.start[action] - from) * scale);
      const right = Math.min(columns, (run.end[action] - from) * scale);
      const weight = this.isFaded(run, action) ? 0.25 : 1;
      for (let column = Math.floor(left); column < right; ++column) {
        const part = weight * (Math.min(right, column + 1) - Math.max(left, column));
        sum[4 * column] += part * color[0];
        sum[4 * column + 1] += part * color[1];
        sum[4 * column + 2] += part * color[2];
        sum[4 * column + 3] += part;
      }
    }
    if (this.strip.width !== columns) this.strip.width = columns;
    const context = this.strip.getContext('2d'), pixels = context.createImageData(columns, 1);
    for (let column = 0; column < columns; ++column) {
      const at = 4 * column, covered = Math.max(1, sum[at + 3]), rest = Math.max(0, 1 - sum[at + 3]);
      for (let c = 0; c < 3; ++c) pixels.data[at + c] = (sum[at + c] + rest * this.back[c]) / covered;
      pixels.data[at + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.strip, 0, 0, columns, 1, GUTTER, y, columns, height);
  }

  drawMemory(row, y) {
    const {context, theme, state} = this, rank = row.run.ranks[row.rank];
    const peakOf = (name) => Math.max(1, ...state.runs.flatMap((run) => run.ranks.map((one) => one[name].peak)));
    this.drawSeries(rank.activations, y, 18, peakOf('activations'), theme.area, true);
    if (row.run.isProgram) this.drawSeries(rank.unsharded, y, 18, peakOf('unsharded'), theme.area2, false);
    context.fillStyle = theme.line;
    context.fillRect(GUTTER, y + 18, this.width, 1);
  }
  // Steps, at most one per pixel: the most of those within it.
  drawSeries(series, y, height, peak, color, filled) {
    const {context} = this, {from, to} = this.state.camera, {times, values} = series;
    const baseline = y + height, level = (value) => baseline - height * value / peak;
    context.beginPath();
    context.moveTo(GUTTER, baseline);
    context.lineTo(GUTTER, level(valueAt(series, from)));
    let column = -1, most = 0, last = GUTTER;
    for (let i = 0; i < times.length; ++i) {
      if (times[i] < from) continue;
      if (times[i] > to) break;
      const x = this.x(times[i]), before = level(values[Math.max(0, i - 1)]);
      if (Math.floor(x) === column) {
        most = Math.max(most, values[i]);
      } else {
        context.lineTo(last, before);
        context.lineTo(x, before);
        most = values[i];
      }
      column = Math.floor(x);
      last = x;
      context.lineTo(x, level(most));
    }
    context.lineTo(last, level(valueAt(series, to)));
    context.lineTo(this.x(Math.min(to, times[times.length - 1])), level(valueAt(series, to)));
    if (filled) {
      context.lineTo(this.x(Math.min(to, times[times.length - 1])), baseline);
      context.fillStyle = color;
      context.fill();
    } else {
      context.strokeStyle = color;
      context.stroke();
    }
  }

  rowOf(run, rank) { return this.layout.rows.find((row) => row.run === run && row.rank === rank); }
  // The rectangle of an action, in pixels of the canvas.
  boxOf(run, action) {
    const row = this.rowOf(run, run.rank[action]), lane = LANES.indexOf(run.kind[action].lane);
    const left = this.x(run.start[action]), right = this.x(run.end[action]);
    const inLane = lane > 0 && row.lanes;
    const top = (inLane ? row.lanes + (lane - 1) * LANE : row.top) - this.state.camera.scroll;
    return {left, right, top, bottom: top + (inLane ? LANE : row.height)};
  }

  drawSelection() {
    const {context, theme, state} = this;
    if (!state.selected) return;
    const {run, action} = state.selected, box = this.boxOf(run, action);
    const middle = (one) => (one.top + one.bottom) / 2;
    context.lineWidth = 1.2;
    const arrow = (from, to, color) => {
      context.strokeStyle = color;
      context.beginPath();
      context.moveTo(from.right, middle(from));
      context.lineTo(to.left, middle(to));
      context.stroke();
    };
    for (const other of run.dependencies[action]) arrow(this.boxOf(run, other), box, theme.mark);
    for (const other of dependentsOf(run, action)) arrow(box, this.boxOf(run, other), theme.faint);
    context.strokeStyle = theme.mark;
    context.lineWidth = 2;
    context.strokeRect(box.left - 1, box.top - 1, Math.max(2, box.right - box.left + 1), box.bottom - box.top + 2);
    context.lineWidth = 1;
  }

  // The action at a point of the canvas, {run, action}; or where its rank waits forever,
  // {run, rank, stop}; or the curve there, {run, rank, time}.
  at(x, y) {
    if (x < GUTTER || y < AXIS) return null;
    const time = this.time(x), down = y + this.state.camera.scroll;
    const pixel = Math.abs(this.time(1) - this.time(0));
    for (const row of this.layout.rows) {
      const rank = row.run.ranks[row.rank];
      const inLane = (lane) => {
        const [first, last] = rangeOf(row.run, rank.lanes[lane], time - pixel, time + pixel);
        let best = null;
        for (let i = first; i < last; ++i) {
          const action = rank.lanes[lane].actions[i];
          if (row.run.end[action] < time - pixel) continue;
          best = action;
          if (row.run.start[action] <= time && time < row.run.end[action]) break;
        }
        return best === null ? null : {run: row.run, action: best};
      };
      if (down >= row.top && down < row.top + row.height) {
        const stop = row.run.stops[row.rank];
        return stop && time >= stop.time ? {run: row.run, rank: row.rank, stop} : inLane(0);
      }
      if (row.lanes && down >= row.lanes && down < row.lanes + 3 * LANE)
        return inLane(1 + Math.floor((down - row.lanes) / LANE));
      if (row.memory && down >= row.memory && down < row.memory + 20) return {run: row.run, rank: row.rank, time};
    }
    return null;
  }
}
