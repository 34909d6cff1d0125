// How long each rank waited in each collective: a picture that keys walk over, whose cells lead to the timeline.
function matrix(of) {
  const { rows, columns, waits, late, places } = of, tall = rows.length <= 16 ? 18 : rows.length <= 40 ? 11 : 8, TOP = 4, UNDER = 18;
  const most = Math.max(1, ...waits.flat()), said = h("div", { class: "details", role: "status" });
  let row = 0, column = 0, gutter = 0, cell = 1;
  const words = (r, c) => [rows[r], columns[c], waits[c][r] === null ? "took no part" : `waits ${time(waits[c][r])}`, late[c] === r ? "comes last" : `${rows[late[c]]} comes last`];
  const picture = canvas(TOP + rows.length * tall + UNDER, (g, width, height) => {
    gutter = Math.min(150, width * 0.3);
    cell = (width - gutter) / columns.length;
    g.clearRect(0, 0, width, height);
    g.font = SMALL;
    const every = Math.ceil(13 / tall);
    rows.forEach((name, r) => {
      g.fillStyle = colour("quiet"); g.textAlign = "right"; g.textBaseline = "middle";
      if (r % every === 0) g.fillText(cut(name, gutter - 8), gutter - 6, TOP + (r + 0.5) * tall);
      for (let c = 0; c < columns.length; c++) {
        if (waits[c][r] === null) continue;
        const x = gutter + c * cell, y = TOP + r * tall, wide = Math.max(1, cell - (cell > 4 ? 1 : 0)), high = tall - (tall > 4 ? 1 : 0);
        g.fillStyle = colour("soft"); g.fillRect(x, y, wide, high);
        g.globalAlpha = Math.sqrt(waits[c][r] / most); g.fillStyle = colour("collective"); g.fillRect(x, y, wide, high); g.globalAlpha = 1;
        if (late[c] === r) { g.fillStyle = colour("accent"); g.fillRect(x, y + high / 2 - 1.5, wide, 3); }
      }
    });
    g.textBaseline = "alphabetic"; g.fillStyle = colour("quiet");
    g.textAlign = "left"; g.fillText("first", gutter, height - 4);
    g.textAlign = "right"; g.fillText("last collective", width, height - 4);
    if (document.activeElement === picture.element) {
      g.strokeStyle = colour("text"); g.lineWidth = 2;
      g.strokeRect(gutter + column * cell - 1, TOP + row * tall - 1, Math.max(3, cell + 1), tall + 1);
    }
  }, `Waiting of ${counted(rows.length, "row")} of ranks in ${counted(columns.length, "column")} of collectives; arrows go from cell to cell, Enter shows one on the timeline`);
  const element = picture.element, leads = () => globalThis.showOnTimeline && isPlace(places[column]);
  const tell = () => { const [name, what, long, last] = words(row, column); said.replaceChildren(h("b", {}, name), ` ${long} · ${what} · ${last}`); picture.paint(); };
  const at = (event) => {
    const box = element.getBoundingClientRect();
    const found = [Math.floor((event.clientY - box.top - TOP) / tall), Math.floor((event.clientX - box.left - gutter) / cell)];
    return found[0] >= 0 && found[0] < rows.length && found[1] >= 0 && found[1] < columns.length ? found : null;
  };
  const go = () => { if (leads()) goTo(places[column], element, "the waiting of ranks"); };
  element.tabIndex = 0;
  element.addEventListener("focus", tell);
  element.addEventListener("blur", () => picture.paint());
  element.addEventListener("mousemove", (event) => { const found = at(event); if (found) showTip(event, ...words(...found)); else hideTip(); });
  element.addEventListener("mouseleave", hideTip);
  element.addEventListener("click", (event) => { const found = at(event); if (found) { [row, column] = found; tell(); hideTip(); go(); } });
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [down, along] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -columns.length], End: [0, columns.length] }[event.key] || [0, 0];
    if (down || along) {
      event.preventDefault();
      row = Math.max(0, Math.min(rows.length - 1, row + down));
      column = Math.max(0, Math.min(columns.length - 1, column + along));
      tell();
    } else if (event.key === "Enter") { event.preventDefault(); go(); }
  });
  const section = h("section", { id: "waiting" }, h("h2", {}, "Waiting of ranks", h("small", {}, of.note)),
    h("ul", { class: "legend" }, h("li", {}, h("span", { class: "swatch", style: { background: "var(--collective)" } }), `waits up to ${time(most)}, the stronger the longer`),
      h("li", {}, h("span", { class: "swatch", style: { background: "var(--accent)" } }), "comes last")),
    element, said);
  return { section, start: picture.fit };
}
