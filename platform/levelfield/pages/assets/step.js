"use strict";
/* A step in parts: where its time goes, and what each rank does in one step.
   Every picture is strips: rows of a table, each with a name, a bar of pieces {from, to, kind, half}, and a value. */
levelfield.step = (() => {
  const { el, t, number, foreign } = levelfield;
  const { svg } = levelfield.saving;
  const LARGE = 0.05; // of the step: an unexplained part of this size is shown first
  const MAX_PLACES = 10, LONG = 1000; // LONG: of a strip, in its own units
  const SIZES = [150, 560, 110]; // of a saved picture: names, strips, values

  function partName(part) {
    return t(`part.${part}`);
  }

  function percent(share, digits = 1) {
    return Number.isFinite(share) ? `${number(share * 100, digits)} %` : "–";
  }

  /* Return half of the 95 % interval; nothing from one step. */
  function half(time) {
    return Number.isFinite(time.high) ? `±${number(time.high - time.mean, 2)}` : "";
  }

  /* Return the name of a style of style.css. */
  function look(kind) {
    return `s-${kind.replace(/[^a-z]+/g, "-")}`;
  }

  /* Return one strip. end: the value at its right; 0 is at its left. A piece that is half is drawn half as high. */
  function strip(pieces, end, label) {
    const place = (value) => (value / (end || 1)) * LONG;
    const rounded = (value) => Math.round(value * 100) / 100;
    return svg("svg", { viewBox: `0 0 ${LONG} 10`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...pieces.map((piece) =>
      svg("rect", { class: look(piece.kind), x: rounded(place(piece.from)), width: rounded(place(piece.to) - place(piece.from)), y: piece.half ? 5 : 0, height: piece.half ? 5 : 10 },
        svg("title", {}, piece.title || ""))));
  }

  /* Append a picture of strips. rows: name, pieces, label, value. keys: of colours, {kind, text}. csv: names first. */
  function strips(place, { name, file, whose, rows, end, keys, csv }) {
    const table = el("table", { class: "strips" }, el("caption", { class: "away" }, name), el("tbody", {}, rows.map((row) =>
      el("tr", {}, el("th", { scope: "row" }, row.name), el("td", {}, strip(row.pieces, end, row.label)), row.value === undefined ? null : el("td", { class: "value" }, row.value)))));
    const swatch = ({ kind }) => svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: look(kind), width: 10, height: 10 }));
    const legend = el("ul", { class: "keys" }, keys.map((key) => el("li", {}, swatch(key), key.text)));
    place.append(el("figure", {}, el("figcaption", {}, el("strong", {}, name)), table, legend, el("p", { class: "axis" }, levelfield.saving.buttons({
      file, name, whose, rows: () => csv, picture: () => levelfield.saving.barsOf(table, SIZES, legend),
    }))));
  }

  /* Show a run's step, where it was recorded. */
  function show(place, file, record) {
    const step = record.traces?.step;
    if (!step) return;
    const part = el("section", { id: "step" }, el("h2", {}, t("step-parts")));
    place.append(part);
    const { ratio, low, high } = step.overhead;
    const interval = Number.isFinite(low) && Number.isFinite(high) ? t("overhead-interval", { low: levelfield.signedPercent(low, 1), high: levelfield.signedPercent(high, 1) }) : "";
    part.append(el("p", { class: "note" }, t(step.recorded_steps === 1 ? "one-step-recorded" : "step-recorded", { ms: number(step.step.mean, 2), count: step.recorded_steps, ratio: levelfield.signedPercent(ratio, 1), interval })));
    for (const entry of step.warnings || []) part.append(el("p", { class: "caution" }, foreign(entry)));
    for (const entry of step.late || []) part.append(el("p", { class: "caution" }, lateness(entry)));
    for (const entry of step.missing || []) part.append(el("p", { class: "note" }, `${t("missing-record")}: `, foreign(entry)));
    const common = { whose: `${file.label}, ${record.run}`, keys: step.parts.map((entry) => ({ kind: entry.part, text: `${partName(entry.part)} ${percent(entry.time.mean / step.step.mean)}` })) };
    bar(part, step, { ...common, file: `${record.run}_step-parts` });
    table(part, step);
    if (step.alone) alone(part, step.alone);
    if (step.timeline) timeline(part, step, { ...common, file: `${record.run}_step-by-rank` });
    if ((step.ranks || []).length > 1) ranks(part, step);
    lists(part, step);
  }

  function lateness(late) {
    const values = { ms: number(late.waited_ms, 1), rank: late.rank };
    if (!Number.isFinite(late.longer_ms)) return t("late-rank", values);
    return t("late-rank-where", { ...values, part: partName(late.part), where: late.where, longer: number(late.longer_ms, 1) });
  }

  /* The step as one bar, and below it the messages that ran beside other work. */
  function bar(place, step, common) {
    const pieces = [], beside = [];
    let at = 0, besideAt = 0;
    for (const entry of step.parts) {
      const again = entry.recompute_ms || 0, over = entry.overlapped_ms || 0, first = entry.time.mean - again, part = partName(entry.part);
      pieces.push({ kind: entry.part, from: at, to: at + first, title: `${part} ${number(first, 2)} ms` });
      if (again) pieces.push({ kind: entry.part, from: at + first, to: at + entry.time.mean, half: true, title: `${part}, ${t("recomputed")} ${number(again, 2)} ms` });
      at += entry.time.mean;
      if (over) beside.push({ kind: entry.part, from: besideAt, to: (besideAt += over), title: `${part} ${number(over, 2)} ms` });
    }
    const label = (from) => from.map((piece) => piece.title).join(", ");
    const rows = [{ name: t("exposed"), pieces, label: label(pieces), value: `${number(at, 2)} ms` }];
    if (beside.length) rows.push({ name: t("overlapped"), pieces: beside, label: label(beside), value: `${number(besideAt, 2)} ms` });
    const byPart = new Map((step.alone ? step.alone.parts : []).map((entry) => [entry.part, entry]));
    const apart = (entry) => ["in_place_ms", "alone_ms", "allowed_ms"].map((name) => (byPart.get(entry.part) || {})[name] ?? null);
    const csv = [[t("step-part"), "ms", t("interval-low"), t("interval-high"), `${t("recomputed")} ms`, `${t("overlapped")} ms`, t("in-place-ms"), t("alone-ms"), t("allowed-ms")],
      ...step.parts.map((entry) => [partName(entry.part), entry.time.mean, entry.time.low, entry.time.high, entry.recompute_ms || 0, entry.overlapped_ms || 0, ...apart(entry)])];
    strips(place, { ...common, name: t("step-bar"), rows, end: Math.max(at, besideAt), csv });
    if (pieces.some((piece) => piece.half)) place.append(el("p", { class: "note" }, t("half-means")));
  }

  function table(place, step) {
    const share = (entry) => entry.time.mean / step.step.mean;
    const isFirst = (entry) => entry.part === "unexplained" && share(entry) >= LARGE;
    const ordered = [...step.parts].sort((a, b) => isFirst(b) - isFirst(a) || share(b) - share(a));
    const cell = (ms) => ({ v: ms || null, text: ms ? number(ms, 2) : "" });
    const sum = (name) => step.parts.reduce((total, entry) => total + (entry[name] || 0), 0);
    const more = [["recompute_ms", t("recomputed")], ["overlapped_ms", t("overlapped")]].filter(([name]) => sum(name));
    const halves = step.parts.some((entry) => half(entry.time));
    const row = (name, time, values) => [name, { v: time.mean, text: number(time.mean, 2) }, ...(halves ? [half(time)] : []), { v: time.mean / step.step.mean, text: percent(time.mean / step.step.mean) }, ...values.map(cell)];
    const rows = ordered.map((entry) => row(partName(entry.part), entry.time, more.map(([name]) => entry[name])));
    const columns = [t("step-part"), ...["ms", ...(halves ? ["95 %"] : []), t("share"), ...more.map(([, name]) => `${name} (ms)`)].map((name) => ({ name, number: true }))];
    levelfield.tables.add(place, t("parts-of-step"), columns, [...rows, row(t("whole-step"), step.step, more.map(([name]) => sum(name)))]);
    if (sum("overlapped_ms")) place.append(el("p", { class: "note" }, t("overlapped-means")));
  }

  /* What each part's operations take alone on the device, and what the chip allows. */
  function alone(place, amounts) {
    const cell = (ms) => ({ v: ms ?? null, text: Number.isFinite(ms) ? number(ms, 2) : "?" });
    const rows = [...amounts.parts].sort((a, b) => b.in_place_ms - a.in_place_ms).map((entry) =>
      [partName(entry.part), cell(entry.in_place_ms), cell(entry.alone_ms), cell(entry.allowed_ms), { v: entry.share ?? 1, text: percent(Math.min(1, entry.share ?? 1), 0) }]);
    for (const entry of amounts.findings || []) place.append(el("p", {}, foreign(entry)));
    const columns = [t("step-part"), ...[t("in-place-ms"), t("alone-ms"), t("allowed-ms"), t("of-the-part")].map((name) => ({ name, number: true }))];
    if (rows.length) levelfield.tables.add(place, t("step-alone"), columns, rows);
    const notes = [[t("rate-of-peak"), amounts.peak], [t("rate-of-memory"), amounts.memory], ...(amounts.missing || []).map((entry) => [t("missing-record"), entry])];
    for (const [name, text] of notes) if (text) place.append(el("p", { class: "note" }, `${name}: `, foreign(text)));
  }

  /* Return the pieces of a rank's line: each run of equal letters. */
  function piecesOf(line, timeline) {
    const width = timeline.ms / line.cells.length;
    return [...line.cells.matchAll(/([a-zA-Z])\1*/g)].map((match) => {
      const letter = match[1].toLowerCase(), kind = timeline.parts[letter.charCodeAt(0) - 97] || "unexplained";
      const [from, to, isAgain] = [match.index * width, (match.index + match[0].length) * width, letter !== match[1]];
      return { kind, from, to, half: isAgain, title: `${partName(kind)}${isAgain ? `, ${t("recomputed")}` : ""} ${number(from, 2)}–${number(to, 2)} ms` };
    });
  }

  /* One recorded step by rank. */
  function timeline(place, step, common) {
    const shown = step.timeline, csv = [[t("rank-number"), t("from-ms"), t("to-ms"), t("step-part"), t("recomputed")]];
    const rows = shown.lines.map((line) => {
      const pieces = piecesOf(line, shown);
      for (const piece of pieces) csv.push([line.rank, piece.from, piece.to, partName(piece.kind), piece.half ? t("yes") : t("no")]);
      return { name: t("rank", { rank: line.rank }), pieces, label: t("line-of-rank", { rank: line.rank, count: pieces.length }) };
    });
    strips(place, { ...common, name: t("step-by-rank"), rows, end: shown.ms, csv, keys: shown.parts.map((kind) => ({ kind, text: partName(kind) })) });
    place.append(el("p", { class: "note" }, t("cells-mean", { cells: shown.lines[0]?.cells.length ?? 0, ms: number(shown.ms, 2) })));
  }

  function ranks(place, step) {
    const rows = step.ranks.map((entry) => {
      const waited = entry.waited_ms || 0;
      return [{ v: entry.rank, text: String(entry.rank) }, { v: entry.ms, text: number(entry.ms, 2) }, { v: entry.ms - waited, text: number(entry.ms - waited, 2) },
        (entry.waited_for || []).map((one) => `${t("rank", { rank: one.rank })} ${number(one.ms, 2)} ms`).join(", ")];
    });
    const columns = [t("rank-number"), t("step-ms"), t("work-ms")].map((name) => ({ name, number: true }));
    levelfield.tables.add(place, t("waits-of-ranks"), [...columns, t("waits-for")], rows);
  }

  /* What is looked up: places and operations. */
  function lists(place, step) {
    const folded = (name) => {
      const made = el("details", { class: "figures" }, el("summary", {}, name));
      place.append(made);
      return made;
    };
    const ms = (entry) => ({ v: entry.ms, text: number(entry.ms, 2) });
    const share = (entry) => ({ v: entry.ms / step.step.mean, text: percent(entry.ms / step.step.mean) });
    const [time, ofStep] = [{ name: "ms", number: true }, { name: t("share"), number: true }];
    const places = ofAllLayers(step.places || []).slice(0, MAX_PLACES);
    if (places.length) {
      levelfield.tables.add(folded(t("step-places")), t("step-places"), [t("step-part"), t("step-place"), time, ofStep],
        places.map((entry) => [partName(entry.part), foreign(entry.where + (entry.is_repeated ? ` (${t("recomputed")})` : "")), ms(entry), share(entry)]));
    }
    if ((step.kernels || []).length) {
      levelfield.tables.add(folded(t("step-kernels")), t("step-kernels"), [t("step-part"), t("name"), t("kind"), t("number-format"), time],
        step.kernels.map((entry) => [partName(entry.part), foreign(entry.name), foreign(entry.kind), foreign(entry.dtype || "–"), ms(entry)]));
    }
  }

  /* Return the places with all layers together, the longest first. */
  function ofAllLayers(places) {
    const merged = new Map();
    for (const entry of places) {
      const where = entry.where.replace(/\b(layers\.)\d+/g, "$1*"), key = JSON.stringify([entry.part, where, Boolean(entry.is_repeated)]);
      merged.set(key, { ...entry, where, ms: entry.ms + (merged.has(key) ? merged.get(key).ms : 0) });
    }
    return [...merged.values()].sort((a, b) => b.ms - a.ms);
  }

  return { show };
})();
