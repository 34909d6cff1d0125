// The timeline: rows of events on one canvas, zoomed and moved by wheel, fingers and keys.
function timeline(facts) {
  const start = column("start", Float64Array), length = column("length", Float64Array);
  const name = column("name", Uint32Array), path = column("path", Uint32Array);
  const JOINED = 0xffffffff, ROW = 18, GROUP = 24, MAP = 34;
  const BAND = facts.phases.length ? 20 : 0, RULER = 22 + BAND;
  const span = Math.max(1, facts.span);
  const rows = [];
  let tall = RULER;
  facts.rows.forEach((row, at) => {
    if (!at || facts.rows[at - 1].group !== row.group) {
      rows.push({ group: row.group, y: tall, height: GROUP });
      tall += GROUP;
    }
    rows.push({ ...row, to: at + 1 < facts.rows.length ? facts.rows[at + 1].at : start.length, y: tall, height: ROW });
    tall += ROW;
  });
  tall += 6;
  const view = { from: 0, to: span };
  let selected = -1, marked = null, needle = "", matches = null;
  let fills = [], paper = false, chosen = "whole";
  const BANDS = { steady: "k0", run: "k0", "start-up": "block", interlude: "gap-launch", tail: "soft" };
  const gutter = () => (main.width() < 560 ? 104 : 158);
  const labelOf = (event) => (name[event] === JOINED ? `${path[event].toLocaleString("en")} short ones, joined` : facts.names[name[event]]);

  /** The first event of a row that ends after `at`; rows are sorted and do not overlap. */
  function firstAfter(row, at) {
    let low = row.at, high = row.to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] + length[middle] <= at) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function drawRow(g, row, left, scale, dim) {
    const right = left + (view.to - view.from) * scale;
    // Events narrower than a pixel share it: as tall as they fill it, in the colour of the longest.
    let lastPixel = -1, best = -1, bestLength = -1, filled = 0;
    const flush = () => {
      if (best < 0) return;
      const id = name[best];
      g.globalAlpha = dim && !(id !== JOINED && matches[id]) ? 0.13 : 1;
      g.fillStyle = id === JOINED ? fills.joined : fills[id];
      const tallness = Math.max(5, Math.min(1, filled) * (ROW - 2));
      g.fillRect(lastPixel, row.y + ROW - 1 - tallness, 1, tallness);
      best = -1; bestLength = -1; filled = 0;
    };
    for (let event = firstAfter(row, view.from); event < row.to; event++) {
      const begin = start[event];
      if (begin > view.to) break;
      const x = left + (begin - view.from) * scale, wide = length[event] * scale;
      if (wide < 1.5) {
        const pixel = Math.floor(x);
        if (pixel !== lastPixel) { flush(); lastPixel = pixel; }
        filled += wide;
        const weight = dim && name[event] !== JOINED && matches[name[event]] ? Infinity : length[event];
        if (weight > bestLength) { best = event; bestLength = weight; }
        continue;
      }
      flush(); lastPixel = -1;
      const a = Math.max(left, x), b = Math.min(right, x + wide), id = name[event];
      g.globalAlpha = dim && !(id !== JOINED && matches[id]) ? 0.13 : 1;
      g.fillStyle = id === JOINED ? fills.joined : fills[id];
      g.fillRect(a, row.y + 1, Math.max(1, b - a - (wide > 4 ? 0.6 : 0)), ROW - 2);
      if (b - a > 34) {
        g.fillStyle = id !== JOINED && fills.dark[id] ? colour("ink-dark") : colour("ink");
        g.fillText(cut(labelOf(event), b - a - 10), a + 5, row.y + 13);
      }
    }
    flush();
    g.globalAlpha = 1;
  }

  /** The phases of the run above all rows, and in the steps where each begins. */
  function drawBand(g, left, scale, width) {
    const at = (time) => left + (time - view.from) * scale, labels = [];
    for (const [phase, label, from, to] of facts.phases) {
      const a = Math.max(left, at(from)), b = Math.min(width, at(to));
      if (b - a < 0.3) continue;
      g.globalAlpha = phase === chosen || chosen === "whole" ? 1 : 0.45;
      g.fillStyle = colour(BANDS[phase] || "soft");
      g.fillRect(a, RULER - BAND, Math.max(0.6, b - a - 0.5), BAND - 3);
      if (b - a > 40) labels.push([cut(label, b - a - 10), a + 5, phase]);
    }
    g.globalAlpha = 1;
    const steps = facts.steps;
    if (steps.length > 1 && ((steps[steps.length - 1] - steps[0]) / steps.length) * scale > 4) {
      g.fillStyle = colour("card");
      for (const begin of steps) if (begin >= view.from && begin <= view.to) g.fillRect(at(begin), RULER - BAND, 1, BAND - 3);
    }
    for (const [label, x, phase] of labels) {
      const own = phase === "steady" || phase === "run";
      g.fillStyle = colour(BANDS[phase] || "soft"); g.fillRect(x - 3, RULER - BAND, g.measureText(label).width + 6, BAND - 3);
      g.fillStyle = colour(own ? "ink" : "ink-dark"); g.fillText(label, x, RULER - 8);
    }
  }

  function draw(g, width, height) {
    if (!fills.length) {
      fills = facts.colours.map(colour);
      fills.joined = colour("joined");
      fills.dark = facts.colours.map((word) => /^(block|cpu|gap-|memset|other|up|copy)/.test(word));
    }
    const left = gutter(), scale = (width - left) / (view.to - view.from), dim = matches !== null;
    g.clearRect(0, 0, width, height);
    g.font = SMALL;
    g.textBaseline = "alphabetic";
    const step = ruler(view.to - view.from, width - left);
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      const x = Math.round(left + (at - view.from) * scale) + 0.5;
      g.fillStyle = colour("line");
      g.fillRect(x, 18, 1, height);
      g.fillStyle = colour("quiet");
      if (x < width - 40) g.fillText(at === 0 ? "0" : time(at), x + 4, 14);
    }
    drawBand(g, left, scale, width);
    const off = [];
    for (const [from, to, why] of facts.unseen) {
      const a = Math.max(left, left + (from - view.from) * scale), b = Math.min(width, left + (to - view.from) * scale);
      if (b <= a) continue;
      g.globalAlpha = 0.35; g.fillStyle = colour("line"); g.fillRect(a, RULER, b - a, height); g.globalAlpha = 1;
      off.push([a, b, "capture off: " + why]);
    }
    const top = paper ? 0 : scroller.scrollTop - GROUP, bottom = paper ? height : scroller.scrollTop + scroller.clientHeight;
    for (const row of rows) if (row.at !== undefined && row.y >= top && row.y <= bottom) drawRow(g, row, left, scale, dim);
    g.fillStyle = colour("card");
    g.fillRect(0, 0, left - 1, height);
    for (const row of rows) {
      if (row.at === undefined) {
        g.fillStyle = colour("soft"); g.fillRect(0, row.y + 2, width, GROUP - 4);
        g.fillStyle = colour("text"); g.font = "600 " + SMALL; g.fillText(cut(row.group, width - 16), 8, row.y + 16); g.font = SMALL;
      } else {
        g.fillStyle = colour("quiet"); g.fillText(cut(row.name, left - 14), 8, row.y + 13);
      }
    }
    // In the first group's line, beside its name: elsewhere rows would lie over it.
    let free = rows.length ? 8 + g.measureText(rows[0].group).width * 1.1 + 10 : left;
    g.fillStyle = colour("quiet");
    for (const [from, to, words] of off) {
      const a = Math.max(from + 5, free);
      if (to - a < 30) continue;
      const shown = cut(words, to - a - 4);
      g.fillText(shown, a, rows.length ? rows[0].y + 16 : height - 6);
      free = a + g.measureText(shown).width + 14;
    }
    if (marked) {
      const a = Math.max(left, left + (marked.start - view.from) * scale), b = Math.min(width, left + (marked.end - view.from) * scale);
      if (b >= a) { g.globalAlpha = 0.2; g.fillStyle = colour("accent"); g.fillRect(a, RULER, Math.max(2, b - a), height); g.globalAlpha = 1; }
    }
    if (selected >= 0) {
      const row = rowOf(selected);
      const a = left + (start[selected] - view.from) * scale, b = a + Math.max(2, length[selected] * scale);
      if (row && b > left && a < width) {
        g.strokeStyle = colour("text"); g.lineWidth = 1.6;
        g.strokeRect(Math.max(left, a) - 0.5, row.y + 0.5, Math.min(width, b) - Math.max(left, a) + 1, ROW - 1);
      }
    }
  }

  // The map of the whole run: how much of every pixel the devices were busy.
  let density = null;
  function drawMap(g, width, height) {
    const left = gutter(), plot = Math.max(1, width - left);
    g.clearRect(0, 0, width, height);
    if (!density || density.length !== plot) {
      density = new Float64Array(plot);
      const better = new Set(facts.rows.filter((row) => row.map).map((row) => row.group));
      const lanes = rows.filter((row) => row.map || (row.busy && !better.has(row.group)));
      for (const row of lanes) for (let event = row.at; event < row.to; event++) {
        const a = (start[event] / span) * plot, b = ((start[event] + length[event]) / span) * plot;
        for (let x = Math.max(0, Math.floor(a)); x <= b && x < plot; x++) density[x] += Math.max(0, Math.min(b, x + 1) - Math.max(a, x));
      }
    }
    g.fillStyle = colour("soft"); g.fillRect(left, 0, plot, height);
    g.fillStyle = colour("k0");
    for (let x = 0; x < plot; x++) { const tallness = Math.min(1, density[x]) * (height - 6); g.fillRect(left + x, height - tallness, 1, tallness); }
    const a = left + (view.from / span) * plot, b = left + (view.to / span) * plot;
    g.globalAlpha = 0.62; g.fillStyle = colour("card"); g.fillRect(left, 0, a - left, height); g.fillRect(b, 0, width - b, height); g.globalAlpha = 1;
    g.strokeStyle = colour("text"); g.lineWidth = 1; g.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), height - 1);
    g.font = SMALL; g.fillStyle = colour("quiet"); g.fillText("whole run", 8, height / 2 + 4);
  }

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; main.paint(); map.paint(); });
  }
  function look(from, to) {
    const wide = Math.max(Math.min(50, span), Math.min(span, to - from));
    const middle = (from + to) / 2;
    view.from = Math.max(0, Math.min(span - wide, middle - wide / 2));
    view.to = view.from + wide;
    redraw();
  }
  const zoom = (factor, at) => look(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const move = (share) => { const by = (view.to - view.from) * share; if (by < 0 ? view.from > 0 : view.to < span) look(view.from + by, view.to + by); };
  const timeAt = (x) => view.from + ((x - gutter()) / (main.width() - gutter())) * (view.to - view.from);
  function eventAt(x, y) {
    const row = rows.find((one) => one.at !== undefined && y >= one.y && y < one.y + ROW);
    if (!row || x < gutter()) return -1;
    const slack = ((view.to - view.from) / (main.width() - gutter())) * 2, at = timeAt(x);
    const found = firstAfter(row, at - slack);
    return found < row.to && start[found] <= at + slack ? found : -1;
  }
  const describe = (event) => [
    labelOf(event),
    `${time(length[event])} from ${time(start[event])}`,
    ...(name[event] !== JOINED && facts.paths[path[event]] ? ["in " + facts.paths[path[event]]] : []),
  ];
  function select(event) {
    selected = event;
    if (event >= 0) marked = null;
    const lines = event >= 0 ? describe(event) : marked ? [marked.name || "Marked", `${time(marked.end - marked.start)} from ${time(marked.start)}`] : [];
    details.replaceChildren(...(lines.length
      ? [h("b", {}, lines[0]), " · ", lines.slice(1).join(" · "), " · starts at ", (BigInt(facts.start_ns) + BigInt(Math.round(event < 0 ? marked.start : start[event]))).toString(), " ns"]
      : [h("span", { class: "quiet" }, "Select an event for its details. Scroll with Ctrl to zoom, drag to move, double-click to zoom in.")]));
    redraw();
  }
  const rowOf = (event) => rows.find((one) => one.at !== undefined && event >= one.at && event < one.to);
  /** Selects as a person does: other parts of the page hear of it. */
  function choose(event) {
    select(event);
    if (event < 0) return;
    const detail = { start: start[event], end: start[event] + length[event], name: labelOf(event), row: rowName(rowOf(event)) };
    document.dispatchEvent(new CustomEvent("gpusense:selected", { detail }));
  }
  const rowName = (row) => {
    let at = rows.indexOf(row);
    while (at > 0 && !rows[at].name && rows[at - 1].at !== undefined) at--;
    return rows[at].name;
  };
  /** The event that begins at a time and is called so, of the row of that name; the longest one of several. */
  function eventFrom(range) {
    let best = -1;
    for (const row of rows) {
      if (row.at === undefined || (range.row && rowName(row) !== range.row)) continue;
      for (let event = firstAfter(row, range.start - 1); event < row.to && start[event] <= range.start + 0.5; event++) {
        if (start[event] < range.start - 0.5 || (range.name && labelOf(event) !== range.name)) continue;
        const nearer = (one) => Math.abs(start[one] + length[one] - range.end);
        if (best < 0 || nearer(event) < nearer(best)) best = event;
      }
    }
    return best;
  }
  /** For other parts of the page: what lies from `start` to `end`, in nanoseconds from the page's zero. */
  function showOnTimeline(range) {
    const event = eventFrom(range), wide = Math.max(range.end - range.start, 1) * 3, middle = (range.start + range.end) / 2;
    look(middle - wide / 2, middle + wide / 2);
    marked = event < 0 ? range : null;
    if (event >= 0) {
      const row = rowOf(event);
      scroller.scrollTop = Math.max(0, row.y - scroller.clientHeight / 2);
    }
    select(event);
    section.scrollIntoView({ block: "start", behavior: reduced ? "auto" : "smooth" });
  }
  function show(event) {
    const middle = start[event] + length[event] / 2, wide = Math.max(length[event] * 6, Math.min(view.to - view.from, span));
    if (start[event] < view.from || start[event] + length[event] > view.to) look(middle - wide / 2, middle + wide / 2);
    choose(event);
  }
  function step(by) {
    const same = selected >= 0 ? name[selected] : -1;
    const row = selected >= 0 ? rows.find((one) => one.at !== undefined && selected >= one.at && selected < one.to) : rows.find((one) => one.at !== undefined && one.to > one.at);
    if (!row) return;
    for (let event = selected < 0 ? row.at : selected + by; event >= row.at && event < row.to; event += by)
      if (same < 0 || name[event] === same) return show(event);
  }
  function find(text) {
    needle = text.trim().toLowerCase();
    matches = needle ? facts.names.map((one) => one.toLowerCase().includes(needle)) : null;
    let count = 0;
    if (matches) for (let event = 0; event < name.length; event++) if (name[event] !== JOINED && matches[name[event]]) count++;
    found.textContent = matches ? `${count.toLocaleString("en")} found` : "";
    redraw();
  }

  const main = canvas(tall, draw, "Timeline of host and device work");
  const map = canvas(MAP, drawMap, "Busy share of the whole run");
  const scroller = h("div", { class: "scroll" }, main.element);
  const details = h("div", { class: "details", "aria-live": "polite" });
  const search = h("input", { type: "search", placeholder: "Find by name", title: "Press / to come here", "aria-label": "Find events by name", oninput: () => find(search.value) });
  const found = h("span", { class: "quiet" });
  main.element.tabIndex = 0;
  main.element.setAttribute("role", "application");
  drawers.push(() => { fills = []; });
  drawers.unshift(drawers.pop());  // colours first, then the canvases that use them

  const keys = {
    ArrowLeft: () => move(-0.15), a: () => move(-0.15), ArrowRight: () => move(0.15), d: () => move(0.15),
    w: () => zoom(0.7, (view.from + view.to) / 2), "+": () => zoom(0.7, (view.from + view.to) / 2), "=": () => zoom(0.7, (view.from + view.to) / 2),
    s: () => zoom(1.43, (view.from + view.to) / 2), "-": () => zoom(1.43, (view.from + view.to) / 2),
    0: () => look(0, span), Home: () => look(0, span), Escape: () => { marked = null; select(-1); search.value = ""; find(""); },
    n: () => step(1), p: () => step(-1),
    f: () => selected >= 0 && look(start[selected] - length[selected], start[selected] + 2 * length[selected]),
  };
  main.element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault(); keys[event.key]();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); search.focus(); }
  });
  main.element.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.003), timeAt(event.offsetX)); }
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move(event.deltaX / main.width()); }
  }, { passive: false });
  const fingers = new Map();
  let moved = 0, pinch = 0;
  main.element.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX); moved = 0; pinch = 0; main.element.setPointerCapture(event.pointerId); hideTip();
  });
  main.element.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const over = eventAt(event.offsetX, event.offsetY);
      if (over >= 0) showTip(event, ...describe(over)); else hideTip();
      return;
    }
    const before = fingers.get(event.pointerId);
    fingers.set(event.pointerId, event.offsetX);
    if (fingers.size === 2) {
      const [one, two] = [...fingers.values()], apart = Math.max(8, Math.abs(one - two));
      if (pinch) zoom(pinch / apart, timeAt((one + two) / 2));
      pinch = apart; moved = 99;
      return;
    }
    moved += Math.abs(event.offsetX - before);
    move((before - event.offsetX) / (main.width() - gutter()));
  });
  const lift = (event) => {
    if (fingers.delete(event.pointerId) && moved < 4 && event.type === "pointerup") choose(eventAt(event.offsetX, event.offsetY));
  };
  main.element.addEventListener("pointerup", lift);
  main.element.addEventListener("pointercancel", lift);
  main.element.addEventListener("pointerleave", hideTip);
  main.element.addEventListener("dblclick", (event) => zoom(0.35, timeAt(event.offsetX)));
  scroller.addEventListener("scroll", () => main.paint());
  const jump = (event) => {
    const at = ((event.offsetX - gutter()) / (map.width() - gutter())) * span, half = (view.to - view.from) / 2;
    look(at - half, at + half);
  };
  map.element.addEventListener("pointerdown", (event) => { map.element.setPointerCapture(event.pointerId); jump(event); });
  map.element.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });

  select(-1);
  const button = (label, title, press) => h("button", { type: "button", title, "aria-label": title, onclick: press }, label);
  const section = h("section", { id: "timeline" },
      h("h2", {}, "Timeline", h("small", {}, counted(facts.events, "record"))),
      h("div", { class: "controls" }, search, found, h("span", { class: "grow" }),
        button("−", "Zoom out (s)", () => zoom(1.43, (view.from + view.to) / 2)), button("+", "Zoom in (w)", () => zoom(0.7, (view.from + view.to) / 2)),
        button("Whole run", "Show the whole run (0)", () => look(0, span))),
      h("div", { class: "view" }, map.element, scroller), details, h("p", { class: "note" }, facts.note));
  globalThis.showOnTimeline = showOnTimeline;
  return {
    section,
    find: (text) => { search.value = text; find(text); main.element.scrollIntoView({ block: "center", behavior: reduced ? "auto" : "smooth" }); },
    phase: (name) => {
      const of = facts.phases.filter(([one]) => one === name);
      chosen = name;
      if (of.length) look(of[0][2], of[of.length - 1][3]); else look(0, span);
    },
    whole: (on) => { paper = on; }, look, view, draw: () => { main.paint(); map.paint(); }, start: () => { main.fit(); map.fit(); },
  };
}
