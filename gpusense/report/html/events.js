// The events of the timeline as columns, read from packed ones, and what is asked of them: where, how much, the longest.
function readEvents(facts) {
  const text = document.getElementById("events").textContent;
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(text);
  else {
    const letters = atob(text);
    bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  }
  const count = facts.count;
  const start = new Float64Array(count), length = new Float64Array(count);
  const name = new Uint32Array(count), path = new Uint32Array(count), launch = new Uint32Array(count), size = new Float64Array(count);
  let place = 0;
  /** A column: numbers of `width` bytes, those that do not fit behind them, perhaps as differences. */
  function unpack(shape, number) {
    const values = new Float64Array(number);
    if (!shape) return values;
    const [width, steps, far, distances, large] = shape;
    for (let byte = 0, scale = 1; byte < width; byte++, scale *= 256)  // all lowest bytes, then all second ones
      for (let i = 0; i < number; i++) values[i] += bytes[place++] * scale;
    if (far) {
      const apart = unpack(distances, far), what = unpack(large, far);
      for (let i = 0, at = 0; i < far; i++) values[at += apart[i]] = what[i];
    }
    if (steps) for (let i = 0, value = 0; i < number; i++) {
      const step = values[i];
      values[i] = value += step % 2 ? -(step + 1) / 2 : step / 2;
    }
    return values;
  }
  facts.rows.forEach((row, number) => {
    row.to = number + 1 < facts.rows.length ? facts.rows[number + 1].at : count;
    const columns = [start, length, name, path, launch, size];
    columns.forEach((into, which) => into.set(unpack(row.shapes[which], row.to - row.at), row.at));
    const after = row.after === undefined ? null : unpack(row.shapes[columns.length], row.to - row.at);
    let time = row.from, one = after ? facts.rows[row.after].at - 1 : 0;
    for (let event = row.at; event < row.to; event++) {
      const code = after ? after[event - row.at] : 1;
      if (code === 1) start[event] += time;  // the first column has how long after the event before each one begins
      else {  // between two events of another row
        one += code / 2 + 1;
        start[event] = start[one] + length[one];
        length[event] = start[one + 1] - start[event];
      }
      time = start[event] + length[event];
    }
  });

  // How long events have lasted up to each of them; and the longest of 16, of 256, and so on.
  const before = new Float64Array(count + 1);
  for (let event = 0; event < count; event++) before[event + 1] = before[event] + length[event];
  const levels = [];
  for (let below = null, number = count; number > 16; number = levels[levels.length - 1].length) {
    const level = new Uint32Array(Math.ceil(number / 16));
    for (let at = 0; at < level.length; at++) {
      let best = below ? below[at * 16] : at * 16;
      for (let i = at * 16 + 1; i < Math.min(number, at * 16 + 16); i++) {
        const event = below ? below[i] : i;
        if (length[event] > length[best]) best = event;
      }
      level[at] = best;
    }
    levels.push(level);
    below = level;
  }

  /** The first place from `low` on, below `high`, of which `beyond` is true; `high` where there is none. */
  function search(low, high, beyond) {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (beyond(middle)) high = middle; else low = middle + 1;
    }
    return low;
  }
  /** The first event of a row that ends after a time; rows are in order, and no event overlaps another. */
  function firstAfter(row, at) {
    let low = row.at, high = row.to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] + length[middle] <= at) low = middle + 1; else high = middle;
    }
    return low;
  }
  /** The first event from `from` on, below `to`, that begins at a time or later. Mostly it is near. */
  function firstFrom(from, to, at) {
    let step = 1, low = from;
    while (low + step < to && start[low + step] < at) { low += step; step *= 2; }
    let high = Math.min(to, low + step);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] < at) low = middle + 1; else high = middle;
    }
    return low;
  }
  /** The longest event from `from` to before `to`. */
  function longest(from, to) {
    let best = from, level = -1;
    const look = (event) => { if (length[event] > length[best]) best = event; };
    while (from < to) {
      const of = level < 0 ? null : levels[level];
      const above = level + 1 < levels.length && to - from > 32;
      const first = above ? Math.min(to, (from + 15) & ~15) : to, last = above ? to & ~15 : to;
      for (let i = from; i < first; i++) look(of ? of[i] : i);
      if (!above) break;
      for (let i = last; i < to; i++) look(of ? of[i] : i);
      from = first >> 4; to = last >> 4; level++;
    }
    return best;
  }
  /** How long the events from `from` to before `to` are together, as far as they lie between two times. */
  function within(from, to, low, high) {
    if (to <= from) return 0;
    const end = start[to - 1] + length[to - 1];
    return before[to] - before[from] - Math.max(0, low - start[from]) - Math.max(0, end - Math.max(high, start[to - 1]));
  }
  /** Of a row, how long its events are between two times. */
  function busy(row, low, high) {
    const from = firstAfter(row, low);
    return within(from, firstFrom(from, row.to, high), low, high);
  }
  return { count, start, length, name, path, launch, size, search, firstAfter, firstFrom, longest, within, busy };
}
