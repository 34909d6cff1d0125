// The roofline of measured blocks: operations a second over operations a byte, both logarithmic, below the device's roofs.
// The namespace as the browser has it: the page names no address.
const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
function svg(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
/** 2.4e12 → "2.4 T"; as many digits as a mark of an axis needs. */
function short(value) {
  const [scale, letter] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([one]) => value >= one * 0.9999) || [1, ""];
  return `${Number((value / scale).toPrecision(3))}${letter && " " + letter}`;
}

function roofline(devices) {
  const title = "Roofline of measured blocks", BEFORE = 58, UNDER = 40, ABOVE = 28;
  const boxes = devices.map((one) => {
    const box = h("div", { class: "roofline" }), points = one.points;
    const again = walk(box, ".point", (point) => goTo(points[point.dataset.at].place, point, title));
    const say = (event) => {
      const point = event.target.closest(".point");
      if (!point) return;
      const rect = point.getBoundingClientRect(), [name, ...rest] = points[point.dataset.at].said;
      showTip({ clientX: rect.right, clientY: rect.bottom }, name, ...rest);
    };
    for (const [kind, act] of [["pointerover", say], ["focusin", say], ["pointerout", hideTip], ["focusout", hideTip]]) box.addEventListener(kind, act);
    let wide = 0;
    const draw = () => {
      const width = Math.floor(box.clientWidth);
      if (!width || width === wide) return;
      wide = width;
      const height = Math.round(Math.max(240, Math.min(400, width * 0.5)));
      const [left, right] = one.intensity.map(Math.log10), [low, high] = one.rate.map(Math.log10);
      const x = (value) => BEFORE + ((Math.log10(value) - left) / (right - left)) * (width - BEFORE - 12);
      const y = (value) => ABOVE + (1 - (Math.log10(value) - low) / (high - low)) * (height - ABOVE - UNDER);
      const parts = [], taken = [];
      const words = (text, at, top, properties) => svg("text", { x: at, y: top, ...properties }, text);
      for (let power = Math.ceil(low); power <= high; power++) {
        const at = y(10 ** power);
        parts.push(svg("path", { class: "grid-line", d: `M${BEFORE} ${at}H${width - 12}` }), words(short(10 ** power), BEFORE - 6, at + 4, { "text-anchor": "end" }));
      }
      const each = (right - left) * 46 > width - BEFORE ? 2 : 1;
      for (let power = Math.ceil(left); power <= right; power += each) {
        const at = x(10 ** power);
        parts.push(svg("path", { class: "grid-line", d: `M${at} ${ABOVE}V${height - UNDER}` }), words(short(10 ** power), at, height - UNDER + 16, { "text-anchor": "middle" }));
      }
      parts.push(words("operations a byte of device memory", (BEFORE + width) / 2, height - 4, { "text-anchor": "middle" }), words("operations a second", 2, 12, {}));
      const fits = (box) => taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
      const take = (at, top, long) => [at, top - 10, at + long, top + 3];
      for (const { intensity, per_s } of points) taken.push([x(intensity) - 6, y(per_s) - 6, x(intensity) + 6, y(per_s) + 6]);
      const roof = (rate) => Math.max(10 ** left, rate / one.bytes_per_s);
      if (one.bytes_per_s) {
        const most = Math.max(...one.roofs.map((of) => of.per_s), 10 ** low), from = Math.max(10 ** left, 10 ** low / one.bytes_per_s);
        parts.push(svg("path", { class: "roof memory", d: `M${x(from)} ${y(from * one.bytes_per_s)}L${x(roof(most))} ${y(most)}` }));
        const at = [x(from * 1.3), y(from * 1.3 * one.bytes_per_s) - 6], text = one.memory;
        const slope = (Math.atan2(y(from * 13 * one.bytes_per_s) - y(from * 1.3 * one.bytes_per_s), x(from * 13) - x(from * 1.3)) * 180) / Math.PI;
        parts.push(words(text, at[0], at[1], { class: "roof-name", transform: `rotate(${slope} ${at[0]} ${at[1]})` }));
      }
      for (const of of one.roofs) {
        const from = one.bytes_per_s ? roof(of.per_s) : 10 ** left, at = y(of.per_s), long = of.said.length * 6;
        parts.push(svg("path", { class: "roof", d: `M${x(from)} ${at}H${width - 12}` }));
        const free = [[width - 14 - long, at - 5], [width - 14 - long, at + 13], [x(from) + 8, at - 5], [x(from) + 8, at + 13]]
          .find(([a, b]) => a > BEFORE && fits(take(a, b, long)));
        if (!free) continue;
        taken.push(take(...free, long));
        parts.push(words(of.said, ...free, { class: "roof-name" }));
      }
      points.forEach((point, at) => {
        const px = x(point.intensity), py = y(point.per_s), name = cut(point.name, Math.min(190, width / 3)), long = name.length * 6.3;
        const places = [[px + 9, py + 4], [px - 9 - long, py + 4], [px - long / 2, py - 11], [px - long / 2, py + 20], [px + 6, py + 17], [px + 6, py - 9]];
        const free = places.find(([a, b]) => a > BEFORE && a + long < width - 4 && b < height - UNDER && fits(take(a, b, long)));
        const children = [svg("circle", { class: "target", cx: px, cy: py, r: 12 }), svg("circle", { cx: px, cy: py, r: 5.5, class: point.roof || "unknown" })];
        if (free) { taken.push(take(...free, long)); children.push(words(name, free[0], free[1], {})); }
        parts.push(svg("g", { class: "point", role: "button", tabindex: at ? -1 : 0, "data-at": at, "aria-label": point.said.join(", ") }, ...children));
      });
      box.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${title}, ${one.device}` }, ...parts));
      again();
    };
    new ResizeObserver(draw).observe(box);
    return { box, draw, device: one.device };
  });
  return {
    section: h("section", { id: "roofline" }, h("h2", {}, title, h("small", {}, "counted by the device in passes that were measured")),
      boxes.map(({ box, device }) => h("div", {}, devices.length > 1 ? h("h3", {}, device) : null, box)),
      h("ul", { class: "legend" }, [["k0", "compute roof nearer"], ["up", "memory roof nearer"], ["kernel", "far below both"]].map(([word, text]) => h("li", {}, swatch(word), text)))),
    start: () => boxes.forEach(({ draw }) => draw()),
  };
}
