"use strict";
/* Charts by uPlot with what it lacks: colours of the page, a name, a cursor for the arrow keys, marks by node. */
levelfield.charts = (() => {
  const { el, t, number } = levelfield;
  const drawn = new Set();
  const MARKS = 6;
  const WHOLE = [1, 2, 5].flatMap((digit) => [digit, 10 * digit, 100 * digit, 1000 * digit, 1e4 * digit, 1e5 * digit]).sort((a, b) => a - b);

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  /* Draw one of six marks: circle, square, triangle, diamond, cross, triangle that points down. */
  function mark(context, kind, x, y, size) {
    const s = size;
    context.beginPath();
    if (kind === 0) context.arc(x, y, s, 0, 2 * Math.PI);
    else if (kind === 1) context.rect(x - s, y - s, 2 * s, 2 * s);
    else if (kind === 2) polygon(context, [[x, y - 1.2 * s], [x + 1.1 * s, y + s], [x - 1.1 * s, y + s]]);
    else if (kind === 3) polygon(context, [[x, y - 1.4 * s], [x + 1.4 * s, y], [x, y + 1.4 * s], [x - 1.4 * s, y]]);
    else if (kind === 4) {
      context.moveTo(x - s, y - s); context.lineTo(x + s, y + s);
      context.moveTo(x + s, y - s); context.lineTo(x - s, y + s);
    } else polygon(context, [[x, y + 1.2 * s], [x + 1.1 * s, y - s], [x - 1.1 * s, y - s]]);
  }

  function polygon(context, corners) {
    corners.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
  }

  /* Return the name of a mark's place in the legend: a small canvas would have no text, so it is drawn as a sign. */
  const SIGNS = ["●", "■", "▲", "◆", "✕", "▼"];

  /* Return the decimals that write every multiple of the step exactly: one for 2.5. */
  function digitsOf(step) {
    let digits = 0;
    while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
    return digits;
  }

  function timeLabels(u, splits, axis, space, step) {
    const length = step >= 86400 * 28 ? [0, 7] : step >= 86400 ? [5, 10] : [5, 16];
    return splits.map((s) => levelfield.when(s).slice(...length));
  }

  function valueLabels(u, splits, axis, space, step) {
    return splits.map((s) => number(s, digitsOf(step)));
  }

  function axisSize(u, values) {
    return values ? 18 + 7 * Math.max(...values.map((value) => value.length)) : 50;
  }

  /* Return the axes. What they write is kept for the picture of the chart. */
  function axes(isTime, spec, state) {
    const kept = (place, labels) => (u, splits, ...more) => {
      const texts = labels(u, splits, ...more);
      state.ticks[place] = splits.map((value, i) => [value, texts[i]]);
      return texts;
    };
    const line = { stroke: () => colour("grid"), width: 1 };
    const common = { stroke: () => colour("muted"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
    const named = isTime ? {} : { ...(spec.ends ? {} : { incrs: WHOLE }), label: spec.below || t("step"), labelSize: 18, labelGap: 0, labelFont: common.font };
    return [
      { ...common, ...named, values: kept(0, isTime ? timeLabels : valueLabels), space: isTime ? 70 : 50, size: 30 },
      { ...common, values: kept(1, valueLabels), size: axisSize, space: 32 },
    ];
  }

  /* Return the range of the value axis: from zero, or the values with room around them. */
  function range(spec, state, low, high) {
    if (low === null || high === null) return [0, 1];
    for (const level of spec.levels || []) { low = Math.min(low, level.value); high = Math.max(high, level.value); }
    const room = (high - low || Math.abs(high) || 1) * 0.12;
    if (state.fromZero) return [Math.min(0, low), high + room];
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  }

  /* Leave room for the first and the last mark. */
  function apart(low, high) {
    const room = (high - low) * 0.015 || 1;
    return [low - room, high + room];
  }

  function shade(u, spec) {
    const { ctx, bbox } = u;
    ctx.save();
    for (const span of spec.spans || []) {
      const from = Math.max(bbox.left, u.valToPos(span.from, "x", true));
      const to = Math.min(bbox.left + bbox.width, u.valToPos(span.to, "x", true));
      ctx.fillStyle = colour("shade");
      if (to > from) ctx.fillRect(from, bbox.top, to - from, bbox.height);
    }
    ctx.restore();
  }

  function overlay(u, spec) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const step of spec.steps || []) vertical(u, step, colour(step.colour || "step"));
    for (const level of spec.levels || []) horizontal(u, level);
    if (spec.marks) marks(u, spec);
    ctx.restore();
  }

  function vertical(u, step, stroke) {
    const { ctx, bbox } = u;
    const x = Math.round(u.valToPos(step.x, "x", true));
    ctx.strokeStyle = stroke;
    ctx.fillStyle = stroke;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    const isLeft = x > bbox.left + bbox.width - 24 * devicePixelRatio;
    ctx.textAlign = isLeft ? "right" : "left";
    ctx.fillText(step.label, x + (isLeft ? -4 : 4) * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
  }

  function horizontal(u, level) {
    const { ctx } = u;
    const y = u.valToPos(level.value, "y", true);
    ctx.strokeStyle = colour("level");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([7 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(u.valToPos(level.from, "x", true), y);
    ctx.lineTo(u.valToPos(level.to, "x", true), y);
    ctx.stroke();
  }

  /* Full marks are nightly runs; hollow ones are other runs. What may not stand in a comparison is red and hollow. */
  function marks(u, spec) {
    const { ctx } = u;
    ctx.setLineDash([]);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    const size = (spec.x.length > 150 ? 2.6 : 3.6) * devicePixelRatio;
    const [good, bad] = [colour("line"), colour("bad")];
    spec.x.forEach((x, i) => {
      const value = spec.lines[0].values[i];
      if (value === null) return;
      ctx.strokeStyle = ctx.fillStyle = spec.marks.counts[i] ? good : bad;
      mark(ctx, spec.marks.kinds[i] % MARKS, u.valToPos(x, "x", true), u.valToPos(value, "y", true), size);
      if (spec.marks.full[i] && spec.marks.counts[i]) ctx.fill();
      ctx.stroke();
    });
  }

  function options(spec, state, width) {
    const lines = spec.lines.map((line) => ({
      label: line.name,
      stroke: () => colour(line.colour || "line"),
      width: line.width ?? 1.5,
      dash: line.dash,
      points: { show: Boolean(line.points), size: 5, fill: () => colour(line.colour || "line") },
    }));
    return {
      width,
      height: spec.height || 210,
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { x: { time: Boolean(spec.time), range: (u, low, high) => (spec.ends && low === spec.x[0] && high === spec.x[spec.x.length - 1] ? apart(...spec.ends) : apart(low, high)) }, y: { range: (u, low, high) => range(spec, state, low, high) } },
      axes: axes(spec.time, spec, state),
      series: [{}, ...lines],
      cursor: { y: false, drag: { x: true, y: false, setScale: true }, points: { size: 9 } },
      padding: [12, 12, 0, 0],
      hooks: {
        drawClear: [(u) => shade(u, spec)],
        draw: [(u) => overlay(u, spec)],
        setCursor: [(u) => read(u, spec, state)],
      },
    };
  }

  function read(u, spec, state) {
    const i = u.cursor.idx;
    state.index = i ?? null;
    state.reading.textContent = i === null || i === undefined ? state.rest : levelfield.shown(spec.describe(i));
  }

  function moveTo(u, spec, index) {
    const i = Math.min(spec.x.length - 1, Math.max(0, index));
    u.setCursor({ left: u.valToPos(spec.x[i], "x"), top: u.over.clientHeight / 2 });
  }

  /* Arrow keys go from value to value, Home and End to the ends; Enter opens the run. */
  function keys(u, spec, state, event) {
    const here = state.index ?? -1;
    const next = { ArrowRight: here + 1, ArrowLeft: here < 0 ? spec.x.length - 1 : here - 1, Home: 0, End: spec.x.length - 1 }[event.key];
    if (next !== undefined) {
      moveTo(u, spec, next);
      event.preventDefault();
    } else if (event.key === "Enter" && spec.open && here >= 0) {
      location.assign(spec.open(here));
    } else if (event.key === "Escape") {
      u.setCursor({ left: -10, top: -10 });
    }
  }

  function note(spec, state) {
    return t(state.fromZero ? "axis-zero" : "axis-part");
  }

  /* Append a chart. spec: name, unit, x, time, lines, file and whose (of the files that it is saved as), and optionally
     marks, spans, steps, levels, open, describe, columns (more of the CSV); below, rest, ends: the name of the axis and
     the text without a cursor, and where x begins and ends, where x is not the step. */
  function add(place, spec) {
    const state = { fromZero: Boolean(spec.fromZero), index: null, reading: null, rest: "", ticks: [[], []] };
    const keysHelp = spec.open ? t("chart-keys-open") : t("chart-keys");
    const plot = el("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": t("chart"),
      "aria-label": `${spec.name}, ${spec.unit}. ${t("chart-values", { count: spec.x.length })} ${keysHelp}` });
    state.rest = spec.time
      ? t("chart-rest-time", { from: levelfield.when(spec.x[0], 10), to: levelfield.when(spec.x[spec.x.length - 1], 10) })
      : spec.rest || t("chart-rest-steps", { count: spec.x.length });
    state.reading = el("p", { class: "reading", "aria-live": "polite" }, state.rest);
    const text = el("span", {}, note(spec, state));
    const toggle = el("button", { type: "button", class: "zero", "aria-pressed": String(state.fromZero) }, t("from-zero"));
    const caption = el("figcaption", {}, el("strong", {}, spec.name), " ", el("span", { class: "unit" }, spec.unit), legend(spec));
    const below = el("p", { class: "axis" }, text, " ", toggle);
    place.append(el("figure", { class: "chart" }, caption, plot, state.reading, below));
    const u = new uPlot(options(spec, state, plot.clientWidth || 600), [spec.x, ...spec.lines.map((line) => line.values)], plot);
    toggle.addEventListener("click", () => {
      state.fromZero = !state.fromZero;
      toggle.setAttribute("aria-pressed", String(state.fromZero));
      text.textContent = note(spec, state);
      u.redraw(false, true);
      u.setScale("x", { min: u.scales.x.min, max: u.scales.x.max });
    });
    below.append(" ", levelfield.saving.buttons({
      file: spec.file, name: `${spec.name}, ${spec.unit}`, whose: spec.whose, rows: () => rows(spec),
      picture: () => levelfield.picture(u, spec, state.ticks, colour, shade, overlay),
    }));
    plot.addEventListener("keydown", (event) => keys(u, spec, state, event));
    if (spec.open) {
      u.over.addEventListener("click", () => { if (state.index !== null) location.assign(spec.open(state.index)); });
      u.over.classList.add("opens");
    }
    new ResizeObserver(() => { if (plot.clientWidth && plot.clientWidth !== u.width) u.setSize({ width: plot.clientWidth, height: u.height }); }).observe(plot);
    drawn.add(u);
    return u;
  }

  /* Return the names and the values of a chart: x, its lines, and what else is known of each value. */
  function rows(spec) {
    const x = spec.time ? t("when") : spec.below || t("step");
    const more = spec.columns || [];
    const names = [x, ...spec.lines.map((line) => `${line.name} (${spec.unit})`), ...more.map((column) => column.name)];
    return [names, ...spec.x.map((at, i) => [spec.time ? levelfield.when(at) : at, ...spec.lines.map((line) => line.values[i]), ...more.map((column) => column.values[i])])];
  }

  /* The lines of a chart by their look, where it has more than one. */
  function legend(spec) {
    const lines = spec.lines.length > 1 ? spec.lines : [];
    return lines.map((line) => el("span", { class: `key k-${line.colour || "line"}${line.dash ? " dashed" : ""}` }, line.name));
  }

  function redraw() {
    for (const u of drawn) {
      if (u.root.isConnected) u.redraw(false, true);
      else drawn.delete(u);
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is white, whatever the screen was.
  addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); redraw(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); redraw(); });

  return { add, drawn, SIGNS, MARKS };
})();
