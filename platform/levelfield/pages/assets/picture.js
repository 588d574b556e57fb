"use strict";
/* A chart of uPlot as an SVG: its axes and lines, and the marks of charts.js by the same calls that draw on the canvas. */
levelfield.picture = (() => {
  const { svg } = levelfield.saving;
  const KEY = 20; // height of a line of the legend
  let clips = 0; // a page has one name for each

  function rounded(value) {
    return Math.round(value * 100) / 100;
  }

  /* What charts.js calls of a canvas, as elements of SVG. */
  class SvgContext {
    constructor(place) {
      Object.assign(this, { place, stack: [], path: "", dash: [], strokeStyle: "", fillStyle: "", lineWidth: 1, font: "", textAlign: "left" });
    }
    beginPath() { this.path = ""; }
    moveTo(x, y) { this.path += `M${rounded(x)} ${rounded(y)}`; }
    lineTo(x, y) { this.path += `L${rounded(x)} ${rounded(y)}`; }
    closePath() { this.path += "Z"; }
    rect(x, y, width, height) { this.path += `M${rounded(x)} ${rounded(y)}h${rounded(width)}v${rounded(height)}h${rounded(-width)}Z`; }
    arc(x, y, r) { this.path += `M${rounded(x - r)} ${rounded(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`; }
    setLineDash(dash) { this.dash = dash; }
    save() { this.stack.push([this.place, this.dash, this.textAlign]); }
    restore() { [this.place, this.dash, this.textAlign] = this.stack.pop(); }
    put(tag, attributes, ...children) { this.place.append(svg(tag, attributes, ...children)); }
    stroke() { this.put("path", { d: this.path, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-dasharray": this.dash.join(" ") || "none" }); }
    fill() { this.put("path", { d: this.path, fill: this.fillStyle }); }
    fillRect(x, y, width, height) { this.put("rect", { x: rounded(x), y: rounded(y), width: rounded(width), height: rounded(height), fill: this.fillStyle }); }
    fillText(text, x, y) {
      const anchor = { right: "end", center: "middle" }[this.textAlign] || "start";
      const size = Number(/[\d.]+(?=px)/.exec(this.font)[0]);
      this.put("text", { x: rounded(x), y: rounded(y), fill: this.fillStyle, "font-size": size, "font-family": "system-ui, sans-serif", "text-anchor": anchor }, text);
    }
    clip() {
      const id = `clip${(clips += 1)}`;
      this.put("clipPath", { id }, svg("path", { d: this.path }));
      const inside = svg("g", { "clip-path": `url(#${id})` });
      this.place.append(inside);
      this.place = inside;
    }
  }

  /* Draw a straight line. */
  function stroked(context, from, to) {
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
  }

  /* Grid, numbers and names of the axes. ticks: of x and of y, [value, text] each. */
  function axes(u, spec, ticks, colour) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    Object.assign(ctx, { strokeStyle: colour("grid"), fillStyle: colour("muted"), lineWidth: ratio, font: `${12 * ratio}px`, textAlign: "center" });
    for (const [value, text] of ticks[0]) {
      const x = u.valToPos(value, "x", true);
      stroked(ctx, [x, bbox.top], [x, bottom]);
      ctx.fillText(text, x, bottom + 17 * ratio);
    }
    if (!spec.time) ctx.fillText(spec.below || levelfield.t("step"), bbox.left + bbox.width / 2, bottom + 33 * ratio);
    ctx.textAlign = "right";
    for (const [value, text] of ticks[1]) {
      const y = u.valToPos(value, "y", true);
      stroked(ctx, [bbox.left, y], [right, y]);
      ctx.fillText(text, bbox.left - 8 * ratio, y + 4 * ratio);
    }
  }

  function line(u, spec, one, colour) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    const stroke = colour(one.colour || "line");
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    Object.assign(ctx, { strokeStyle: stroke, fillStyle: stroke, lineWidth: (one.width ?? 1.5) * ratio });
    ctx.setLineDash((one.dash || []).map((part) => part * ratio));
    const points = spec.x.map((x, i) => (one.values[i] === null ? null : [u.valToPos(x, "x", true), u.valToPos(one.values[i], "y", true)]));
    ctx.beginPath();
    points.forEach((at, i) => { if (at) (i && points[i - 1] ? ctx.lineTo(...at) : ctx.moveTo(...at)); });
    ctx.stroke();
    for (const at of one.points ? points.filter(Boolean) : []) {
      ctx.beginPath();
      ctx.arc(...at, 2.5 * ratio);
      ctx.fill();
    }
    ctx.restore();
  }

  function legend(ctx, lines, top, colour) {
    const ratio = devicePixelRatio;
    let x = 8 * ratio;
    for (const one of lines) {
      Object.assign(ctx, { strokeStyle: colour(one.colour || "line"), fillStyle: colour("text"), lineWidth: 2 * ratio, font: `${12 * ratio}px`, textAlign: "left" });
      ctx.setLineDash((one.dash || []).map((part) => part * ratio));
      stroked(ctx, [x, top + 6 * ratio], [x + 22 * ratio, top + 6 * ratio]);
      ctx.fillText(one.name, x + 28 * ratio, top + 10 * ratio);
      x += (48 + 7.5 * one.name.length) * ratio;
    }
  }

  /* Return the chart as it is shown, with what is enlarged. below, above: draw under the lines and over them. */
  function picture(u, spec, ticks, colour, below, above) {
    const ratio = devicePixelRatio, lines = spec.lines.length > 1 ? spec.lines : [];
    const height = u.height + (lines.length ? KEY : 0);
    const whole = svg("svg", { width: u.width, height, viewBox: `0 0 ${u.width * ratio} ${height * ratio}` });
    const drawn = { ctx: new SvgContext(whole), bbox: u.bbox, valToPos: u.valToPos };
    below(drawn, spec);
    axes(drawn, spec, ticks, colour);
    for (const one of spec.lines) line(drawn, spec, one, colour);
    above(drawn, spec);
    legend(drawn.ctx, lines, u.height * ratio, colour);
    return whole;
  }

  return Object.assign(picture, { stroked });
})();
