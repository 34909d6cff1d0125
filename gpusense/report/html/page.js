// Puts the page together, in the order in which it is read.
const REASONS = {
  compute: ["computes", "k0"], collective: ["communicates only", "collective"], copy: ["copies only", "up"],
  synchronisation: ["empty after the host waited", "synchronisation"], host: ["waits for the host", "gap-host"],
  no_work: ["no work", "gap-no_work"], unattributed: ["idle, reason unknown", "joined"],
  unseen: ["not seen: capture was off", "gap-unseen"],
};

function breakdown() {
  const whole = data.breakdown.map(({ device, window: all, parts }) => h("div", {},
    data.breakdown.length > 1 ? h("h3", {}, device) : null,
    h("div", { class: "bar", role: "img", "aria-label": parts.map(([reason, ns]) => `${REASONS[reason][0]} ${percent(ns / all)}`).join(", ") },
      parts.map(([reason, ns]) => h("i", { style: { width: (ns / all) * 100 + "%", background: `var(--${REASONS[reason][1]})` }, title: `${REASONS[reason][0]}: ${time(ns)}` }))),
    h("ul", { class: "legend" }, parts.map(([reason, ns]) => h("li", {}, swatch(REASONS[reason][1]), REASONS[reason][0], h("b", {}, percent(ns / all)), h("span", { class: "quiet" }, time(ns)))))));
  return h("section", { id: "breakdown" }, h("h2", {}, "Where the time went",
    h("small", {}, data.breakdown.length === 1 ? data.breakdown[0].device : "every device over the whole run")), whole);
}

function shares(view) {
  const heaviest = data.operations.filter((row) => ["kernel", "transfer", "memset"].includes(row.kind)).slice(0, 10);
  const most = heaviest.length ? heaviest[0].share || 1 : 1, started = [];
  const several = new Set(heaviest.map((row) => row.device)).size > 1;
  const rows = heaviest.map((row) => {
    const word = row.colour, bins = data.histograms[data.operations.indexOf(row)];
    const drawn = bins ? histogram(bins, word) : null;
    if (drawn) started.push(drawn.picture.fit);
    return h("div", { class: "share" },
      h("div", {}, h("div", { class: "name" }, swatch(word), h("span", { title: (row.full_name || row.name).slice(0, 1000) }, row.name),
        several && row.device !== null ? h("span", { class: "quiet" }, `GPU ${row.device}`) : null),
        h("div", { class: "track" }, h("i", { style: { width: (row.share / most) * 100 + "%", background: `var(--${word})` } }))),
      h("div", { class: "numbers" }, h("b", {}, percent(row.share)), ` ${time(row.total_ns)}`, h("small", {}, `${row.count.toLocaleString("en")} × ${time(row.avg_ns)}`)),
      h("div", { class: "chart-cell" }, drawn ? [drawn.picture.element, drawn.scale] : h("span", { class: "quiet" }, "summed only")));
  });
  return {
    section: h("section", { id: "shares" }, h("h2", {}, "Heaviest operations", h("small", { class: "wide" }, "share of device time; how long single calls took")), rows),
    start: () => started.forEach((fit) => fit()),
  };
}

function findings() {
  return h("section", { id: "findings" }, h("h2", {}, "All findings", h("small", {}, "what could save most first")), data.findings.map((one) =>
    h("details", { class: "finding" },
      h("summary", {}, h("span", {}, one.title), h("span", {}, one.saving ? "up to " + one.saving : "")),
      h("ul", {}, one.evidence.map((line) => h("li", {}, line))),
      one.fix ? h("p", { class: "fix" }, h("b", {}, "Try"), one.fix) : null, h("p", { class: "quiet" }, `Confidence: ${one.confidence}`))));
}

function smallTable({ title, note, heads, rows, more }) {
  return h("section", {}, h("h2", {}, title, h("small", { class: "wide" }, note)),
    h("div", { class: "table" }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))))),
    h("p", { class: "note" }, more ? `${more.toLocaleString("en")} more` : ""));
}

function foot() {
  const seen = data.seen;
  const line = (label, pairs) => (pairs.length ? h("p", {}, `${label}: ` + pairs.map(([name, value]) => `${name} ${typeof value === "number" ? value.toLocaleString("en") : value}`).join(" · ")) : null);
  const records = h("p", {}, [`Records: ${seen.records}`, ...seen.counters.map(([name, value]) => `${name} ${value.toLocaleString("en")}`)].join(" · "));
  return [records, line("Sources", seen.backends), line("Cost of watching", seen.overhead),
    seen.threshold ? h("p", {}, `Calls shorter than ${seen.threshold} are summed, longer ones listed.`) : null,
    seen.unseen.length ? h("p", {}, "Capture was off: " + seen.unseen.map(([at, why]) => `from ${time(at)}, ${why}`).join(" · ") + (seen.more_unseen ? ` · and ${seen.more_unseen.toLocaleString("en")} times more` : "")) : null,
    h("p", {}, `gpusense ${seen.version}. One file, no request: everything on this page is in it.`)].filter(Boolean);
}

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const parts = [];
if (data.breakdown.length) parts.push({ section: breakdown() });
const drawn = data.timeline.rows.length ? timeline(data.timeline) : null;
if (drawn) parts.push(drawn);
if (data.findings.length > 1) parts.push({ section: findings() });
if (data.histograms && data.operations.length) parts.push(shares());
if (data.flame.rows[0][2] > 0) parts.push(flame(data.flame));
if (data.series.length) parts.push(charts(data.series, Math.max(1, data.window_ns)));
for (const one of data.tables) parts.push({ section: smallTable(one) });
if (data.operations.length) parts.push({ section: table(data.operations, data.more_operations) });
document.getElementById("page").replaceChildren(...parts.map((part) => part.section));
for (const part of parts) if (part.start) part.start();
document.getElementById("foot").append(...foot());
document.getElementById("tools").append(
  h("button", { type: "button", onclick: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") }, "Dark or light"),
  h("button", { type: "button", class: "wide", onclick: () => print() }, "Print"));
// On paper everything is open, light and drawn, whatever is scrolled away on the screen.
let restore = () => {};
addEventListener("beforeprint", () => {
  const theme = document.documentElement.dataset.theme, closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
  if (drawn) drawn.whole(true);
  setTheme("light");
  restore = () => { for (const one of closed) one.open = false; if (drawn) drawn.whole(false); setTheme(theme); };
});
addEventListener("afterprint", () => { restore(); restore = () => {}; });
globalThis.gpusense = { timeline: drawn, data };
