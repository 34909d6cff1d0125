// What the timeline draws: rows of events, phases and steps above them, and the map of the whole run.
const ROW = 18, GROUP = 24, RULER = 22, BAND = 20;
const JOINED = 0;  // the name of what stands for many

/** Where each row stands. Above all others, whatever is scrolled: the ruler, the phases, and the row of the steps. */
function timelineRows(facts, events) {
  const { name, path } = events;
  const bands = facts.phases.length ? BAND : 0, head = RULER + bands + (facts.steps ? ROW : 0);
  const rows = [], groups = [];
  let tall = head + 2;
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
  const steps = facts.steps ? rows[0] : null;
  return {
    rows, groups, steps, bands, head, tall: tall + 6, tracks: steps ? rows.slice(1) : rows,
    rowOf: (event) => rows[events.search(0, rows.length, (at) => rows[at].to > event)],
    labelOf(event) {
      if (name[event] === JOINED) return `${path[event].toLocaleString("en")} short ones, joined`;
      return facts.names[name[event]] + (steps && event < steps.to ? ` ${event + 1}` : "");
    },
  };
}

/** Draws the rows as `view` says: from when to when, what is selected, marked and looked for. It notes there how wide the
 * names of the rows stand. */
function timelinePainter(facts, events, { rows, groups, steps, bands, head: HEAD, tall, tracks, rowOf, labelOf }, view, launcher) {
  const { start, length, name } = events, span = Math.max(1, facts.span), end = (event) => start[event] + length[event];
  const BANDS = { steady: "k0", run: "k0", "start-up": "block", interlude: "gap-launch", tail: "soft" };
  let fills = [], labels = null;
  drawers.push(() => { fills = []; });  // before the canvases, which use them

  /** How wide the names of the rows stand. */
  function gutter(g, width) {
    labels ??= Math.max(0, ...rows.map((row) => g.measureText(row.title).width));
    return Math.round(width < 560 ? 104 : Math.min(Math.max(120, labels + 18), width * 0.2));
  }
  /** Text cut to a width; what is short is measured, and stays whole where it fits. */
  const fitted = (g, text, wide) => (text.length < 48 && g.measureText(text).width <= wide ? text : cut(text, wide));
  const matching = (from, to) => view.matches && view.hits[to] - view.hits[from] > 0;
  /** What gives events from `from` to before `to` their colour: the first that is looked for, else the longest. */
  const leading = (from, to) => (matching(from, to) ? events.search(from, to, (at) => view.hits[at + 1] > view.hits[from]) : events.longest(from, to));

  /** One row. What is narrower than a pixel shares its column: as high as the share of the time that it fills. */
  function drawRow(g, row, y, right) {
    const wide = right - view.left, each = (view.to - view.from) / wide;
    let begin = -1, until = -1, high = 0, fill = "", bright = true;
    const flush = () => {
      if (begin < 0) return;
      g.globalAlpha = bright ? 1 : 0.13;
      g.fillStyle = fill;
      g.fillRect(view.left + begin, y + ROW - 1 - high, until - begin, high);
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
        g.globalAlpha = view.matches && !matching(event, event + 1) ? 0.13 : 1;
        g.fillStyle = fills[name[event]];
        g.fillRect(view.left + a, y + 1, Math.max(1, b - a - (b - a > 4 ? 0.6 : 0)), ROW - 2);
        if (b - a > 34) {
          g.fillStyle = fills.inks[name[event]];
          g.fillText(fitted(g, labelOf(event), b - a - 10), view.left + a + 5, y + 13);
        }
        event++;
        continue;
      }
      const share = events.within(event, next, low, low + each) / each;
      const tallness = Math.max(2, Math.round(Math.min(1, share) * (ROW - 2)));
      const lead = leading(event, next), paint = fills[name[lead]], lit = !view.matches || matching(event, next);
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
      const a = Math.max(view.left, view.left + (from - view.from) * scale), b = Math.min(width, view.left + (to - view.from) * scale);
      if (b - a < 0.3) continue;
      g.globalAlpha = phase === view.chosen || view.chosen === "whole" ? 1 : 0.45;
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
    const { base, marks } = ticks(view.from, view.to, width - view.left);
    for (const [at, text] of marks) {
      const x = Math.round(view.left + (at - view.from) * scale) + 0.5;
      g.fillStyle = colour("line");
      g.fillRect(x, top + 18, 1, height);
      g.fillStyle = colour("quiet");
      if (x + 4 + g.measureText(text).width < width) g.fillText(text, x + 4, top + 14);
    }
    return base;
  }

  function stripe(g, from, to, top, height, scale, width, word, alpha, least = 0) {
    const a = Math.max(view.left, view.left + (from - view.from) * scale), b = Math.min(width, view.left + (to - view.from) * scale);
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
    view.left = gutter(g, width);
    const scale = (width - view.left) / (view.to - view.from);
    const top = view.paper ? 0 : Math.max(0, view.scroller.scrollTop), bottom = view.paper ? height : top + Math.max(HEAD, view.scroller.clientHeight);
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
    if (view.marked) stripe(g, view.marked.start, view.marked.end, top + HEAD, seen, scale, width, "accent", 0.2, 2);
    g.fillStyle = colour("card");
    g.fillRect(0, top, view.left - 1, seen);
    for (const row of tracks) {
      if (!row.name || row.y + ROW < top || row.y > bottom) continue;
      g.fillStyle = colour("quiet"); g.fillText(fitted(g, row.name, view.left - 14), 8, row.y + 13);
    }
    for (const { group, y } of groups) {
      g.fillStyle = colour("soft"); g.fillRect(0, y + 2, width, GROUP - 4);
      g.fillStyle = colour("text"); g.font = "600 " + SMALL; g.fillText(cut(group, width - 16), 8, y + 16); g.font = SMALL;
    }
    // In the first group's line, beside its name: elsewhere rows would lie over it.
    let free = groups.length ? 8 + g.measureText(groups[0].group).width * 1.1 + 10 : view.left;
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
    g.fillStyle = colour("card"); g.fillRect(0, top, view.left - 1, HEAD);
    g.fillStyle = colour("quiet");
    g.fillText(cut(base, view.left - 10), 8, top + 14);
    if (bands) g.fillText(view.left < 110 ? "phases" : "phases of the run", 8, top + RULER + 12);
    if (steps) g.fillText(steps.name, 8, top + steps.y + 13);
    g.fillStyle = colour("line"); g.fillRect(0, top + HEAD, width, 1);
    if (view.selected >= 0 && !rowOf(view.selected).group) outline(g, view.selected, top + steps.y, scale, width);
    if (view.area) {
      const drawn = stripe(g, view.area.from, view.area.to, top, seen, scale, width, "accent", 0.16, 1);
      if (drawn) {
        g.fillStyle = colour("accent");
        for (const x of drawn) g.fillRect(x, top, 1, seen);
        const words = time(view.area.to - view.area.from);
        if (drawn[1] - drawn[0] > g.measureText(words).width + 8) {
          g.fillStyle = colour("card"); g.fillRect(drawn[0] + 3, top + 2, g.measureText(words).width + 6, 15);
          g.fillStyle = colour("accent"); g.fillText(words, drawn[0] + 6, top + 14);
        }
      }
    }
  }

  function outline(g, event, y, scale, width) {
    const a = view.left + (start[event] - view.from) * scale, b = a + Math.max(2, length[event] * scale);
    if (b < view.left || a > width) return;
    g.strokeStyle = colour("text"); g.lineWidth = 1.6;
    g.strokeRect(Math.max(view.left, a) - 0.5, y + 0.5, Math.min(width, b) - Math.max(view.left, a) + 1, ROW - 1);
  }

  /** The selected event, and an arrow to it from the block that launched it: dashed where that is not certain. */
  function drawSelected(g, scale, width) {
    if (view.selected < 0 || !rowOf(view.selected).group) return;
    const row = rowOf(view.selected), from = launcher(view.selected);
    outline(g, view.selected, row.y, scale, width);
    if (!from) return;
    const at = (time) => Math.max(view.left - 20, Math.min(width + 20, view.left + (time - view.from) * scale));
    const block = rowOf(from.event), x = at(Math.min(Math.max(start[from.event], start[view.selected]), end(from.event)));
    const y = block.y + ROW / 2, toX = at(start[view.selected]), toY = row.y + (row.y > block.y ? 1 : ROW - 1), half = (toY - y) / 2;
    outline(g, from.event, block.y, scale, width);
    g.save();
    g.beginPath(); g.rect(view.left, 0, width - view.left, tall); g.clip();
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
    view.left = gutter(g, width);
    const plot = Math.max(1, width - view.left);
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
    g.fillStyle = colour("soft"); g.fillRect(view.left, 0, plot, height);
    g.fillStyle = colour(busy ? "k0" : "cpu");
    for (let x = 0; x < plot; x++) { const tallness = Math.min(1, density[x]) * (height - 7) + (density[x] > 0); g.fillRect(view.left + x, height - tallness, 1, tallness); }
    const a = view.left + (view.from / span) * plot, b = view.left + (view.to / span) * plot;
    g.globalAlpha = 0.62; g.fillStyle = colour("card"); g.fillRect(view.left, 0, a - view.left, height); g.fillRect(b, 0, width - b, height); g.globalAlpha = 1;
    g.strokeStyle = colour("text"); g.lineWidth = 1; g.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), height - 1);
    g.fillStyle = colour("quiet"); g.fillText("whole run", 8, height / 2 + 4);
  }

  return { draw, drawMap };
}
