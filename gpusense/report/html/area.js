// What lies in a selected time: sums by name and by row, which also can be copied as text.
function areaPanel(facts, events, rows, { from, to }, close, zoom) {
  const { start, length, name } = events, whole = Math.max(1, to - from), SHOWN = 12;
  const kinds = { device: new Map(), host: new Map(), why: new Map() }, tracks = [];
  for (const row of rows) {
    const first = events.firstAfter(row, from), last = events.firstFrom(first, row.to, to);
    if (!row.group || first >= last) continue;
    const sums = kinds[row.busy ? "device" : facts.colours[name[first]].startsWith("gap-") ? "why" : "host"];
    const found = new Map();
    for (let event = first; event < last; event++) {
      const spent = Math.min(to, start[event] + length[event]) - Math.max(from, start[event]), of = found.get(name[event]);
      if (of) { of[0] += spent; of[1]++; } else found.set(name[event], [spent, 1]);
    }
    for (const [id, [spent, count]] of found) {  // kinds of one name count together
      const sum = sums.get(facts.names[id]) || [0, 0, facts.colours[id]];
      sums.set(facts.names[id], [sum[0] + spent, sum[1] + count, sum[2]]);
    }
    if (row.busy) {
      const title = rows.filter((one) => one.busy && one.group !== row.group).length ? `${row.group} · ${row.title}` : row.title;
      const same = tracks.find((one) => one[0] === title);
      const spent = events.within(first, last, from, to);
      if (same) { same[1] += spent; same[2] += last - first; } else tracks.push([title, spent, last - first, null]);
    }
  }
  const sorted = (sums) => [...sums].map(([what, [spent, count, word]]) => [what, spent, count, word]).sort((a, b) => b[1] - a[1]);
  const tables = [
    ["On the devices, by name", sorted(kinds.device)], ["By stream", tracks.sort((a, b) => b[1] - a[1])],
    ["Devices idle: why", sorted(kinds.why)], ["On the host, by name", sorted(kinds.host)],
  ].filter(([, found]) => found.length);
  const title = `${time(to - from)} from ${exact(from, to - from)} to ${exact(to, to - from)}`;
  const cells = ([what, spent, count]) => [what, time(spent), count.toLocaleString("en"), percent(spent / whole)];
  const HEADS = ["", "Time", "Count", "Share"];
  function text() {
    const lines = [title + "; 100 % is this time"];
    for (const [head, found] of tables) {
      const all = [[head, ...HEADS.slice(1)], ...found.map(cells)].map(([what, ...rest]) => [what.length > 70 ? what.slice(0, 69) + "…" : what, ...rest]);
      const wide = HEADS.map((_, at) => Math.max(...all.map((one) => one[at].length)));
      lines.push("", ...all.map((one) => one.map((cell, at) => (at ? cell.padStart(wide[at]) : cell.padEnd(wide[at]))).join("  ")));
    }
    return lines.join("\n") + "\n";
  }
  function copy() {
    const field = h("textarea", { "aria-label": "Copy of the sums" });
    field.value = text();
    panel.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    copied.textContent = done ? "Copied as text." : "This browser does not let a page copy.";
  }
  const copied = h("span", { class: "quiet", role: "status" });
  const table = ([head, found]) => h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, [head, ...HEADS.slice(1)].map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, found.slice(0, SHOWN).map((one) => h("tr", {}, cells(one).map((cell, at) =>
      h("td", {}, at ? cell : h("div", { title: cell.slice(0, 1000) }, one[3] ? swatch(one[3]) : null, h("span", {}, cell)))))),
      found.length > SHOWN ? h("tr", {}, cells([`${(found.length - SHOWN).toLocaleString("en")} more`, ...[1, 2].map((at) => found.slice(SHOWN).reduce((sum, one) => sum + one[at], 0))]).map((cell) => h("td", { class: "quiet" }, cell))) : null));
  const panel = h("div", {},
    h("div", { class: "controls" }, h("b", {}, title), h("span", { class: "quiet" }, "100 % is this time"), copied, h("span", { class: "grow" }),
      h("button", { type: "button", title: "These sums, as text", onclick: copy }, "Copy"), h("button", { type: "button", title: "Zoom to it", onclick: zoom }, "Zoom"),
      h("button", { type: "button", title: "Close (Esc)", onclick: close }, "Close")),
    tables.length ? h("div", { class: "sums" }, tables.map(table)) : h("p", { class: "quiet" }, "Nothing ran in this time."));
  return [panel];
}

const KEYS = [
  ["Timeline", [
    ["w  s", "zoom in, zoom out"], ["a  d", "move left, move right"], ["0  Home", "the whole run"], ["← →", "the event before, the next one, in the row"],
    ["↑ ↓", "the row above, the row below"], ["n  p", "the next one of the same name, the one before"], ["l", "the longest one of the row in this view"],
    ["Enter  f", "zoom to what is selected"], ["m", "sums of the time of what is selected"], ["Esc", "close the sums, then forget the selection, then the search"],
  ]],
  ["With a mouse", [
    ["wheel with Ctrl", "zoom at the pointer"], ["drag", "move"], ["drag with Shift", "sums of that time; on the ruler without Shift"], ["double-click", "zoom in"],
  ]],
  ["Finding", [["/", "find events by name"], ["Enter  ↓", "the next that was found"], ["Shift+Enter  ↑", "the one before"], ["Esc", "forget the search"]]],
  ["Tables and flame graph", [
    ["↑ ↓", "from row to row"], ["← →", "in the flame graph, to what lies beside"], ["Enter", "show it on the timeline"], ["Space", "zoom into a part of the flame graph"],
    ["n  p", "then its next time, the one before"], ["Esc", "back to where you came from"],
  ]],
  ["Page", [["Tab", "from part to part"], ["?", "these keys"], ["Esc", "close them"]]],
];
/** All keys of the page, over it. */
function keysOverlay() {
  const overlay = h("dialog", { class: "keys", "aria-label": "Keys" }, h("div", { class: "controls" }, h("b", {}, "Keys"), h("span", { class: "grow" }),
    h("button", { type: "button", onclick: () => overlay.close() }, "Close")),
    h("div", {}, KEYS.map(([title, keys]) => h("div", {}, h("h3", {}, title), h("dl", {}, keys.flatMap(([key, what]) =>
      [h("dt", {}, key.split(/ {2}/).map((one) => h("kbd", {}, one))), h("dd", {}, what)]))))));
  overlay.addEventListener("click", (event) => { if (event.target === overlay) overlay.close(); });
  overlay.addEventListener("keydown", (event) => { if (event.key === "?") { event.preventDefault(); overlay.close(); } });
  return overlay;
}
