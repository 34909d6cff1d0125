// The timeline: rows of events on one canvas, zoomed and moved by wheel, fingers and keys.
function timeline(facts) {
  const events = readEvents(facts);
  const { start, length, name, path, launch, size } = events;
  const ROW = 18, GROUP = 24, MAP = 34, RULER = 22, BAND = 20, LEAST = 50;
  const JOINED = 0;  // what stands for many
  const span = Math.max(1, facts.span), end = (event) => start[event] + length[event];
  // Above all others, whatever is scrolled: the ruler, the phases, and the row of the steps.
  const bands = facts.phases.length ? BAND : 0, HEAD = RULER + bands + (facts.steps ? ROW : 0);
  const rows = [], groups = [];
  let tall = HEAD + 2;
  facts.rows.forEach((row, at) => {
    if (row.group && (!at || facts.rows[at - 1].group !== row.group)) {
      groups.push({ group: row.group, y: tall });
      tall += GROUP;
    }
    row.title = row.name || rows[rows.length - 1].title;
    row.y = row.group ? tall : RULER + bands;
    if (row.group) tall += ROW;
    rows.push(row);
  });
  tall += 6;
  const steps = facts.steps ? rows[0] : null, tracks = steps ? rows.slice(1) : rows;
  const usual = steps ? [...length.subarray(steps.at, steps.to)].sort((a, b) => a - b)[(steps.to - steps.at) >> 1] : 0;
  const rowOf = (event) => rows[events.search(0, rows.length, (at) => rows[at].to > event)];
  const view = { from: 0, to: span };
  let selected = -1, marked = null, area = null, matches = null, hits = null;
  let fills = [], paper = false, chosen = "whole", left = 158, labels = null;
  const BANDS = { steady: "k0", run: "k0", "start-up": "block", interlude: "gap-launch", tail: "soft" };
  const labelOf = (event) => {
    if (name[event] === JOINED) return `${path[event].toLocaleString("en")} short ones, joined`;
    return facts.names[name[event]] + (steps && event < steps.to ? ` ${event + 1}` : "");
  };

  // --- drawing ------------------------------------------------------------------------------------------------------

  /** How wide the names of the rows stand. */
  function gutter(g, width) {
    labels ??= Math.max(0, ...rows.map((row) => g.measureText(row.title).width));
    return Math.round(width < 560 ? 104 : Math.min(Math.max(120, labels + 18), width * 0.2));
  }
  /** Text cut to a width; what is short is measured, and stays whole where it fits. */
  const fitted = (g, text, wide) => (text.length < 48 && g.measureText(text).width <= wide ? text : cut(text, wide));
  const matching = (from, to) => matches && hits[to] - hits[from] > 0;
  /** What gives events from `from` to before `to` their colour: the first that is looked for, else the longest. */
  const leading = (from, to) => (matching(from, to) ? events.search(from, to, (at) => hits[at + 1] > hits[from]) : events.longest(from, to));

  /** One row. What is narrower than a pixel shares its column: as high as the share of the time that it fills. */
  function drawRow(g, row, y, right) {
    const wide = right - left, each = (view.to - view.from) / wide;
    let begin = -1, until = -1, high = 0, fill = "", bright = true;
    const flush = () => {
      if (begin < 0) return;
      g.globalAlpha = bright ? 1 : 0.13;
      g.fillStyle = fill;
      g.fillRect(left + begin, y + ROW - 1 - high, until - begin, high);
      begin = -1;
    };
    let event = events.firstAfter(row, view.from);
    while (event < row.to && start[event] < view.to) {
      const pixel = Math.max(0, Math.floor((start[event] - view.from) / each));
      const low = view.from + pixel * each;
      let next = length[event] >= 1.5 * each ? event : events.firstFrom(event, row.to, low + each);
      let longest = next > event ? events.longest(event, next) : event;
      if (next > event && length[longest] >= 1.5 * each) next = longest;
      if (next === event) {  // wide enough for itself
        flush();
        const a = Math.max(0, (start[event] - view.from) / each), b = Math.min(wide, (end(event) - view.from) / each);
        g.globalAlpha = matches && !matching(event, event + 1) ? 0.13 : 1;
        g.fillStyle = fills[name[event]];
        g.fillRect(left + a, y + 1, Math.max(1, b - a - (b - a > 4 ? 0.6 : 0)), ROW - 2);
        if (b - a > 34) {
          g.fillStyle = fills.inks[name[event]];
          g.fillText(fitted(g, labelOf(event), b - a - 10), left + a + 5, y + 13);
        }
        event++;
        continue;
      }
      const share = events.within(event, next, low, low + each) / each;
      const tallness = Math.max(2, Math.round(Math.min(1, share) * (ROW - 2)));
      const lead = leading(event, next), paint = fills[name[lead]], lit = !matches || matching(event, next);
      if (pixel !== until || tallness !== high || paint !== fill || lit !== bright) {
        flush();
        [begin, high, fill, bright] = [pixel, tallness, paint, lit];
      } else if (begin < 0) begin = pixel;
      until = pixel + 1;
      event = next;
    }
    flush();
    g.globalAlpha = 1;
  }

  /** The phases of the run, and below them its steps. */
  function drawBands(g, top, scale, width) {
    const names = [];
    for (const [phase, label, from, to] of facts.phases) {
      const a = Math.max(left, left + (from - view.from) * scale), b = Math.min(width, left + (to - view.from) * scale);
      if (b - a < 0.3) continue;
      g.globalAlpha = phase === chosen || chosen === "whole" ? 1 : 0.45;
      g.fillStyle = colour(BANDS[phase] || "soft");
      g.fillRect(a, top + RULER, Math.max(0.6, b - a - 0.5), BAND - 3);
      if (b - a > 40) names.push([fitted(g, label, b - a - 10), a + 5, phase]);
    }
    g.globalAlpha = 1;
    for (const [label, x, phase] of names) {
      g.fillStyle = inkOn(BANDS[phase] || "soft");
      g.fillText(label, x, top + RULER + 12);
    }
    if (steps) drawRow(g, steps, top + steps.y, width);
  }

  function drawRuler(g, top, scale, width, height) {
    const { base, marks } = ticks(view.from, view.to, width - left);
    for (const [at, text] of marks) {
      const x = Math.round(left + (at - view.from) * scale) + 0.5;
      g.fillStyle = colour("line");
      g.fillRect(x, top + 18, 1, height);
      g.fillStyle = colour("quiet");
      if (x + 4 + g.measureText(text).width < width) g.fillText(text, x + 4, top + 14);
    }
    return base;
  }

  function stripe(g, from, to, top, height, scale, width, word, alpha, least = 0) {
    const a = Math.max(left, left + (from - view.from) * scale), b = Math.min(width, left + (to - view.from) * scale);
    if (b < a) return null;
    g.globalAlpha = alpha; g.fillStyle = colour(word); g.fillRect(a, top, Math.max(least, b - a), height); g.globalAlpha = 1;
    return [a, b];
  }

  function draw(g, width, height) {
    g.font = SMALL;
    g.textBaseline = "alphabetic";
    if (!fills.length) {
      fills = facts.colours.map(colour);
      fills.inks = facts.colours.map(inkOn);
    }
    left = gutter(g, width);
    const scale = (width - left) / (view.to - view.from);
    const top = paper ? 0 : Math.max(0, scroller.scrollTop), bottom = paper ? height : top + Math.max(HEAD, scroller.clientHeight);
    const seen = bottom - top;
    g.clearRect(0, top, width, seen);
    const base = drawRuler(g, top, scale, width, seen);
    const off = [];
    for (const [from, to, why] of facts.unseen) {
      const drawn = to > view.from && from < view.to && stripe(g, from, to, top + HEAD, seen, scale, width, "line", 0.35);
      if (drawn) off.push([...drawn, "capture off: " + why]);
    }
    for (const [from, to, count] of facts.holes) {
      const drawn = to > view.from && from < view.to && stripe(g, from, to, top + HEAD, seen, scale, width, "joined", 0.35);
      if (drawn) off.push([...drawn, `${counted(count, "operation")}, known as sums alone`]);
    }
    for (const row of tracks) if (row.y + ROW >= top && row.y <= bottom) drawRow(g, row, row.y, width);
    if (marked) stripe(g, marked.start, marked.end, top + HEAD, seen, scale, width, "accent", 0.2, 2);
    g.fillStyle = colour("card");
    g.fillRect(0, top, left - 1, seen);
    for (const row of tracks) {
      if (!row.name || row.y + ROW < top || row.y > bottom) continue;
      g.fillStyle = colour("quiet"); g.fillText(fitted(g, row.name, left - 14), 8, row.y + 13);
    }
    for (const { group, y } of groups) {
      g.fillStyle = colour("soft"); g.fillRect(0, y + 2, width, GROUP - 4);
      g.fillStyle = colour("text"); g.font = "600 " + SMALL; g.fillText(cut(group, width - 16), 8, y + 16); g.font = SMALL;
    }
    // In the first group's line, beside its name: elsewhere rows would lie over it.
    let free = groups.length ? 8 + g.measureText(groups[0].group).width * 1.1 + 10 : left;
    g.fillStyle = colour("quiet");
    for (const [from, to, words] of off) {
      const a = Math.max(from + 5, free);
      if (to - a < 30) continue;
      const shown = cut(words, to - a - 4);
      g.fillText(shown, a, groups.length ? groups[0].y + 16 : height - 6);
      free = a + g.measureText(shown).width + 14;
    }
    drawSelected(g, scale, width);
    // The head lies over rows that are scrolled away.
    g.fillStyle = colour("card"); g.fillRect(0, top, width, HEAD);
    drawRuler(g, top, scale, width, HEAD - 18);
    drawBands(g, top, scale, width);
    g.fillStyle = colour("card"); g.fillRect(0, top, left - 1, HEAD);
    g.fillStyle = colour("quiet");
    g.fillText(cut(base, left - 10), 8, top + 14);
    if (bands) g.fillText(left < 110 ? "phases" : "phases of the run", 8, top + RULER + 12);
    if (steps) g.fillText(steps.name, 8, top + steps.y + 13);
    g.fillStyle = colour("line"); g.fillRect(0, top + HEAD, width, 1);
    if (selected >= 0 && !rowOf(selected).group) outline(g, selected, top + steps.y, scale, width);
    if (area) {
      const drawn = stripe(g, area.from, area.to, top, seen, scale, width, "accent", 0.16, 1);
      if (drawn) {
        g.fillStyle = colour("accent");
        for (const x of drawn) g.fillRect(x, top, 1, seen);
        const words = time(area.to - area.from);
        if (drawn[1] - drawn[0] > g.measureText(words).width + 8) {
          g.fillStyle = colour("card"); g.fillRect(drawn[0] + 3, top + 2, g.measureText(words).width + 6, 15);
          g.fillStyle = colour("accent"); g.fillText(words, drawn[0] + 6, top + 14);
        }
      }
    }
  }

  function outline(g, event, y, scale, width) {
    const a = left + (start[event] - view.from) * scale, b = a + Math.max(2, length[event] * scale);
    if (b < left || a > width) return;
    g.strokeStyle = colour("text"); g.lineWidth = 1.6;
    g.strokeRect(Math.max(left, a) - 0.5, y + 0.5, Math.min(width, b) - Math.max(left, a) + 1, ROW - 1);
  }

  /** The selected event, and an arrow to it from the block that launched it: dashed where that is not certain. */
  function drawSelected(g, scale, width) {
    if (selected < 0 || !rowOf(selected).group) return;
    const row = rowOf(selected), from = launcher(selected);
    outline(g, selected, row.y, scale, width);
    if (!from) return;
    const at = (time) => Math.max(left - 20, Math.min(width + 20, left + (time - view.from) * scale));
    const block = rowOf(from.event), x = at(Math.min(Math.max(start[from.event], start[selected]), end(from.event)));
    const y = block.y + ROW / 2, toX = at(start[selected]), toY = row.y + (row.y > block.y ? 1 : ROW - 1), half = (toY - y) / 2;
    outline(g, from.event, block.y, scale, width);
    g.save();
    g.beginPath(); g.rect(left, 0, width - left, tall); g.clip();
    g.strokeStyle = g.fillStyle = colour("text"); g.lineWidth = 1.6;
    if (!from.sure) g.setLineDash([5, 4]);
    g.beginPath(); g.moveTo(x, y); g.bezierCurveTo(x, y + half, toX, toY - half, toX, toY); g.stroke();
    g.setLineDash([]);
    const back = row.y > block.y ? -7 : 7;
    g.beginPath(); g.moveTo(toX, toY); g.lineTo(toX - 4, toY + back); g.lineTo(toX + 4, toY + back); g.fill();
    g.beginPath(); g.arc(x, y, 3, 0, 7); g.fill();
    g.restore();
  }

  // The map of the whole run: how much of every pixel the devices were busy.
  const busy = rows.some((row) => row.busy);
  let density = null;
  function drawMap(g, width, height) {
    g.font = SMALL;
    left = gutter(g, width);
    const plot = Math.max(1, width - left);
    g.clearRect(0, 0, width, height);
    if (!density || density.length !== plot) {
      density = new Float64Array(plot);
      for (const row of rows) if (busy ? row.busy : row.group && row.name)  // without a device: the outermost blocks
        for (let x = 0, event = row.at; x < plot && event < row.to; x++) {
          const low = (x / plot) * span, high = ((x + 1) / plot) * span;
          if (end(event) <= low) event = events.firstAfter(row, low);
          density[x] += (plot / span) * events.within(event, events.firstFrom(event, row.to, high), low, high);
        }
    }
    g.fillStyle = colour("soft"); g.fillRect(left, 0, plot, height);
    g.fillStyle = colour(busy ? "k0" : "cpu");
    for (let x = 0; x < plot; x++) { const tallness = Math.min(1, density[x]) * (height - 7) + (density[x] > 0); g.fillRect(left + x, height - tallness, 1, tallness); }
    const a = left + (view.from / span) * plot, b = left + (view.to / span) * plot;
    g.globalAlpha = 0.62; g.fillStyle = colour("card"); g.fillRect(left, 0, a - left, height); g.fillRect(b, 0, width - b, height); g.globalAlpha = 1;
    g.strokeStyle = colour("text"); g.lineWidth = 1; g.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), height - 1);
    g.fillStyle = colour("quiet"); g.fillText("whole run", 8, height / 2 + 4);
  }

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; main.paint(); map.paint(); });
  }

  // --- the view -----------------------------------------------------------------------------------------------------

  function look(from, to) {
    const wide = Math.max(Math.min(LEAST, span), Math.min(span, to - from));
    const middle = (from + to) / 2;
    view.from = Math.max(0, Math.min(span - wide, middle - wide / 2));
    view.to = view.from + wide;
    redraw();
  }
  const centre = () => (view.from + view.to) / 2;
  const zoom = (factor, at) => look(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const move = (share) => { const by = (view.to - view.from) * share; if (by < 0 ? view.from > 0 : view.to < span) look(view.from + by, view.to + by); };
  const timeAt = (x) => view.from + ((x - left) / (main.width() - left)) * (view.to - view.from);
  const third = (from, to) => { const wide = Math.max(to - from, 1) * 3, middle = (from + to) / 2; look(middle - wide / 2, middle + wide / 2); };

  const rowAt = (y) => {
    const under = y - (paper ? 0 : scroller.scrollTop);
    if (under < HEAD) return steps && under >= RULER + bands ? steps : null;
    return tracks.find((one) => y >= one.y && y < one.y + ROW) || null;
  };
  /** What is drawn at a place: events from `from` to before `to`, most often one; null where there is nothing. */
  function drawnAt(x, y) {
    const row = rowAt(y);
    if (!row || x < left) return null;
    const each = (view.to - view.from) / (main.width() - left), low = view.from + Math.floor(x - left) * each;
    let from = events.firstAfter(row, low), to = events.firstFrom(from, row.to, low + each);
    if (from < to && to - from > 1 && length[events.longest(from, to)] >= 1.5 * each) { from = events.longest(from, to); to = from + 1; }
    if (from < to) return { row, from, to, low, high: low + each };
    from = events.firstAfter(row, low - 2 * each);  // a narrow one is hard to hit
    return from < row.to && start[from] <= low + 3 * each ? { row, from, to: from + 1, low, high: low + each } : null;
  }

  // --- what is known of an event ------------------------------------------------------------------------------------

  const blocks = tracks.filter((row) => row.to > row.at && facts.colours[name[row.at]] === "block");
  /** The block that launched an event: as recorded, else the last of its path that can have; null where there is none. */
  function launcher(event) {
    if (launch[event]) return { event: launch[event] - 1, sure: true };
    const row = rowOf(event);
    if (!path[event] || name[event] === JOINED || !row.busy) return null;
    // A stream runs what is launched in order: after the launch before it, whose block is known, and before the next.
    let after = -Infinity, before = start[event];
    if (row.title.startsWith("stream")) {
      let one = event, other = event;
      while (one >= row.at && !launch[one]) one--;
      while (other < row.to && !launch[other]) other++;
      if (one >= row.at) after = start[launch[one] - 1];
      if (other < row.to) before = Math.min(before, end(launch[other] - 1));
    }
    let best = -1, many = 0;
    for (const of of blocks) for (let one = of.at; one < of.to; one++)
      if (path[one] === path[event] && start[one] <= before && end(one) >= after) {
        many++;
        if (best < 0 || start[one] > start[best]) best = one;
      }
    return best < 0 ? null : { event: best, sure: many === 1 };
  }
  const isIdle = (event) => facts.colours[name[event]].startsWith("gap-");
  /** What the device of an idle event worked on before it and after, [event before, event after], -1 where there is none. */
  function around(event) {
    let before = -1, after = -1;
    for (const row of tracks) if (row.busy && row.group === rowOf(event).group) {
      const next = events.firstFrom(row.at, row.to, end(event) - 0.5), last = events.firstFrom(row.at, row.to, start[event] + 0.5) - 1;
      if (next < row.to && (after < 0 || start[next] < start[after])) after = next;
      if (last >= row.at && (before < 0 || end(last) > end(before))) before = last;
    }
    return [before, after];
  }
  const describe = (event) => [
    labelOf(event),
    `${time(length[event])} from ${exact(start[event], length[event])}`,
    ...(steps && event < steps.to ? [`half of all take less than ${time(usual)}`] : []),
    ...(size[event] ? [sizeOf(event)] : []),
    ...(name[event] !== JOINED && facts.paths[path[event]] ? ["in " + facts.paths[path[event]]] : []),
  ];
  const sizeOf = (event) => amount(size[event], "B") + (length[event] ? `, ${amount((size[event] / length[event]) * 1e9, "B/s")}` : "");
  function tell(event, found) {
    const { row, from, to, low, high } = found;
    if (to - from === 1) return showTip(event, ...describe(from));
    const share = events.within(from, to, low, high) / (high - low), longest = events.longest(from, to);
    showTip(event, `${(to - from).toLocaleString("en")} events in ${time(high - low)}`,
      `${row.busy ? "busy for" : "together"} ${percent(Math.min(1, share))} of it: the height of the column`,
      `the longest: ${labelOf(longest)}, ${time(length[longest])}`);
  }

  function select(event) {
    selected = event;
    if (event >= 0) marked = null;
    const lines = event >= 0 ? describe(event) : marked ? [marked.name || "Marked", `${time(marked.end - marked.start)} from ${time(marked.start)}`] : [];
    const parts = [];
    if (lines.length) {
      const at = BigInt(facts.start_ns) + BigInt(Math.round(event < 0 ? marked.start : start[event]));
      parts.push(h("b", {}, lines[0]), " · ", lines.slice(1).join(" · "), " · starts at ", at.toString(), " ns");
    }
    if (event >= 0 && name[event] !== JOINED && facts.details[name[event]]) parts.push(h("div", { class: "quiet" }, facts.details[name[event]]));
    if (event >= 0 && isIdle(event)) around(event).forEach((one, at) => {
      if (one >= 0) parts.push(h("div", {}, at ? "until " : "after ", button(labelOf(one), "Go to it", () => show(one)), ` ${time(length[one])}`));
    });
    const from = event < 0 ? null : launcher(event);
    if (from) parts.push(h("div", {},
      button(`From ${labelOf(from.event)}`, "Go to the block that launched it", () => show(from.event)),
      from.sure ? " launched it" : h("span", { class: "quiet" }, " launched it, or an earlier pass of the same block: which one is not recorded")));
    details.replaceChildren(...(parts.length ? parts : [h("span", { class: "quiet" }, "Select an event for its details. Ctrl and wheel zoom, dragging moves, Shift and dragging sums up. Press ? for all keys.")]));
    redraw();
  }
  /** Selects as a person does: other parts of the page hear of it. */
  function choose(event) {
    select(event);
    if (event < 0) return;
    const detail = { start: start[event], end: end(event), name: labelOf(event), row: rowOf(event).title };
    document.dispatchEvent(new CustomEvent("gpusense:selected", { detail }));
  }
  function reveal(event) {
    const row = rowOf(event);
    if (!row.group) return;
    if (row.y < scroller.scrollTop + HEAD) scroller.scrollTop = row.y - HEAD - GROUP;
    else if (row.y + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = row.y + 2 * ROW - scroller.clientHeight;
  }
  function show(event) {
    const wide = view.to - view.from, middle = start[event] + length[event] / 2;
    if (end(event) <= view.from || start[event] >= view.to) look(middle - wide / 2, middle + wide / 2);
    reveal(event);
    choose(event);
  }
  /** The event that begins at a time, by name, row and group of rows where these are given; the one that fits best of several:
   * at the same time another process may have one of the same name. */
  function eventFrom(range) {
    let best = -1, least = Infinity;
    for (const row of rows) {
      if ((range.row && row.title !== range.row) || (range.group && row.group !== range.group)) continue;
      for (let event = events.firstAfter(row, range.start - 1); event < row.to && start[event] <= range.start + 0.5; event++) {
        const called = !range.name || labelOf(event) === range.name ? 0 : labelOf(event).startsWith(range.name) ? 1 : 2;
        if (start[event] < range.start - 0.5 || called === 2) continue;
        const inside = !range.path || (name[event] !== JOINED && facts.paths[path[event]].startsWith(range.path));
        const apart = Math.abs(end(event) - range.end) + called + (inside ? 0 : 0.5);
        if (apart < least) { best = event; least = apart; }
      }
    }
    return best;
  }
  /** For other parts of the page: what lies from `start` to `end`, in nanoseconds from the page's zero. */
  function showOnTimeline(range) {
    const event = eventFrom(range);
    third(range.start, range.end);
    marked = event < 0 ? range : null;
    if (event >= 0) reveal(event);
    select(event);
    section.scrollIntoView({ block: "start", behavior: reduced ? "auto" : "smooth" });
  }

  // --- keys ---------------------------------------------------------------------------------------------------------

  /** In a row the event at a time, else the one next to it; -1 where the row has none. */
  function near(row, at) {
    const after = events.firstAfter(row, at);
    if (after < row.to && start[after] <= at) return after;
    if (after >= row.to) return row.to - 1 < row.at ? -1 : row.to - 1;
    return after > row.at && at - end(after - 1) < start[after] - at ? after - 1 : after;
  }
  function beside(by) {
    if (selected < 0) return first();
    const row = rowOf(selected), event = selected + by;
    if (event >= row.at && event < row.to) show(event);
  }
  const filled = rows.filter((row) => row.to > row.at);
  function first() {
    const row = filled.find((one) => { const event = near(one, centre()); return event >= 0 && end(event) > view.from && start[event] < view.to; }) || filled[0];
    if (row) show(near(row, row.to - row.at && centre()));
  }
  let column = null;  // where up and down go, whatever rows without an event there lie between
  function otherRow(by) {
    if (selected < 0) return first();
    const row = filled[filled.indexOf(rowOf(selected)) + by];
    if (!row) return;
    if (!column || column.selected !== selected) {
      const low = Math.max(view.from, start[selected]), high = Math.min(view.to, end(selected));
      column = { at: high > low ? (low + high) / 2 : start[selected] + length[selected] / 2, ...view };
    }
    const event = near(row, column.at);
    if (start[event] < column.to && end(event) > column.from) look(column.from, column.to);
    show(event);
    column.selected = selected;
  }
  /** The next of the same name in its row; the first of all while nothing is selected. */
  function same(by) {
    if (selected < 0) { if (filled.length) show((filled.find((row) => row.group) || filled[0]).at); return; }
    const row = rowOf(selected);
    for (let event = selected + by; event >= row.at && event < row.to; event += by) if (name[event] === name[selected]) return show(event);
  }
  function longest() {
    const row = selected < 0 ? filled[0] : rowOf(selected);
    if (!row) return;
    const from = events.firstAfter(row, view.from), to = events.firstFrom(from, row.to, view.to);
    if (from < to) show(events.longest(from, to));
  }

  // --- looking for names --------------------------------------------------------------------------------------------

  let walk = null, at = -1;  // all that were found, in order of time, and which of them is shown
  function find(text) {
    const needle = text.trim().toLowerCase();
    matches = needle ? facts.names.map((one, id) => id !== JOINED && one.toLowerCase().includes(needle)) : null;
    walk = null; at = -1; hits = null;
    if (matches) {
      hits = new Uint32Array(events.count + 1);
      for (let event = 0; event < events.count; event++) hits[event + 1] = hits[event] + (matches[name[event]] && event >= (steps ? steps.to : 0));
    }
    found.textContent = matches ? `${hits[events.count].toLocaleString("en")} found` : "";
    redraw();
  }
  function hit(by) {
    if (!matches || !hits[events.count]) return;
    if (!walk) {
      walk = new Uint32Array(hits[events.count]);
      for (let event = 0; event < events.count; event++) if (hits[event + 1] > hits[event]) walk[hits[event]] = event;
      walk.sort((a, b) => start[a] - start[b] || a - b);
      const now = selected < 0 ? view.from : start[selected];
      at = events.search(0, walk.length, (place) => start[walk[place]] >= now) - (by > 0 ? 1 : 0);
    }
    at = (at + by + walk.length) % walk.length;
    show(walk[at]);
    found.textContent = `${(at + 1).toLocaleString("en")} of ${walk.length.toLocaleString("en")}`;
  }

  // --- an area ------------------------------------------------------------------------------------------------------

  function closeArea() { area = null; panel.replaceChildren(); panel.hidden = true; redraw(); }
  function openArea(from, to) {
    area = { from: Math.max(0, Math.min(from, to)), to: Math.min(span, Math.max(from, to)) };
    panel.hidden = false;
    panel.replaceChildren(...areaPanel(facts, events, rows, area, closeArea, () => look(area.from, area.to)));
    redraw();
  }

  // --- the parts on the page ----------------------------------------------------------------------------------------

  const button = (label, title, press) => h("button", { type: "button", title, "aria-label": label.length > 1 ? null : title, onclick: press }, label);
  const main = canvas(tall, draw, "Timeline of host and device work");
  const map = canvas(MAP, drawMap, "Busy share of the whole run");
  const scroller = h("div", { class: "scroll" }, main.element);
  const details = h("div", { class: "details", "aria-live": "polite" });
  const panel = h("div", { class: "area", role: "region", "aria-label": "Sums of the selected time", hidden: "" });
  const search = h("input", { type: "search", placeholder: "Find by name", title: "Press / to come here", "aria-label": "Find events by name", oninput: () => find(search.value) });
  const found = h("span", { class: "quiet", role: "status" });
  main.element.tabIndex = 0;
  main.element.setAttribute("role", "application");
  drawers.push(() => { fills = []; });
  drawers.unshift(drawers.pop());  // colours first, then the canvases that use them

  function escape() {
    if (area) return closeArea();
    if (selected >= 0 || marked) { marked = null; return select(-1); }
    search.value = ""; find("");
  }
  const moving = {
    w: () => zoom(0.7, centre()), "+": () => zoom(0.7, centre()), "=": () => zoom(0.7, centre()),
    s: () => zoom(1.43, centre()), "-": () => zoom(1.43, centre()), a: () => move(-0.15), d: () => move(0.15), 0: () => look(0, span),
    n: () => same(1), p: () => same(-1), l: longest, m: () => selected >= 0 && openArea(start[selected], end(selected)),
    Escape: escape,
  };
  const onCanvas = {
    ArrowLeft: () => beside(-1), ArrowRight: () => beside(1), ArrowUp: () => otherRow(-1), ArrowDown: () => otherRow(1),
    Home: () => look(0, span), Enter: () => { if (selected >= 0) look(start[selected], end(selected)); else if (marked) look(marked.start, marked.end); },
  };
  onCanvas.f = onCanvas.Enter;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || overlay.open) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName), here = event.target === main.element;
    const act = typing ? null : (here || event.target === document.body || panel.contains(event.target) ? moving[event.key] : null) || (here ? onCanvas[event.key] : null);
    if (act) {
      event.preventDefault();
      act();
      if (event.target === document.body && selected >= 0) main.element.focus();  // arrows and Enter go on from there
    } else if (event.key === "/" && !typing) { event.preventDefault(); search.focus(); }
    else if (event.key === "?" && !typing) { event.preventDefault(); overlay.showModal(); }
  });
  search.addEventListener("keydown", (event) => {
    const act = {
      Enter: () => hit(event.shiftKey ? -1 : 1), ArrowDown: () => hit(1), ArrowUp: () => hit(-1),
      Escape: () => { search.value = ""; find(""); main.element.focus({ preventScroll: true }); },
    }[event.key];
    if (act) { event.preventDefault(); event.stopPropagation(); act(); }
  });
  main.element.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.003), timeAt(event.offsetX)); }
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move(event.deltaX / main.width()); }
  }, { passive: false });
  const fingers = new Map();
  let moved = 0, pinch = 0, drawing = null;
  main.element.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX); moved = 0; pinch = 0; main.element.setPointerCapture(event.pointerId); hideTip();
    const onRuler = event.offsetY - scroller.scrollTop < RULER;
    drawing = fingers.size === 1 && event.offsetX >= left && (event.shiftKey || onRuler) ? timeAt(event.offsetX) : null;
  });
  main.element.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const over = drawnAt(event.offsetX, event.offsetY), row = rowAt(event.offsetY);
      const under = event.offsetY - scroller.scrollTop;
      const phase = under >= RULER && under < RULER + bands && facts.phases.find(([, , from, to]) => timeAt(event.offsetX) >= from && timeAt(event.offsetX) < to);
      if (event.offsetX < left && row) showTip(event, row.title);
      else if (phase && event.offsetX >= left) showTip(event, phase[1], `${time(phase[3] - phase[2])}, from ${time(phase[2])} to ${time(phase[3])}`);
      else if (over) tell(event, over);
      else hideTip();
      return;
    }
    const before = fingers.get(event.pointerId);
    fingers.set(event.pointerId, event.offsetX);
    if (fingers.size === 2) {
      const [one, two] = [...fingers.values()], apart = Math.max(8, Math.abs(one - two));
      if (pinch) zoom(pinch / apart, timeAt((one + two) / 2));
      pinch = apart; moved = 99; drawing = null;
      return;
    }
    moved += Math.abs(event.offsetX - before);
    if (drawing === null) return move((before - event.offsetX) / (main.width() - left));
    const now = Math.max(view.from, Math.min(view.to, timeAt(event.offsetX)));
    area = { from: Math.min(drawing, now), to: Math.max(drawing, now) };
    redraw();
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (drawing !== null && moved >= 4) openArea(area.from, area.to);
    else if (moved < 4 && event.type === "pointerup") {
      const there = drawnAt(event.offsetX, event.offsetY);
      choose(there ? events.longest(there.from, there.to) : -1);
    }
    drawing = null;
  };
  main.element.addEventListener("pointerup", lift);
  main.element.addEventListener("pointercancel", lift);
  main.element.addEventListener("pointerleave", hideTip);
  main.element.addEventListener("dblclick", (event) => zoom(0.35, timeAt(event.offsetX)));
  scroller.addEventListener("scroll", redraw);
  const jump = (event) => {
    const there = ((event.offsetX - left) / (map.width() - left)) * span, half = (view.to - view.from) / 2;
    look(there - half, there + half);
  };
  map.element.addEventListener("pointerdown", (event) => { map.element.setPointerCapture(event.pointerId); jump(event); });
  map.element.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });

  const overlay = keysOverlay();
  const legend = h("p", { class: "note" }, "A column of several events is as high as the share of its time that they fill, in the colour of the longest.");
  const section = h("section", { id: "timeline" },
    h("h2", {}, "Timeline", h("small", {}, counted(facts.events, "record"))),
    h("div", { class: "controls" }, search, found, h("span", { class: "grow" }),
      button("Longest", "Select the longest event of the row in this view (l)", () => { longest(); main.element.focus({ preventScroll: true }); }),
      button("−", "Zoom out (s)", () => zoom(1.43, centre())), button("+", "Zoom in (w)", () => zoom(0.7, centre())),
      button("Whole run", "Show the whole run (0)", () => look(0, span)), button("Keys", "Show all keys (?)", () => overlay.showModal())),
    h("div", { class: "view" }, map.element, scroller), details, panel, legend, h("p", { class: "note" }, facts.note), overlay);
  select(-1);
  globalThis.showOnTimeline = showOnTimeline;
  return {
    section,
    find: (text) => { search.value = text; find(text); main.element.scrollIntoView({ block: "center", behavior: reduced ? "auto" : "smooth" }); },
    phase: (name) => {
      const of = facts.phases.filter(([one]) => one === name);
      chosen = name;
      if (of.length) look(of[0][2], of[of.length - 1][3]); else look(0, span);
    },
    // For who looks at the page from outside: the ruler, where a time stands, the rows, what is selected.
    marks: () => ticks(view.from, view.to, main.width() - left), place: (time) => left + ((time - view.from) / (view.to - view.from)) * (main.width() - left),
    rows: () => rows, selectedRow: () => rowOf(selected), area: () => area,
    whole: (on) => { paper = on; }, look, view, draw: () => { main.paint(); map.paint(); }, start: () => { main.fit(); map.fit(); },
  };
}
