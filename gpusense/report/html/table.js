// A table of operations: sorted by any column, searched by name.
function table(id, title, of, rowsOf, moreOf) {
  const columns = [
    ["Operation", (row) => row.name, (row) => [swatch(row.colour), row.name], (row) => row.full_name || row.name],
    ["Kind", (row) => row.what, (row) => row.what],
    ["Device", (row) => row.card, (row) => row.card],
    ["", (row) => row.share, (row) => percent(row.share)],
    ["Total", (row) => row.total_ns, (row) => (row.kind === "allocation" ? "–" : time(row.total_ns))],
    ["Calls", (row) => row.count, (row) => row.count.toLocaleString("en")],
    ["Avg", (row) => row.avg_ns, (row) => time(row.avg_ns)],
    ["Med", (row) => row.median_ns ?? -1, (row) => time(row.median_ns)],
    ["p95", (row) => row.p95_ns ?? -1, (row) => time(row.p95_ns)],
    ["Min", (row) => row.min_ns, (row) => time(row.min_ns)],
    ["Max", (row) => row.max_ns, (row) => time(row.max_ns)],
    ["StdDev", (row) => row.std_ns, (row) => time(row.std_ns)],
    ["First", (row) => row.first_ns ?? -1, (row) => time(row.first_ns)],
    ["Bytes", (row) => row.bytes, (row) => (row.bytes ? size(row.bytes) : "–")],
    ["Rate", (row) => row.bandwidth_bytes_per_s ?? -1, (row) => (row.bandwidth_bytes_per_s ? size(row.bandwidth_bytes_per_s) + "/s" : "–")],
  ];
  let sorted = 4, falling = true, needle = "";
  const body = h("tbody");
  const heads = columns.map(([label], at) =>
    h("th", { scope: "col" }, h("button", { type: "button", onclick: () => { falling = sorted === at ? !falling : at > 2; sorted = at; fill(); } }, label)));
  const count = h("span", { class: "quiet" });
  function fill() {
    const rows = rowsOf(), more = moreOf();
    heads[3].firstChild.textContent = `% of ${of()}`;
    name.replaceChildren(title(), h("small", {}, `shares are of the ${of()}`));
    const value = columns[sorted][1], sign = falling ? -1 : 1;
    const shown = rows.filter((row) => !needle || `${row.name}\n${row.full_name || ""}\n${row.what}`.toLowerCase().includes(needle))
      .sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
    heads.forEach((head, at) => (at === sorted ? head.setAttribute("aria-sort", falling ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    body.replaceChildren(...shown.slice(0, 500).map((row) =>
      h("tr", {}, columns.map(([, , text, title]) => h("td", title ? { title: title(row).slice(0, 1000) } : {}, text(row))))));
    count.textContent = `${shown.length.toLocaleString("en")} of ${counted(rows.length + more, "operation")}` +
      (shown.length > 500 ? "; the first 500 shown" : "") + (more ? `; the lightest ${more.toLocaleString("en")} are not in this file` : "");
  }
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": `Search in the table of ${title()}`, oninput: () => { needle = search.value.trim().toLowerCase(); fill(); } });
  const name = h("h2");
  const section = h("section", { id }, name, h("div", { class: "controls" }, search, count),
    h("div", { class: "table" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body)));
  return { section, fill };
}
