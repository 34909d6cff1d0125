// The flame graph: blocks from the top, in each the operations it launched, as wide as their time. Turned over, the
// operations are at the top and below each who called it.
function flame(facts) {
  const ROW = 20;
  const colours = {};
  (data.phases.find((one) => one.name === "whole") || {}).operations?.forEach((row) => { if (row.kind === "kernel" && !(row.name in colours)) colours[row.name] = row.colour; });
  const word = ([, name, , kind]) =>
    kind === "block" ? "block" : kind === "kernel" ? colours[name] || "kernel" : kind === "transfer" ? "up" : kind === "rest" ? "other" : "memset";
  let rows, places, children, depth, left, wide;
  let root = 0, current = 0, needle = "", boxes = [];

  /** Rows as they come: [parent, name, nanoseconds, kind], parents first, and of each its places on the timeline. */
  function lay(asked, where) {
    rows = asked; places = where;
    children = rows.map(() => []); depth = rows.map(() => 0); left = rows.map(() => 0); wide = rows.map((row) => row[2]);
    rows.forEach(([parent], at) => { if (parent >= 0) { children[parent].push(at); depth[at] = depth[parent] + 1; } });
    rows.forEach((row, at) => {
      const inside = children[at].sort((a, b) => rows[b][2] - rows[a][2]), sum = inside.reduce((all, child) => all + rows[child][2], 0);
      let x = left[at];
      for (const child of inside) {
        wide[child] = rows[child][2] * (sum > 0 ? wide[at] / Math.max(sum, row[2]) : 0);  // blocks side by side are narrower
        left[child] = x; x += wide[child];
      }
    });
    root = current = 0;
  }
  /** What ran, below each the blocks it ran in, innermost first. What a block has beside those inside it is its own. */
  function turned() {
    const found = [[-1, facts.rows[0][1], facts.rows[0][2], "block"]], where = [[]], known = new Map();
    const inside = facts.rows.map(() => 0);
    facts.rows.forEach(([parent, , spent]) => { if (parent >= 0) inside[parent] += spent; });
    facts.rows.forEach((row, leaf) => {
      const own = row[2] - inside[leaf];
      if (!leaf || own <= 0 || (inside[leaf] && facts.of === "device time")) return;
      for (let at = leaf, below = 0; at > 0; at = facts.rows[at][0]) {
        const [, name, , kind] = facts.rows[at], key = below + "\n" + kind + "\n" + name;
        if (!known.has(key)) { known.set(key, found.length); found.push([below, name, 0, kind]); where.push([]); }
        below = known.get(key);
        found[below][2] += own;
        if (isPlace(facts.places[leaf])) where[below].push(facts.places[leaf]);
      }
    });
    return [found, where];
  }
  const matches = (at) => needle !== "" && at > 0 && rows[at][1].toLowerCase().includes(needle);
  const deepest = () => Math.max(...depth) + 1;

  function draw(g, width, height) {
    g.clearRect(0, 0, width, height);
    g.font = SMALL;
    boxes = [];
    const scale = width / Math.max(1e-9, wide[root]), above = new Set();
    for (let at = root; at >= 0; at = rows[at][0]) above.add(at);
    rows.forEach((row, at) => {
      const ancestor = above.has(at);
      const x = ancestor ? 0 : (left[at] - left[root]) * scale, span = ancestor ? width : wide[at] * scale;
      if (span < 0.5 || x + span <= 0 || x >= width) return;
      const a = Math.max(0, x), b = Math.min(width, x + span), y = depth[at] * ROW, key = word(row);
      g.globalAlpha = needle && !matches(at) ? 0.22 : ancestor && at !== root ? 0.55 : 1;
      g.fillStyle = colour(key);
      g.fillRect(a, y, Math.max(0.5, b - a - 0.8), ROW - 1);
      if (b - a > 34) {
        g.fillStyle = inkOn(key);
        if (g.globalAlpha < 0.5) { g.globalAlpha = 1; g.fillStyle = colour("quiet"); }
        g.fillText(cut(row[1], b - a - 10), a + 5, y + 14);
      }
      g.globalAlpha = 1;
      if (matches(at)) { g.fillStyle = colour("text"); g.fillRect(a, y + ROW - 3, Math.max(0.5, b - a - 0.8), 2); }
      if (at === current && current) { g.strokeStyle = colour("text"); g.lineWidth = 1.6; g.strokeRect(a + 0.8, y + 0.8, Math.max(1, b - a - 2), ROW - 2.6); }
      boxes.push([a, b, y, at]);
    });
  }
  const hit = (event) => boxes.find(([a, b, y]) => event.offsetX >= a && event.offsetX < b && event.offsetY >= y && event.offsetY < y + ROW)?.[3] ?? -1;
  const share = (spent) => `${time(spent)} of ${facts.of}, ${percent(spent / Math.max(1, rows[0][2]))}`;
  const pathOf = (at) => { const parts = []; for (let one = rows[at][0]; one > 0; one = rows[one][0]) parts.unshift(rows[one][1]); return parts; };
  const inWhat = (at) => (pathOf(at).length ? ` · in ${facts.turned ? [rows[at][1], ...pathOf(at).reverse()].join(" › ") : pathOf(at).join(" › ")}` : "");

  const picture = canvas(ROW, draw, `Flame graph of ${facts.of}; arrows move, Enter shows on the timeline, Space zooms`);
  const element = picture.element, details = h("div", { class: "details", "aria-live": "polite" });
  const found = h("span", { class: "quiet", role: "status" });
  const placesOf = (at) => [places[at]].flat().filter(isPlace);
  const show = () => goTo(placesOf(current), element, "Flame graph");
  const reset = h("button", { type: "button", onclick: () => { search.value = ""; find(""); zoom(0); pick(0); } }, "Reset");
  function pick(at) {
    current = at;
    const goes = globalThis.showOnTimeline && placesOf(at).length;
    details.replaceChildren(...(at ? [h("b", {}, rows[at][1]), ` · ${share(rows[at][2])}${inWhat(at)} `,
      goes ? h("button", { type: "button", onclick: show }, "Show on the timeline") : h("span", { class: "quiet" }, "no single call of it is in this file")]
      : [h("span", { class: "quiet" }, "Select a bar to zoom in. Arrow keys move, Enter shows on the timeline, Space zooms, Esc resets.")]));
    picture.paint();
  }
  const zoom = (to) => { root = children[to].length ? to : Math.max(0, rows[to][0]); picture.paint(); };
  function find(text) {
    needle = text.trim().toLowerCase();
    let sum = 0, count = 0;
    const inside = rows.map(() => false);  // a match in a match counts once
    rows.forEach(([parent, , spent], at) => {
      const one = matches(at);
      if (one) { count++; if (!inside[parent]) sum += spent; }
      inside[at] = one || (parent >= 0 && inside[parent]);
    });
    found.textContent = needle ? `${counted(count, "match", "matches")}${count ? `: ${share(sum)}` : ""}` : "";
    picture.paint();
  }
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in the flame graph", oninput: () => find(search.value) });
  const turn = h("button", { type: "button", "aria-pressed": "false", title: "What ran at the top, below it the blocks it ran in", onclick: () => {
    facts.turned = !facts.turned;
    turn.setAttribute("aria-pressed", String(facts.turned));
    lay(...(facts.turned ? turned() : [facts.rows, facts.places]));
    picture.resize(deepest() * ROW);
    pick(0); find(search.value);
  } }, "Callers below");

  element.tabIndex = 0;
  element.setAttribute("role", "application");
  element.addEventListener("click", (event) => {
    const at = hit(event);
    if (at < 0) return;
    if (!children[at].length) { pick(at); show(); }  // nothing inside to zoom into
    else { zoom(at === root ? Math.max(0, rows[at][0]) : at); pick(at); }
  });
  element.addEventListener("dblclick", (event) => { if (hit(event) > 0) { pick(hit(event)); show(); } });
  const beside = (by) => {
    const all = rows[current][0] < 0 ? [current] : children[rows[current][0]];
    pick(all[Math.max(0, Math.min(all.length - 1, all.indexOf(current) + by))]);
  };
  const keys = {
    ArrowUp: () => { if (rows[current][0] >= 0) { if (current === root) zoom(rows[current][0]); pick(rows[current][0]); } },
    ArrowDown: () => children[current].length && pick(children[current][0]),
    ArrowLeft: () => beside(-1), ArrowRight: () => beside(1), Home: () => pick(0),
    Enter: show, " ": () => zoom(current), Escape: () => reset.click(), 0: () => { zoom(0); pick(0); },
  };
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault(); keys[event.key]();
  });
  element.addEventListener("pointermove", (event) => {
    const at = hit(event);
    if (at < 0) hideTip();
    else showTip(event, rows[at][1], share(rows[at][2]), pathOf(at).join(" › ") || null);
  });
  element.addEventListener("pointerleave", hideTip);
  lay(facts.rows, facts.places);
  pick(0);
  const note = facts.of === "device time" ? "width: time of the device, by block and by operation" : "width: time for which blocks were open";
  return {
    section: h("section", { id: "flame" }, h("h2", {}, "Flame graph", h("small", { class: "wide" }, note)),
      h("div", { class: "controls" }, search, found, h("span", { class: "grow" }), turn, reset),
      h("div", { class: "view scroll" }, element), details),
    start: () => { picture.resize(deepest() * ROW); },
    find,
  };
}
