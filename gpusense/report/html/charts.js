// Device metrics over time: small charts over the same span of time.
function charts(list, span) {
  const started = [];
  const cells = list.map((chart) => {
    const low = Math.min(...chart.v), high = chart.top || Math.max(...chart.v), zero = low < high * 0.6 || chart.top ? 0 : low - (high - low) * 0.2;
    const value = h("span", {}, `up to ${amount(Math.max(...chart.v), chart.unit)}`);
    const x = (time, width) => (Math.max(0, Math.min(span, time)) / span) * width;
    let hover = -1;
    const picture = canvas(84, (g, width, height) => {
      const y = (one) => height - 2 - ((one - zero) / Math.max(1e-9, high - zero)) * (height - 8);
      g.clearRect(0, 0, width, height);
      g.fillStyle = colour("soft");
      for (const share of [0, 0.5, 1]) g.fillRect(0, Math.round(y(zero + (high - zero) * share)), width, 1);
      g.beginPath();
      chart.v.forEach((one, at) => {
        if (at && chart.step) g.lineTo(x(chart.t[at], width), y(chart.v[at - 1]));
        g[at ? "lineTo" : "moveTo"](x(chart.t[at], width), y(one));
      });
      g.strokeStyle = colour("k0"); g.lineWidth = 1.5; g.lineJoin = "round"; g.stroke();
      g.lineTo(x(chart.t[chart.t.length - 1], width), height); g.lineTo(x(chart.t[0], width), height); g.closePath();
      g.globalAlpha = 0.1; g.fillStyle = colour("k0"); g.fill(); g.globalAlpha = 1;
      if (hover >= 0) {
        g.fillStyle = colour("text"); g.fillRect(x(chart.t[hover], width), 0, 1, height);
        g.beginPath(); g.arc(x(chart.t[hover], width), y(chart.v[hover]), 3, 0, 7); g.fill();
      }
    }, `${chart.label} over time`);
    picture.element.addEventListener("pointermove", (event) => {
      const at = (event.offsetX / picture.width()) * span;
      hover = chart.t.reduce((best, one, i) => (Math.abs(one - at) < Math.abs(chart.t[best] - at) ? i : best), 0);
      value.textContent = `${amount(chart.v[hover], chart.unit)} at ${time(chart.t[hover])}`;
      picture.paint();
    });
    picture.element.addEventListener("pointerleave", () => { hover = -1; value.textContent = `up to ${amount(Math.max(...chart.v), chart.unit)}`; picture.paint(); });
    started.push(picture.fit);
    return h("div", { class: "chart" }, h("h3", {}, `${chart.device} · ${chart.label}`, value), picture.element);
  });
  const thinned = list.some((chart) => chart.of > chart.t.length);
  return {
    section: h("section", { id: "metrics" }, h("h2", {}, "Device over time"), h("div", { class: "grid" }, cells),
      h("p", { class: "note" }, thinned ? "Long series show the lowest and highest sample of every interval." : "")),
    start: () => started.forEach((fit) => fit()),
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
