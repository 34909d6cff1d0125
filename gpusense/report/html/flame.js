// The flame graph: blocks from the top, in each the operations it launched, as wide as their device time.
function flame(facts) {
  const rows = facts.rows, ROW = 20;
  const children = rows.map(() => []), depth = rows.map(() => 0), left = rows.map(() => 0);
  rows.forEach(([parent], at) => { if (parent >= 0) { children[parent].push(at); depth[at] = depth[parent] + 1; } });
  rows.forEach((row, at) => {
    let x = left[at];
    for (const child of children[at].sort((a, b) => rows[b][2] - rows[a][2])) { left[child] = x; x += rows[child][2]; }
  });
  const colours = {};
  (data.phases.find((one) => one.name === "whole") || {}).operations?.forEach((row) => { if (row.kind === "kernel" && !(row.name in colours)) colours[row.name] = row.colour; });
  const word = ([, name, , kind]) =>
    kind === "block" ? "block" : kind === "kernel" ? colours[name] || "kernel" : kind === "transfer" ? "up" : kind === "rest" ? "other" : "memset";
  let root = 0;
  const deepest = () => Math.max(...depth) + 1;
  const boxes = [];
  function draw(g, width, height) {
    g.clearRect(0, 0, width, height);
    g.font = SMALL;
    boxes.length = 0;
    const scale = width / Math.max(1, rows[root][2]);
    const above = new Set();
    for (let at = root; at >= 0; at = rows[at][0]) above.add(at);
    rows.forEach((row, at) => {
      const ancestor = above.has(at);
      const x = ancestor ? 0 : (left[at] - left[root]) * scale, wide = ancestor ? width : row[2] * scale;
      if (wide < 0.5 || x + wide <= 0 || x >= width) return;
      const a = Math.max(0, x), b = Math.min(width, x + wide), y = depth[at] * ROW, key = word(row);
      g.globalAlpha = ancestor && at !== root ? 0.55 : 1;
      g.fillStyle = colour(key);
      g.fillRect(a, y, Math.max(0.5, b - a - 0.8), ROW - 1);
      if (b - a > 34) {
        g.fillStyle = /^(block|other|memset|up)/.test(key) ? colour("ink-dark") : colour("ink");
        g.fillText(cut(row[1], b - a - 10), a + 5, y + 14);
      }
      g.globalAlpha = 1;
      boxes.push([a, b, y, at]);
    });
  }
  const at = (event) => {
    const hit = boxes.find(([a, b, y]) => event.offsetX >= a && event.offsetX < b && event.offsetY >= y && event.offsetY < y + ROW);
    return hit ? hit[3] : -1;
  };
  const picture = canvas(deepest() * ROW, draw, "Flame graph of device time by block and operation");
  picture.element.tabIndex = 0;
  const zoom = (to) => { root = children[to].length ? to : Math.max(0, rows[to][0]); picture.paint(); };
  picture.element.addEventListener("click", (event) => { const hit = at(event); if (hit >= 0) zoom(hit === root ? Math.max(0, rows[hit][0]) : hit); });
  picture.element.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || event.key === "0") zoom(0);
    else if (event.key === "ArrowUp" && root) { event.preventDefault(); zoom(rows[root][0]); }
    else if (event.key === "ArrowDown" && children[root].some((child) => children[child].length)) {
      event.preventDefault(); zoom(children[root].find((child) => children[child].length));
    }
  });
  picture.element.addEventListener("pointermove", (event) => {
    const hit = at(event);
    if (hit < 0) return hideTip();
    const parts = [];
    for (let one = hit; one > 0; one = rows[one][0]) parts.unshift(rows[one][1]);
    showTip(event, rows[hit][1], `${time(rows[hit][2])} of device time, ${percent(rows[hit][2] / Math.max(1, rows[0][2]))}`, parts.slice(0, -1).join(" › ") || null);
  });
  picture.element.addEventListener("pointerleave", hideTip);
  return {
    section: h("section", { id: "flame" }, h("h2", {}, "Flame graph", h("small", { class: "wide" }, "device time by block, then by operation; select to zoom in")),
      h("div", { class: "view scroll" }, picture.element)),
    start: picture.fit,
  };
}
