// The timeline: rows of events on one canvas, zoomed and moved by wheel, fingers and keys.
function timeline(facts) {
  const events = readEvents(facts);
  const { start, length, name, path, launch, size } = events;
  const MAP = 34, LEAST = 50;
  const span = Math.max(1, facts.span), end = (event) => start[event] + length[event];
  const shape = timelineRows(facts, events), { rows, steps, bands, head: HEAD, tall, tracks, rowOf, labelOf } = shape;
  const usual = steps ? [...length.subarray(steps.at, steps.to)].sort((a, b) => a - b)[(steps.to - steps.at) >> 1] : 0;
  // What is seen, and what of it stands out: the painter reads it.
  const view = {
    from: 0, to: span, left: 158, selected: -1, marked: null, area: null, matches: null, hits: null, paper: false, chosen: "whole",
  };

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false; main.paint(); map.paint();
      document.dispatchEvent(new CustomEvent("gpusense:seen", { detail: { from: view.from, to: view.to } }));
    });
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
  const timeAt = (x) => view.from + ((x - view.left) / (main.width() - view.left)) * (view.to - view.from);
  const third = (from, to) => { const wide = Math.max(to - from, 1) * 3, middle = (from + to) / 2; look(middle - wide / 2, middle + wide / 2); };

  const rowAt = (y) => {
    const under = y - (view.paper ? 0 : scroller.scrollTop);
    if (under < HEAD) return steps && under >= RULER + bands ? steps : null;
    return tracks.find((one) => y >= one.y && y < one.y + ROW) || null;
  };
  /** What is drawn at a place: events from `from` to before `to`, most often one; null where there is nothing. */
  function drawnAt(x, y) {
    const row = rowAt(y);
    if (!row || x < view.left) return null;
    const each = (view.to - view.from) / (main.width() - view.left), low = view.from + Math.floor(x - view.left) * each;
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
    view.selected = event;
    if (event >= 0) view.marked = null;
    const lines = event >= 0 ? describe(event) : view.marked ? [view.marked.name || "Marked", `${time(view.marked.end - view.marked.start)} from ${time(view.marked.start)}`] : [];
    const parts = [];
    if (lines.length) {
      const at = BigInt(facts.start_ns) + BigInt(Math.round(event < 0 ? view.marked.start : start[event]));
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
    view.marked = event < 0 ? range : null;
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
    if (view.selected < 0) return first();
    const row = rowOf(view.selected), event = view.selected + by;
    if (event >= row.at && event < row.to) show(event);
  }
  const filled = rows.filter((row) => row.to > row.at);
  function first() {
    const row = filled.find((one) => { const event = near(one, centre()); return event >= 0 && end(event) > view.from && start[event] < view.to; }) || filled[0];
    if (row) show(near(row, row.to - row.at && centre()));
  }
  let column = null;  // where up and down go, whatever rows without an event there lie between
  function otherRow(by) {
    if (view.selected < 0) return first();
    const row = filled[filled.indexOf(rowOf(view.selected)) + by];
    if (!row) return;
    if (!column || column.selected !== view.selected) {
      const low = Math.max(view.from, start[view.selected]), high = Math.min(view.to, end(view.selected));
      column = { at: high > low ? (low + high) / 2 : start[view.selected] + length[view.selected] / 2, from: view.from, to: view.to };
    }
    const event = near(row, column.at);
    if (start[event] < column.to && end(event) > column.from) look(column.from, column.to);
    show(event);
    column.selected = view.selected;
  }
  /** The next of the same name in its row; the first of all while nothing is selected. */
  function same(by) {
    if (view.selected < 0) { if (filled.length) show((filled.find((row) => row.group) || filled[0]).at); return; }
    const row = rowOf(view.selected);
    for (let event = view.selected + by; event >= row.at && event < row.to; event += by) if (name[event] === name[view.selected]) return show(event);
  }
  function longest() {
    const row = view.selected < 0 ? filled[0] : rowOf(view.selected);
    if (!row) return;
    const from = events.firstAfter(row, view.from), to = events.firstFrom(from, row.to, view.to);
    if (from < to) show(events.longest(from, to));
  }

  // --- looking for names --------------------------------------------------------------------------------------------

  let walk = null, at = -1;  // all that were found, in order of time, and which of them is shown
  function find(text) {
    const needle = text.trim().toLowerCase();
    view.matches = needle ? facts.names.map((one, id) => id !== JOINED && one.toLowerCase().includes(needle)) : null;
    walk = null; at = -1; view.hits = null;
    if (view.matches) {
      view.hits = new Uint32Array(events.count + 1);
      for (let event = 0; event < events.count; event++) view.hits[event + 1] = view.hits[event] + (view.matches[name[event]] && event >= (steps ? steps.to : 0));
    }
    found.textContent = view.matches ? `${view.hits[events.count].toLocaleString("en")} found` : "";
    redraw();
  }
  function hit(by) {
    if (!view.matches || !view.hits[events.count]) return;
    if (!walk) {
      walk = new Uint32Array(view.hits[events.count]);
      for (let event = 0; event < events.count; event++) if (view.hits[event + 1] > view.hits[event]) walk[view.hits[event]] = event;
      walk.sort((a, b) => start[a] - start[b] || a - b);
      const now = view.selected < 0 ? view.from : start[view.selected];
      at = events.search(0, walk.length, (place) => start[walk[place]] >= now) - (by > 0 ? 1 : 0);
    }
    at = (at + by + walk.length) % walk.length;
    show(walk[at]);
    found.textContent = `${(at + 1).toLocaleString("en")} of ${walk.length.toLocaleString("en")}`;
  }

  // --- an area ------------------------------------------------------------------------------------------------------

  function closeArea() { view.area = null; panel.replaceChildren(); panel.hidden = true; redraw(); }
  function openArea(from, to) {
    view.area = { from: Math.max(0, Math.min(from, to)), to: Math.min(span, Math.max(from, to)) };
    panel.hidden = false;
    panel.replaceChildren(...areaPanel(facts, events, rows, view.area, closeArea, () => look(view.area.from, view.area.to)));
    redraw();
  }

  // --- the parts on the page ----------------------------------------------------------------------------------------

  const button = (label, title, press) => h("button", { type: "button", title, "aria-label": label.length > 1 ? null : title, onclick: press }, label);
  const { draw, drawMap } = timelinePainter(facts, events, shape, view, launcher);
  const main = canvas(tall, draw, "Timeline of host and device work");
  const map = canvas(MAP, drawMap, "Busy share of the whole run");
  const scroller = view.scroller = h("div", { class: "scroll" }, main.element);
  const details = h("div", { class: "details", "aria-live": "polite" });
  const panel = h("div", { class: "area", role: "region", "aria-label": "Sums of the selected time", hidden: "" });
  const search = h("input", { type: "search", placeholder: "Find by name", title: "Press / to come here", "aria-label": "Find events by name", oninput: () => find(search.value) });
  const found = h("span", { class: "quiet", role: "status" });
  main.element.tabIndex = 0;
  main.element.setAttribute("role", "application");

  function escape() {
    if (view.area) return closeArea();
    if (view.selected >= 0 || view.marked) { view.marked = null; return select(-1); }
    search.value = ""; find("");
  }
  const moving = {
    w: () => zoom(0.7, centre()), "+": () => zoom(0.7, centre()), "=": () => zoom(0.7, centre()),
    s: () => zoom(1.43, centre()), "-": () => zoom(1.43, centre()), a: () => move(-0.15), d: () => move(0.15), 0: () => look(0, span),
    n: () => same(1), p: () => same(-1), l: longest, m: () => view.selected >= 0 && openArea(start[view.selected], end(view.selected)),
    Escape: escape,
  };
  const onCanvas = {
    ArrowLeft: () => beside(-1), ArrowRight: () => beside(1), ArrowUp: () => otherRow(-1), ArrowDown: () => otherRow(1),
    Home: () => look(0, span), Enter: () => { if (view.selected >= 0) look(start[view.selected], end(view.selected)); else if (view.marked) look(view.marked.start, view.marked.end); },
  };
  onCanvas.f = onCanvas.Enter;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || overlay.open) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName), here = event.target === main.element;
    const act = typing ? null : (here || event.target === document.body || panel.contains(event.target) ? moving[event.key] : null) || (here ? onCanvas[event.key] : null);
    if (act) {
      event.preventDefault();
      act();
      if (event.target === document.body && view.selected >= 0) main.element.focus();  // arrows and Enter go on from there
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
    drawing = fingers.size === 1 && event.offsetX >= view.left && (event.shiftKey || onRuler) ? timeAt(event.offsetX) : null;
  });
  main.element.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const over = drawnAt(event.offsetX, event.offsetY), row = rowAt(event.offsetY);
      const under = event.offsetY - scroller.scrollTop;
      const phase = under >= RULER && under < RULER + bands && facts.phases.find(([, , from, to]) => timeAt(event.offsetX) >= from && timeAt(event.offsetX) < to);
      if (event.offsetX < view.left && row) showTip(event, row.title);
      else if (phase && event.offsetX >= view.left) showTip(event, phase[1], `${time(phase[3] - phase[2])}, from ${time(phase[2])} to ${time(phase[3])}`);
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
    if (drawing === null) return move((before - event.offsetX) / (main.width() - view.left));
    const now = Math.max(view.from, Math.min(view.to, timeAt(event.offsetX)));
    view.area = { from: Math.min(drawing, now), to: Math.max(drawing, now) };
    redraw();
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (drawing !== null && moved >= 4) openArea(view.area.from, view.area.to);
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
    const there = ((event.offsetX - view.left) / (map.width() - view.left)) * span, half = (view.to - view.from) / 2;
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
      view.chosen = name;
      if (of.length) look(of[0][2], of[of.length - 1][3]); else look(0, span);
    },
    // For who looks at the page from outside: the ruler, where a time stands, the rows, what is selected.
    marks: () => ticks(view.from, view.to, main.width() - view.left), place: (time) => view.left + ((time - view.from) / (view.to - view.from)) * (main.width() - view.left),
    rows: () => rows, selectedRow: () => rowOf(view.selected), area: () => view.area,
    whole: (on) => { view.paper = on; }, look, get view() { return { from: view.from, to: view.to }; }, draw: () => { main.paint(); map.paint(); }, start: () => { main.fit(); map.fit(); },
  };
}
