// Helpers every part of the page uses: elements without markup, colours, numbers, marks on a ruler.
const data = JSON.parse(document.getElementById("data").textContent);
const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;

/** An element; children that are not elements become text, never markup. */
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const counted = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many || one + "s"}`;
const three = (value) =>
  value >= 100 ? Math.round(value).toLocaleString("en") : value >= 10 ? value.toFixed(1) : value.toFixed(2);
function time(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns < 0) return "-" + time(-ns);
  if (ns >= 999.5e6) return three(ns / 1e9) + " s";
  if (ns >= 999.5e3) return three(ns / 1e6) + " ms";
  if (ns >= 999.5) return three(ns / 1e3) + " µs";
  return Math.round(ns) + " ns";
}
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const [scale, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (bytes >= scale * 0.9995) return three(bytes / scale) + " " + unit;
  return Math.round(bytes) + " B";
}
const percent = (share) => {
  const value = share * 100;
  return (value >= 9.95 || value === 0 ? value.toFixed(0) : value >= 0.05 ? value.toFixed(1) : "<0.1") + " %";
};
const amount = (value, unit) =>
  unit === "B" ? size(value) : unit === "B/s" ? size(value) + "/s" : three(value) + " " + unit;

/** Prose whose numbers stay with their units at the end of a line. */
const prose = (text) => text.replace(/(\d) (?=%|([nµm]?s|[kMGT]?B(\/s)?|MHz|W|°C)(?!\w))/g, "$1\u00a0");

// Colours come from the style sheet, read once a theme.
let palette = {};
const drawers = [];
function colour(word) {
  if (!(word in palette)) palette[word] = getComputedStyle(document.documentElement).getPropertyValue("--" + word).trim();
  return palette[word];
}
/** Which ink is read best on a colour of the palette: the one whose brightness is further from it. */
function inkOn(word) {
  const bright = (of) => [1, 3, 5].reduce((sum, at, i) => sum + [0.2126, 0.7152, 0.0722][i] * (parseInt(of.slice(at, at + 2), 16) / 255) ** 2.2, 0.05);
  const apart = (ink) => Math.abs(Math.log(bright(colour(ink)) / bright(colour(word))));
  return colour(apart("ink") > apart("ink-dark") ? "ink" : "ink-dark");
}
function swatch(word) {
  return h("span", { class: "swatch", style: { background: `var(--${word})` } });
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  palette = {};
  for (const draw of drawers) draw();
}

/** A canvas as sharp as the screen; `draw(context, width, height)` runs now, on resize and on a change of theme. */
function canvas(height, draw, label) {
  const element = h("canvas", { role: "img", "aria-label": label });
  const context = element.getContext("2d");
  let width = 0, tall = height;
  const paint = () => {
    if (!width) return;
    draw(context, width, tall);
  };
  const fit = () => {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    width = Math.max(1, Math.floor(element.clientWidth));
    element.width = Math.round(width * ratio);
    element.height = Math.round(tall * ratio);
    element.style.height = tall + "px";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint();
  };
  new ResizeObserver(() => {
    if (Math.floor(element.clientWidth) !== width) fit();
  }).observe(element);
  drawers.push(paint);
  return { element, paint, fit, resize: (to) => { tall = to; fit(); }, width: () => width, height: () => tall };
}

const tip = h("div", { id: "tip", role: "status", hidden: "" });
document.body.append(tip);
function showTip(event, ...lines) {
  tip.replaceChildren(...lines.map((line, at) => (at ? h("div", {}, line) : h("b", {}, line))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, Math.min(innerWidth - box.width - 6, event.clientX + 14)) + "px";
  tip.style.top = (event.clientY + box.height + 24 > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16) + "px";
}
const hideTip = () => { tip.hidden = true; };

const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const SMALL = FONT.replace("12px", "11px");

/** Text cut to a width in pixels, by an average character. */
function cut(text, width) {
  const fits = Math.floor(width / 6.3);
  return text.length <= fits ? text : fits < 3 ? "" : text.slice(0, fits - 1) + "…";
}

/** How far marks of a ruler over `span` are apart: 1, 2 or 5 times a power of ten. */
function ruler(span, width) {
  const rough = (span / Math.max(1, width)) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((step) => step * power >= rough) || 10);
}
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
/** A time in the unit of `of`, with as many digits as tell it from others that are `apart`, in nanoseconds. */
function digits(ns, of, apart) {
  const [scale, unit] = UNITS.find(([one]) => Math.abs(of) >= one) || UNITS[3];
  return ns === 0 ? "0" : (ns / scale).toFixed(Math.max(0, Math.ceil(Math.log10(scale / Math.max(1, apart)) - 1e-9))) + " " + unit;
}
/** A moment that something short begins at, to three digits of how long that is. */
const exact = (ns, length) => digits(ns, ns, 10 ** Math.floor(Math.log10(Math.max(1, length) / 100)));
/** Marks of a ruler, [nanoseconds, words]: no two of them read the same. Where many digits are equal, these are `base`. */
function ticks(from, to, width) {
  const step = Math.max(1, ruler(to - from, width)), marks = [];
  const first = Math.ceil(from / step), last = Math.floor(to / step);
  for (let at = first; at <= last; at++) marks.push(at * step);
  if (to < 1e6 * step && digits(last * step, to, step).length <= 9) return { base: "", marks: marks.map((at) => [at, digits(at, to, step)]) };
  const round = 10 ** Math.ceil(Math.log10(to - from)), base = Math.floor(from / round) * round;
  return { base: digits(base, base, round), marks: marks.map((at) => [at, "+" + digits(at - base, to - base, step)]) };
}
