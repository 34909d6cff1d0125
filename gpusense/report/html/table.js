// Tables: sorted by any column, searched by name, walked by keys. A row leads to the timeline.
const LINES = 500;

/**
 * `of`: title, note and rows as functions; columns with head, hint, value to sort by, text or elements, title; groups of
 * columns; place and words of a row. `sorted` is -1 where rows have an order of their own, as a tree has.
 */
function table(id, of) {
  const { columns } = of, tree = of.sorted < 0 && columns.some((column) => column.value);
  let sorted = of.sorted, falling = true, needle = "", lines = [];
  const sorts = (at) => columns[at].value || (tree && !at);
  const press = (at) => { falling = sorted === at ? !falling : at > 0 && columns[at].falls !== false; sorted = tree && !at ? -1 : at; fill(); };
  const heads = columns.map(({ head, hint }, at) =>
    h("th", { scope: "col", class: columns[at].first ? "first" : "", ...(hint ? { title: hint } : {}) },
      sorts(at) ? h("button", { type: "button", onclick: () => press(at) }, head) : h("span", {}, head)));
  const body = h("tbody"), count = h("span", { class: "quiet" }), name = h("h2");
  function fill() {
    const rows = of.rows(), more = of.more();
    columns.forEach(({ head }, at) => { heads[at].firstChild.textContent = typeof head === "function" ? head() : head; });
    name.replaceChildren(of.title(), h("small", {}, of.note()));
    let found = rows.filter((row) => !needle || of.words(row).toLowerCase().includes(needle));
    if (sorted >= 0) {
      const value = columns[sorted].value, sign = falling ? -1 : 1;
      const unknown = (one) => one === null || one === undefined;
      found = [...found].sort((one, other) => {
        const a = value(one), b = value(other);  // what is not known goes last, whichever way
        return unknown(a) || unknown(b) ? unknown(a) - unknown(b) : sign * (a < b ? -1 : a > b ? 1 : 0);
      });
    }
    heads.forEach((head, at) => (at === sorted ? head.setAttribute("aria-sort", falling ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    lines = found.slice(0, LINES);
    const asTree = sorted < 0 && !needle;
    body.replaceChildren(...lines.map((row, at) => {
      const goes = globalThis.showOnTimeline && isPlace(of.place(row));
      return h("tr", { tabindex: at ? -1 : 0, "data-at": at, class: goes ? "goes" : "" }, columns.map(({ text, title, first }) =>
        h("td", { class: first ? "first" : "", ...(title ? { title: title(row).slice(0, 1000) } : {}) }, text(row, asTree))));
    }));
    count.textContent = `${found.length.toLocaleString("en")} of ${counted(rows.length + more, of.noun)}` +
      (found.length > LINES ? `; the first ${LINES} shown` : "") + (more ? `; the lightest ${more.toLocaleString("en")} are not in this file` : "");
    again();
  }
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": `Search in the table of ${of.title()}`, oninput: () => { needle = search.value.trim().toLowerCase(); fill(); } });
  const again = walk(body, "tr", (line) => { const row = lines[line.dataset.at]; goTo(of.place(row), line, of.title()); });
  const groups = of.groups && h("tr", { class: "groups" }, of.groups.map(([head, wide]) => (head ? h("th", { scope: "colgroup", colspan: wide }, head) : h("td", { colspan: wide }))));
  const section = h("section", id ? { id } : {}, name, of.words ? h("div", { class: "controls" }, search, count) : null,
    h("div", { class: "table" }, h("table", {}, h("thead", {}, groups, h("tr", {}, heads)), body)),
    of.words || !of.more() ? null : h("p", { class: "note" }, `${of.more().toLocaleString("en")} more`),
    (of.remarks || []).map((remark) => h("p", { class: "note" }, remark)));
  document.addEventListener("gpusense:selected", ({ detail }) => {
    for (const line of body.children) line.classList.toggle("selected", of.called(lines[line.dataset.at]) === detail.name);
  });
  return { section, fill };
}

/** The table of operations, of the device or of the host: shares are of one time alone. */
function operations(id, title, share, rows, more) {
  const text = (head, key, hint) => ({ head, hint, falls: false, value: (row) => row[key], text: (row) => row[key] });
  const lasts = (head, key, hint) => ({ head, hint, value: (row) => row[key], text: (row) => time(row[key]) });
  return table(id, {
    title: () => title, note: () => `100 % is the time of the ${share()}`, rows, more, noun: "operation", sorted: 4,
    place: (row) => row.place, called: (row) => row.name, words: (row) => `${row.name}\n${row.full_name || ""}\n${row.what}`,
    columns: [
      { head: "Operation", falls: false, value: (row) => row.name, text: (row) => [swatch(row.colour), row.name], title: (row) => row.full_name || row.name },
      { ...text("Kind", "what"), text: (row) => row.what },
      { ...text("Device", "card"), text: (row) => row.card },
      { head: () => `% of ${share()}`, hint: "of the time that is 100 %; work at the same time may be more together", value: (row) => row.share, text: (row) => percent(row.share) },
      { ...lasts("Total", "total_ns", "all calls together"), text: (row) => (row.kind === "allocation" ? "–" : time(row.total_ns)) },
      { head: "Calls", value: (row) => row.count, text: (row) => row.count.toLocaleString("en") },
      lasts("Avg", "avg_ns", "of one call"), lasts("Med", "median_ns", "half of the calls took no longer"), lasts("p95", "p95_ns", "95 % of the calls took no longer"),
      lasts("Min", "min_ns", "the shortest call"), lasts("Max", "max_ns", "the longest call"), lasts("StdDev", "std_ns", "standard deviation of one call"),
      lasts("First", "first_ns", "the first call"),
      { head: "Bytes", hint: "moved by all calls together", value: (row) => row.bytes, text: (row) => (row.bytes ? size(row.bytes) : "–") },
      { head: "Rate", hint: "bytes a second while it ran", value: (row) => row.bandwidth_bytes_per_s, text: (row) => (row.bandwidth_bytes_per_s ? size(row.bandwidth_bytes_per_s) + "/s" : "–") },
    ],
  });
}

/** A table that comes as text. One with `values` can be sorted and searched; one with `depths` is a tree. */
function plainTable(of) {
  const { heads, rows, values, depths, paths, groups, remarks } = of, starts = new Set();
  (groups || []).reduce((at, [, wide]) => { if (at) starts.add(at); return at + wide; }, 0);
  const numbers = rows.map((_, at) => at);
  return table(of.title === "Blocks" ? "blocks" : "", {
    title: () => of.title, note: () => `${data.phases.length > 1 ? "of the whole run, whichever phase is chosen; " : ""}${of.note}`, groups, remarks, rows: () => numbers, more: () => of.more, noun: of.title.toLowerCase().replace(/s$/, ""), sorted: -1,
    place: (row) => (of.places ? of.places[row] : null), called: (row) => rows[row][0], words: values && ((row) => paths[row]),
    columns: heads.map((head, at) => ({
      head, hint: of.hints && of.hints[at], first: starts.has(at), value: values && at ? (row) => values[row][at - 1] : undefined,
      title: at ? undefined : (row) => (paths ? paths[row] : rows[row][0]),
      text: (row, asTree) => (at || !depths ? rows[row][at] : asTree ? h("span", { style: { paddingLeft: depths[row] * 16 + "px" } }, rows[row][0]) : paths[row]),
    })),
  });
}
