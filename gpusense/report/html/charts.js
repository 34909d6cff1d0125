// Device metrics over time: small charts of the time that the timeline shows, each with the scale of its own quantity.

/** Where the scale of a chart begins and ends, and its marks: from zero where the quantity has one. */
function scaleOf(chart) {
  const [low, high] = chart.range;
  if (chart.unit === "%") return { bottom: 0, top: Math.max(100, high), marks: [0, 50, 100] };
  const fromZero = chart.zero, spread = fromZero ? Math.max(high, 1e-9) : Math.max(high - low, 4);
  const step = ruler(spread, 330);
  const bottom = fromZero ? Math.min(0, Math.floor(low / step) * step) : Math.floor((low - (spread - (high - low)) / 2) / step) * step;
  const top = Math.max(bottom + step, Math.ceil((high - step * 1e-9) / step) * step), marks = [];
  for (let at = bottom; at <= top + step / 2; at += step) marks.push(at);
  return { bottom, top, marks };
}

/** The lowest and highest that a chart's line is from one time to another; null where nothing is known. */
function rangeOf({ t: times, v: values, begins, step }, from, to) {
  const found = values.filter((_, i) => times[i] >= from && times[i] <= to);
  for (const edge of [from, to]) {
    const next = times.findIndex((one) => one > edge), before = next - 1;
    if (before < 0 || begins.includes(next)) continue;
    const part = step ? 0 : (edge - times[before]) / (times[next] - times[before]);
    found.push(values[before] + part * (values[next] - values[before]));
  }
  return found.length ? found.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]) : null;
}

function charts(list, span) {
  const started = [], PLOT = 84, UNDER = 16, GUTTER = 68;
  let picked = null, seen = { from: 0, to: span };
  const shown = new Set();  // charts on the screen
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const picture = started.find((one) => one.element === target);
      if (isIntersecting) { shown.add(picture); picture.paint(); } else shown.delete(picture);
    }
  });
  const cells = list.map((chart) => {
    const { t: times, v: values } = chart;
    const said = (one) => (one === 0 ? `0 ${chart.unit}` : amount(one, chart.unit).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " "));
    const value = h("span");
    let hover = -1, told = {}, whole = "", bottom = 0, top = 1, marks = [];
    const renew = () => {  // what is said and drawn is of the time that is seen
      if (told.from === seen.from && told.to === seen.to) return;
      told = seen;
      const range = rangeOf(chart, seen.from, seen.to), [low, high] = range ?? chart.range;
      ({ bottom, top, marks } = scaleOf({ ...chart, range: [low, high] }));
      whole = !range ? "not sampled in this time" : low === high ? `${said(low)} throughout` : `${said(low)} to ${said(high)}`;
      picture.element.setAttribute("aria-label", `${chart.device}, ${chart.label} over time: ${whole}`);
      if (hover < 0) value.textContent = whole;
    };
    const picture = canvas(PLOT + UNDER, (g, width, height) => {
      renew();
      const wide = width - GUTTER, x = (time) => GUTTER + ((time - seen.from) / (seen.to - seen.from)) * wide;
      const y = (one) => 6 + (1 - (one - bottom) / (top - bottom)) * (PLOT - 8);
      g.clearRect(0, 0, width, height);
      g.font = SMALL;
      for (const mark of marks) {
        g.fillStyle = colour(mark === 0 ? "quiet" : "line"); g.fillRect(GUTTER, Math.round(y(mark)), wide, 1);
        g.fillStyle = colour("quiet"); g.textAlign = "right";
        g.fillText(said(mark), GUTTER - 6, Math.round(y(mark)) + 4);
      }
      g.fillStyle = colour("quiet");
      const edge = (at) => digits(at, at, (seen.to - seen.from) / 100);
      g.textAlign = "left"; g.fillText(edge(seen.from), GUTTER, height - 2);
      g.textAlign = "right"; g.fillText(edge(seen.to), width, height - 2);
      g.textAlign = "left";
      g.save();
      g.beginPath(); g.rect(GUTTER, 0, wide, PLOT); g.clip();
      if (picked) {
        g.globalAlpha = 0.25; g.fillStyle = colour("accent");
        g.fillRect(x(picked.start), 0, Math.max(2, x(picked.end) - x(picked.start)), PLOT); g.globalAlpha = 1;
      }
      g.strokeStyle = g.fillStyle = colour("k0"); g.lineWidth = 1.5; g.lineJoin = "round";
      chart.begins.forEach((first, run) => {  // between two runs nothing is known
        const end = chart.begins[run + 1] ?? times.length;
        if (end - first === 1) { g.beginPath(); g.arc(x(times[first]), y(values[first]), 1.8, 0, 7); g.fill(); return; }
        g.beginPath();
        for (let i = first; i < end; i++) {
          if (i > first && chart.step) g.lineTo(x(times[i]), y(values[i - 1]));
          g[i > first ? "lineTo" : "moveTo"](x(times[i]), y(values[i]));
        }
        g.stroke();
        if (!chart.zero) return;  // an area below a line says "so much", which needs a zero
        g.lineTo(x(times[end - 1]), y(bottom)); g.lineTo(x(times[first]), y(bottom)); g.closePath();
        g.globalAlpha = 0.1; g.fill(); g.globalAlpha = 1;
      });
      if (hover >= 0) {
        g.fillStyle = colour("text"); g.fillRect(x(times[hover]), 0, 1, PLOT);
        g.beginPath(); g.arc(x(times[hover]), y(values[hover]), 3, 0, 7); g.fill();
      }
      g.restore();
    }, "");
    renew();
    picture.element.addEventListener("pointermove", (event) => {
      const at = seen.from + ((event.offsetX - GUTTER) / (picture.width() - GUTTER)) * (seen.to - seen.from);
      hover = times.reduce((best, one, i) => (Math.abs(one - at) < Math.abs(times[best] - at) ? i : best), 0);
      value.textContent = `${said(values[hover])} at ${time(times[hover])}`;
      picture.paint();
    });
    picture.element.addEventListener("pointerleave", () => { hover = -1; value.textContent = whole; picture.paint(); });
    started.push(picture);
    watcher.observe(picture.element);
    return h("div", { class: "chart" }, h("h3", {}, h("span", {}, `${chart.device} · ${chart.label}`), value), picture.element);
  });
  document.addEventListener("gpusense:selected", ({ detail }) => { picked = detail; for (const picture of started) picture.paint(); });
  document.addEventListener("gpusense:seen", ({ detail }) => { seen = detail; for (const picture of shown) picture.paint(); });
  const thinned = list.some((chart) => chart.of > chart.t.length);
  const broken = list.some((chart) => chart.begins.length > 1);
  return {
    section: h("section", { id: "metrics" }, h("h2", {}, "Device over time", h("small", {}, "of the time that the timeline shows; of the whole device, whoever used it")), h("div", { class: "grid" }, cells),
      h("p", { class: "note" }, [broken ? "Where a line is interrupted, nothing was sampled." : "", thinned ? "Long series show the lowest and highest sample of every interval." : ""].filter(Boolean).join(" "))),
    start: () => started.forEach((picture) => picture.fit()),
  };
}

/** A histogram of durations on a logarithmic axis. */
function histogram(bins, word) {
  const most = Math.max(...bins.counts);
  const picture = canvas(34, (g, width, height) => {
    const wide = width / bins.counts.length;
    g.clearRect(0, 0, width, height);
    g.fillStyle = colour("line"); g.fillRect(0, height - 1, width, 1);
    g.fillStyle = colour(word);
    bins.counts.forEach((count, at) => {
      if (!count) return;
      const tall = Math.max(1.5, Math.sqrt(count / most) * (height - 2));
      g.fillRect(at * wide, height - 1 - tall, Math.max(1, Math.min(24, wide - 1)), tall);
    });
  }, `Durations from ${time(bins.low)} to ${time(bins.high)}`);
  return { picture, scale: h("div", { class: "scale" }, h("span", {}, time(bins.low)), bins.high > bins.low ? h("span", {}, time(bins.high)) : null) };
}
