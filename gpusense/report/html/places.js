// From a row to the timeline and back: of each row the longest time first, the others by keys and buttons.
const trail = h("aside", { id: "trail", "aria-label": "Shown on the timeline", hidden: "" });
let shown = null;

const isPlace = (place) => place !== null && place !== undefined;

/** The times of some places, [start, length, place] in order; of the chosen phase alone where it has any. */
function timesOf(places) {
  const all = places.flatMap((place) => {
    const { at } = data.places[place], pairs = [];
    for (let i = 0, start = 0; i < at.length; i += 2) pairs.push([start += at[i], at[i + 1], place]);  // from the one before
    return pairs;
  }).sort((a, b) => a[0] - b[0]);
  const spans = data.timeline.phases.filter(([name]) => name === phase.name);
  const inside = all.filter(([start]) => spans.some(([, , from, to]) => start >= from && start < to));
  return inside.length ? inside : all;
}

/** Shows the longest time of these places on the timeline. `origin`: the element to come back to, and what it is called;
 * `before`: the phase that was chosen there. */
function goTo(places, origin, title, before = phase.name) {
  const found = [places].flat().filter(isPlace);
  if (!found.length || !globalThis.showOnTimeline) return;
  const times = timesOf(found), { name, what } = data.places[found[0]];
  const longest = times.reduce((best, one, at) => (one[1] > times[best][1] ? at : best), 0);
  const of = found.reduce((sum, place) => sum + data.places[place].of, 0);
  const all = found.reduce((sum, place) => sum + data.places[place].at.length / 2, 0);
  shown = { times, all, at: longest, longest, name, what, of, title, origin, before, section: origin.closest("section"), scrolled: scrollY };
  trail.replaceChildren(
    h("span", { class: "what", role: "status" }),
    h("span", { class: "steps" },
      h("button", { type: "button", title: "The one before in time (p)", onclick: () => another(-1) }, "Previous"),
      h("button", { type: "button", title: "The next in time (n)", onclick: () => another(1) }, "Next")),
    h("button", { type: "button", title: "Back to where you came from (Esc)", onclick: goBack }, `Back to ${title}`));
  trail.hidden = false;
  another(0);
  document.querySelector("#timeline canvas[tabindex]")?.focus({ preventScroll: true });
}

function another(by) {
  const { times, name, what, of, all, longest } = shown;
  shown.at = Math.max(0, Math.min(times.length - 1, shown.at + by));
  const [start, length, place] = times[shown.at], [text, steps] = trail.children, { group, path } = data.places[place];
  const number = times.length.toLocaleString("en"), many = counted(of, what, what === "pass" ? "passes" : what + "s");
  const count = all < of ? `the ${number} longest here, ${many} in the run` : times.length < of ? `${number} here, ${many} in the run` : many;
  text.replaceChildren(h("b", {}, name || (what === "part" ? "This part of the run" : shown.title)), ` ${time(length)} at ${time(start)}`,
    shown.at === longest && times.length > 1 ? " · the longest" : "", of > 1 ? ` · ${(shown.at + 1).toLocaleString("en")} of ${count}` : "");
  steps.hidden = times.length < 2;
  steps.children[0].disabled = shown.at === 0;
  steps.children[1].disabled = shown.at === times.length - 1;
  globalThis.showOnTimeline({ start, end: start + length, name: name || undefined, group, path });
}

function goBack() {
  const { origin, before, section, scrolled } = shown;
  leave();
  if (before !== phase.name) choose(before, true);
  scrollTo({ top: scrolled, behavior: "instant" });
  if (origin.isConnected) origin.focus({ preventScroll: true });
  else section?.scrollIntoView({ block: "start" });
}
function leave() {
  shown = null;
  trail.hidden = true;
}

// Before the timeline's own keys: as long as the bar is there, they go from one time to the next and back.
document.addEventListener("keydown", (event) => {
  const act = { n: () => another(1), p: () => another(-1), Escape: goBack }[event.key];
  if (!shown || !act || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  act();
}, true);

/** One stop of the Tab key for many rows: arrows, Home and End go from row to row, `press` is what Enter and a click do. */
function walk(container, selector, press) {
  const rows = () => [...container.querySelectorAll(selector)];
  const settle = (row) => { for (const one of rows()) one.tabIndex = one === row ? 0 : -1; };
  container.addEventListener("focusin", (event) => { if (event.target.matches(selector)) settle(event.target); });
  container.addEventListener("keydown", (event) => {
    if (!event.target.matches(selector) || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = rows(), at = all.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      all[Math.max(0, Math.min(all.length - 1, to))].focus();
    } else if (event.key === "Enter") { event.preventDefault(); press(event.target); }
  });
  container.addEventListener("click", (event) => {
    const row = event.target.closest(selector);
    if (row && getSelection().isCollapsed) press(row);
  });
  return () => settle(rows()[0]);
}
