// Puts the page together, in the order in which it is read.
// What a phase is made of: the words are the data's, the colours the style sheet's.
const colourOf = (part) => ({ compute: "k0", collective: "collective", copy: "up" })[part] || "gap-" + part;
let phase = data.phases.find((one) => one.judged);

function tiles() {
  document.getElementById("tiles").replaceChildren(...phase.tiles.map((tile) =>
    h("div", { class: "tile" }, h("dt", {}, tile.label), h("dd", {}, tile.value), tile.note ? h("dd", { class: "note" }, prose(tile.note)) : null)));
}

function breakdown() {
  const section = h("section", { id: "breakdown" });
  const fill = () => section.replaceChildren(
    h("h2", {}, "Where the time went", h("small", {}, `100 % is the time of the ${phase.of}` + (phase.breakdown.length === 1 ? ` of ${phase.breakdown[0].device}` : ""))),
    ...phase.breakdown.map(({ device, window: all, steps, parts, families, at_once }) => h("div", {},
      phase.breakdown.length > 1 ? h("h3", {}, device) : null,
      h("div", { class: "bar", role: "img", "aria-label": parts.map(([part, ns]) => `${data.words[part]} ${percent(ns / all)}`).join(", ") },
        parts.map(([part, ns]) => h("i", { style: { width: (ns / all) * 100 + "%", background: `var(--${colourOf(part)})` }, title: `${data.words[part]}: ${time(ns)}` }))),
      h("ul", { class: "legend" }, parts.map(([part, ns]) => h("li", {}, swatch(colourOf(part)), data.words[part], h("b", {}, percent(ns / all)),
        h("span", { class: "quiet" }, steps ? `${time(ns / steps)} each` : time(ns))))),
      families.length ? h("p", { class: "quiet" }, prose("By family: " + families.map(([name, ns]) => `${name} ${percent(ns / all)}`).join(" · ") + (at_once ? `. ${at_once}` : ""))) : null)),
    ...(phase.shared ? [h("p", { class: "quiet" }, `${phase.shared[0].toUpperCase()}${phase.shared.slice(1)}.`)] : []));
  return { section, fill };
}

function shares() {
  const section = h("section", { id: "shares" });
  let heaviest = [];
  const again = walk(section, ".share button", (button) => goTo(heaviest[button.dataset.at].place, button, "Heaviest operations"));
  function fill() {
    heaviest = phase.operations.slice(0, 10);
    const most = heaviest.length ? heaviest[0].share || 1 : 1, started = [];
    const several = new Set(heaviest.map((row) => row.card)).size > 1;
    const rows = heaviest.map((row, at) => {
      const word = row.colour, bins = phase.histograms[at];
      const drawn = bins ? histogram(bins, word) : null;
      if (drawn) started.push(drawn.picture.fit);
      return h("div", { class: "share" },
        h("div", {}, h("div", { class: "name" }, swatch(word), h("button", { type: "button", class: "plain", "data-at": at, title: (row.full_name || row.name).slice(0, 1000) }, row.name),
          several ? h("span", { class: "quiet" }, row.card) : null),
          h("div", { class: "track" }, h("i", { style: { width: (row.share / most) * 100 + "%", background: `var(--${word})` } }))),
        h("div", { class: "numbers" }, h("b", {}, percent(row.share)), ` ${time(row.total_ns)}`, h("small", {}, `${row.count.toLocaleString("en")} × ${time(row.avg_ns)}`)),
        h("div", { class: "chart-cell" }, drawn ? [drawn.picture.element, drawn.scale] : h("span", { class: "quiet" }, "summed only")));
    });
    section.replaceChildren(h("h2", {}, "Heaviest operations", h("small", { class: "wide" }, `share of the ${phase.of}; how long single calls took`)),
      ...(phase.at_once ? [h("p", { class: "quiet" }, `Shares: ${phase.at_once}.`)] : []),
      ...(rows.length ? rows : [h("p", { class: "quiet" }, "Nothing ran on a device in this phase.")]));
    again();
    if (section.isConnected) started.forEach((fit) => fit());
    else begun = started;
  }
  let begun = [];
  return { section, fill, start: () => begun.forEach((fit) => fit()) };
}

/** A button that leads to what a finding is about. */
function showFinding(one, title) {
  if (!isPlace(one.place) || !drawn) return null;
  const button = h("button", { type: "button", onclick: () => { const before = phase.name; if (one.of) choose(one.phase, true); goTo(one.place, button, title, before); } }, "Show on the timeline");
  return button;
}

function findings() {
  const title = "All findings";
  return h("section", { id: "findings" }, h("h2", {}, title, h("small", {}, "what could save most first")), data.findings.map((one) =>
    h("div", { class: "finding" }, h("details", { class: "finding", ontoggle: (event) => { if (event.target.open && one.of && !printing) choose(one.phase, true); } },
      h("summary", {}, h("span", {}, prose(one.title)), h("span", {}, one.of ? h("span", { class: "chip" }, one.of) : null, one.saving ? " up to " + one.saving : "")),
      h("ul", {}, one.evidence.map((line) => h("li", {}, prose(line)))),
      one.fix ? h("p", { class: "fix" }, h("b", {}, "Try"), prose(one.fix)) : null, h("p", { class: "quiet" }, `Confidence: ${one.confidence}`)),
      showFinding(one, title))));
}

function foot() {
  const seen = data.seen;
  const line = (label, pairs) => (pairs.length ? h("p", {}, `${label}: ` + pairs.map(([name, value]) => `${name} ${typeof value === "number" ? value.toLocaleString("en") : value}`).join(" · ")) : null);
  const records = h("p", {}, [`Records: ${seen.records}`, ...seen.counters.map(([name, value]) => `${name} ${value.toLocaleString("en")}`)].join(" · "));
  return [records, line("Sources", seen.backends), line("gpusense itself used", seen.overhead),
    seen.threshold ? h("p", {}, `Reports in text and JSON list calls of ${seen.threshold} and more one by one.`) : null,
    seen.unseen.length ? h("p", {}, "Capture was off: " + seen.unseen.map(([at, length, why]) => `from ${time(at)} (${length}), ${why}`).join(" · ") + (seen.more_unseen ? ` · and ${seen.more_unseen.toLocaleString("en")} more` : "")) : null,
    h("p", {}, `gpusense ${seen.version}. One file, no request: everything on this page is in it.`)].filter(Boolean);
}

/** The phases as buttons; which is chosen is what tiles, bar, operations and timeline show. */
function choose(name, keep) {
  phase = data.phases.find((one) => one.name === name) || phase;
  for (const button of nav.children) button.setAttribute("aria-pressed", String(button.dataset.phase === phase.name));
  tiles();
  for (const part of parts) if (part.fill) part.fill();
  if (drawn) drawn.phase(phase.name);
  if (!keep) hideTip();
}

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const parts = [], nav = document.getElementById("phases");
let printing = false;
const ran = data.phases.some((one) => one.breakdown);
if (ran) parts.push(breakdown());
const drawn = data.timeline.rows.length ? timeline(data.timeline) : null;
if (drawn) parts.push(drawn);
if (data.matrix) parts.push(matrix(data.matrix));
if (data.findings.length > 1) parts.push({ section: findings() });
if (ran) parts.push(shares());
for (const one of data.tables) if (one.title === "Blocks") parts.push(plainTable(one));
if (data.flame.rows[0][2] > 0) parts.push(flame(data.flame));
if (data.roofline.length) parts.push(roofline(data.roofline));
if (data.series.length) parts.push(charts(data.series, Math.max(1, data.window_ns)));
for (const one of data.tables) if (one.title !== "Blocks") parts.push(plainTable(one));
if (ran) parts.push(operations("operations", "Operations on the device", () => phase.of, () => phase.operations, () => phase.more_operations));
if (data.host.length) parts.push(operations("host", "Waits and other work of the host", () => "run", () => data.host, () => data.more_host));
for (const part of parts) if (part.fill) part.fill();
document.getElementById("page").replaceChildren(...parts.map((part) => part.section));
for (const part of parts) if (part.start) part.start();
if (data.phases.length > 1)
  nav.append(...[...data.phases].sort((a, b) => (b.name === "whole") - (a.name === "whole")).map((one) =>
    h("button", { type: "button", "data-phase": one.name, "aria-pressed": String(one === phase), title: one.note, onclick: () => choose(one.name) }, one.label, h("span", { class: "quiet wide" }, ` ${one.note}`))));
if (drawn && data.phases.length > 1) drawn.phase(phase.name);
document.getElementById("foot").append(...foot());
document.getElementById("verdict").append(...[showFinding(data.findings[0], "Verdict")].filter(Boolean));
(drawn ? drawn.section.querySelector(".details") : document.body.lastChild).before(trail);  // on a narrow screen it stays there
document.getElementById("tools").append(
  h("button", { type: "button", onclick: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") }, "Dark or light"),
  h("button", { type: "button", class: "wide", onclick: () => print() }, "Print"));
// On paper everything is open, light and drawn, whatever is scrolled away on the screen.
let restore = () => {};
addEventListener("beforeprint", () => {
  const theme = document.documentElement.dataset.theme, closed = [...document.querySelectorAll("details:not([open])")];
  printing = true;
  for (const one of closed) one.open = true;
  if (drawn) drawn.whole(true);
  setTheme("light");
  restore = () => { for (const one of closed) one.open = false; if (drawn) drawn.whole(false); setTheme(theme); };
});
addEventListener("afterprint", () => { restore(); restore = () => {}; setTimeout(() => { printing = false; }); });
globalThis.gpusense = { timeline: drawn, data, choose };
