"use strict";
/* Charts by uPlot with what it lacks: colours of the page, a name, a cursor for the arrow keys, marks by node. */
levelfield.charts = (() => {
  const { el, t, number } = levelfield;
  const drawn = new Map(); // each chart with its spec and its state
  const MARKS = 6;
  const ROWS = [0, 1, 2]; // of words at the top of a chart
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

  // The six marks as letters, for texts.
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
    const recorded = (place, labels) => (u, splits, ...more) => {
      const texts = labels(u, splits, ...more);
      state.ticks[place] = splits.map((value, i) => [value, texts[i]]);
      return texts;
    };
    const line = { stroke: () => colour("grid"), width: 1 };
    const common = { stroke: () => colour("muted"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
    const named = isTime ? {} : { ...(spec.axis === "seconds" ? {} : { incrs: WHOLE }), label: spec.below || t("step"), labelSize: 18, labelGap: 0, labelFont: common.font };
    return [
      { ...common, ...named, values: recorded(0, isTime ? timeLabels : valueLabels), space: isTime ? 70 : 50, size: 30 },
      { ...common, values: recorded(1, valueLabels), size: axisSize, space: 32 },
    ];
  }

  /* Return the range of the value axis: from zero, or the values with room around them. */
  function range(spec, state, low, high) {
    if (low === null || high === null) return [0, 1];
    for (const level of spec.levels || []) { low = Math.min(low, level.value); high = Math.max(high, level.value); }
    const room = (high - low || Math.abs(high) || 1) * 0.12;
    high += (high - low) * 0.09 * Math.min(2, (spec.steps || []).length); // for their words
    if (state.fromZero) return [Math.min(0, low), high + room];
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  }

  /* Leave room for the first and the last mark. */
  function apart(low, high) {
    const room = (high - low) * 0.015 || 1;
    return [low - room, high + room];
  }

  /* Shade parts of the x axis; with low and high, only between these values. */
  function shade(u, spec) {
    const { ctx, bbox } = u;
    ctx.save();
    for (const span of spec.spans || []) {
      const from = Math.max(bbox.left, u.valToPos(span.from, "x", true));
      const to = Math.min(bbox.left + bbox.width, u.valToPos(span.to, "x", true));
      const top = span.high === undefined ? bbox.top : u.valToPos(span.high, "y", true);
      const bottom = span.low === undefined ? bbox.top + bbox.height : u.valToPos(span.low, "y", true);
      ctx.fillStyle = colour("shade");
      if (to > from) ctx.fillRect(from, top, to - from, bottom - top);
    }
    ctx.restore();
  }

  function overlay(u, spec) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const ends = []; // of the words in each row
    for (const step of [...(spec.steps || [])].sort((a, b) => a.x - b.x)) vertical(u, step, colour(step.colour || "step"), ends);
    for (const level of spec.levels || []) horizontal(u, level);
    if (spec.marks) marks(u, spec);
    if (spec.rings) rings(u, spec);
    ctx.restore();
  }

  /* Return the width of a word in the chart: a picture cannot measure one, so both take the same guess. */
  function widthOf(word) {
    return [...word].reduce((sum, letter) => sum + (letter > "\u2e80" ? 11 : 6.2), 0) * devicePixelRatio;
  }

  /* A line with its word. Words that would meet stand below each other. */
  function vertical(u, step, stroke, ends) {
    const { ctx, bbox } = u;
    const x = Math.round(u.valToPos(step.x, "x", true));
    ctx.strokeStyle = stroke;
    ctx.fillStyle = stroke;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    levelfield.picture.stroked(ctx, [x, bbox.top], [x, bbox.top + bbox.height]);
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    const width = widthOf(step.label) + 4 * devicePixelRatio;
    const isLeft = x + width > bbox.left + bbox.width;
    const from = isLeft ? x - width : x;
    const free = ROWS.find((row) => !(ends[row] > from)) ?? ROWS.length - 1;
    ends[free] = from + width;
    ctx.textAlign = isLeft ? "right" : "left";
    ctx.fillText(step.label, x + (isLeft ? -4 : 4) * devicePixelRatio, bbox.top + (11 + 12 * free) * devicePixelRatio);
  }

  function horizontal(u, level) {
    const { ctx } = u;
    const y = u.valToPos(level.value, "y", true);
    ctx.strokeStyle = colour(level.colour || "level");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([7 * devicePixelRatio, 4 * devicePixelRatio]);
    levelfield.picture.stroked(ctx, [u.valToPos(level.from, "x", true), y], [u.valToPos(level.to, "x", true), y]);
  }

  /* A ring around each value about which the gate said something, with the word at the first of several alike. */
  function rings(u, spec) {
    const { ctx, bbox } = u;
    ctx.setLineDash([]);
    ctx.font = `bold ${11 * devicePixelRatio}px system-ui, sans-serif`;
    spec.rings.forEach((ring, i) => {
      const value = spec.lines[0].values[i];
      if (!ring || value === null) return;
      const [x, y] = [u.valToPos(spec.x[i], "x", true), u.valToPos(value, "y", true)];
      ctx.strokeStyle = ctx.fillStyle = colour(ring.colour);
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.beginPath();
      ctx.arc(x, y, 8 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.stroke();
      if (i && spec.rings[i - 1] && spec.rings[i - 1].word === ring.word) return;
      ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
      ctx.fillText(ring.word, x + (ctx.textAlign === "right" ? -12 : 12) * devicePixelRatio, y + 4 * devicePixelRatio);
    });
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
      scales: { x: { time: Boolean(spec.time), range: (u, low, high) => [low, high] }, y: { range: (u, low, high) => range(spec, state, low, high) } },
      axes: axes(spec.time, spec, state),
      series: [{}, ...lines],
      cursor: {
        y: false, drag: { x: true, y: false, setScale: false, dist: 6 }, points: { size: 9 },
        bind: { dblclick: () => () => enlarge(spec.axis, null) },
      },
      padding: [12, 12, 0, 0],
      hooks: {
        drawClear: [(u) => shade(u, spec)],
        draw: [(u) => overlay(u, spec)],
        setCursor: [(u) => read(u, spec, state)],
        setSelect: [(u) => select(u, spec)],
      },
    };
  }

  function read(u, spec, state) {
    const i = u.cursor.idx;
    state.index = i ?? null;
    state.reading.textContent = i === null || i === undefined ? state.rest : levelfield.shown(spec.describe(i));
  }

  /* The axes of which a part can be enlarged. All charts of a page over one of them show the same part, and the address
     keeps it: #...?time=2026-10-08T01:30..2026-10-20T01:30 or ?steps=11..40. */
  const AXES = {
    time: { write: (value) => levelfield.when(value).replace(" ", "T"), read: (text) => Date.parse(`${text}Z`) / 1000 },
    steps: { write: (value) => String(Math.round(value * 10) / 10), read: Number },
    seconds: { write: (value) => String(Math.round(value * 100) / 100), read: Number },
  };

  /* Return the enlarged part of an axis by the address; null where all is shown. */
  function enlarged(axis) {
    const text = axis ? levelfield.settings().get(axis) : null;
    const [from, to] = (text || "").split("..").map((end) => (end ? AXES[axis].read(end) : NaN));
    return to > from ? [from, to] : null;
  }

  function enlarge(axis, part) {
    if (!axis) return;
    levelfield.remember({ [axis]: part ? part.map(AXES[axis].write).join("..") : null });
    fitAll();
    levelfield.announce(part ? t("enlarged", { from: AXES[axis].write(part[0]), to: AXES[axis].write(part[1]) }) : t("all-shown"));
  }

  function fitAll() {
    for (const [u, { spec, state }] of drawn) if (u.root.isConnected) fit(u, spec, state);
  }

  function whole(spec) {
    return apart(...(spec.ends || [spec.x[0], spec.x[spec.x.length - 1]]));
  }

  /* Show the part of the axis that the address names. */
  function fit(u, spec, state) {
    const part = enlarged(spec.axis);
    state.all.hidden = !part;
    const [min, max] = part || whole(spec);
    if (u.scales.x.min !== min || u.scales.x.max !== max) u.setScale("x", { min, max });
  }

  /* A part that was drawn over with the pointer is enlarged. */
  function select(u, spec) {
    const { left, width } = u.select;
    if (!width) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    enlarge(spec.axis, [u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  /* Halve or double the part that is shown, around the cursor. */
  function scale(u, spec, state, factor) {
    const { min, max } = u.scales.x, [first, last] = whole(spec);
    const middle = state.index === null ? (min + max) / 2 : spec.x[state.index];
    const half = (max - min) * factor / 2;
    enlarge(spec.axis, middle - half <= first && middle + half >= last ? null : [Math.max(first, middle - half), Math.min(last, middle + half)]);
  }

  function moveTo(u, spec, index) {
    const i = Math.min(spec.x.length - 1, Math.max(0, index));
    const { min, max } = u.scales.x, half = (max - min) / 2;
    if (spec.x[i] < min || spec.x[i] > max) enlarge(spec.axis, [spec.x[i] - half, spec.x[i] + half]);
    u.setCursor({ left: u.valToPos(spec.x[i], "x"), top: u.over.clientHeight / 2 });
  }

  /* Arrow keys go from value to value, Home and End to the ends; plus and minus enlarge, 0 shows all; Enter opens the run. */
  function keys(u, spec, state, event) {
    const here = state.index ?? -1;
    const next = { ArrowRight: here + 1, ArrowLeft: here < 0 ? spec.x.length - 1 : here - 1, Home: 0, End: spec.x.length - 1 }[event.key];
    if (next !== undefined) {
      moveTo(u, spec, next);
      event.preventDefault();
    } else if (spec.axis && ["+", "=", "-"].includes(event.key)) {
      scale(u, spec, state, event.key === "-" ? 2 : 0.5);
    } else if (event.key === "0") {
      enlarge(spec.axis, null);
    } else if (event.key === "Enter" && spec.open && here >= 0) {
      location.assign(spec.open(here));
    } else if (event.key === "Escape") {
      u.setCursor({ left: -10, top: -10 });
    }
  }

  function note(spec, state) {
    return t(state.fromZero ? "axis-zero" : "axis-part");
  }

  /* Append a chart. spec: name, unit, x, time, lines, file and whose (of the files that it is saved as), axis (of AXES,
     whose part is enlarged with that of others), and optionally marks, rings, spans, steps, levels, open, describe, columns
     (more of the CSV); below, rest, ends: the name of the axis and the text without a cursor, and where x begins and ends,
     where x is not the step. */
  function add(place, spec) {
    const state = { fromZero: Boolean(spec.fromZero), index: null, reading: null, rest: "", ticks: [[], []], all: null };
    const keysHelp = `${t(spec.open ? "chart-keys-open" : "chart-keys")}${spec.axis ? ` ${t("chart-keys-enlarge")}` : ""}`;
    const plot = el("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": t("chart"),
      "aria-label": `${spec.name}, ${spec.unit}. ${t("chart-values", { count: spec.x.length })} ${keysHelp}` });
    state.rest = spec.time
      ? t("chart-rest-time", { from: levelfield.when(spec.x[0], 10), to: levelfield.when(spec.x[spec.x.length - 1], 10) })
      : spec.rest || t("chart-rest-steps", { count: spec.x.length });
    state.reading = el("p", { class: "reading", "aria-live": "polite" }, state.rest);
    const text = el("span", {}, note(spec, state));
    const toggle = el("button", { type: "button", class: "zero", "aria-pressed": String(state.fromZero) }, t("from-zero"));
    const caption = el("figcaption", {}, el("strong", {}, spec.name), " ", el("span", { class: "unit" }, spec.unit), legend(spec));
    state.all = el("button", { type: "button", class: "all", hidden: true }, t("show-all"));
    state.all.addEventListener("click", () => { enlarge(spec.axis, null); plot.focus(); });
    const below = el("p", { class: "axis" }, text, " ", toggle, " ", state.all);
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
    drawn.set(u, { spec, state, plot });
    fit(u, spec, state);
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
    for (const u of drawn.keys()) {
      if (u.root.isConnected) u.redraw(false, true);
      else drawn.delete(u);
    }
  }

  /* Paper gets pictures in place of canvases: sharp at any size, and as wide as its columns. */
  function toPaper() {
    for (const [u, { spec, state, plot }] of drawn) {
      const width = plot.parentNode.clientWidth; // of the figure; 0 in a folded group
      if (!u.root.isConnected || !width) continue;
      u.batch(() => u.setSize({ width, height: u.height }));
      plot.after(el("div", { class: "for-paper" }, levelfield.picture(u, spec, state.ticks, colour, shade, overlay)));
    }
  }

  function toScreen() {
    document.querySelectorAll(".chart > .for-paper").forEach((picture) => picture.remove());
    for (const [u, { plot }] of drawn) if (plot.clientWidth) u.setSize({ width: plot.clientWidth, height: u.height });
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("hashchange", fitAll);
  levelfield.printing(toPaper, toScreen);

  return { add, drawn, SIGNS, MARKS };
})();
