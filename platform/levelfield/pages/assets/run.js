"use strict";
/* The page of one run, made from the data files of its series: run.html#SERIES/RUN. */
(() => {
  const { el, t, load, when, number, figure, word, foreign, section } = levelfield;
  const NAMES = Object.keys(levelfield.FIGURES);
  const EXPERTS = ["active_parameters", "expert_imbalance", "expert_imbalance_last", "experts_never_chosen", "auxiliary_first", "auxiliary_last"];
  const BYTES = ["device_used", "reserved", "allocated", "process"];
  const GIB = 2 ** 30;
  const LONGEST = 200; // characters of a value in a table of fields

  async function start() {
    const place = document.getElementById("run");
    const [slug, run] = levelfield.parts();
    if (!slug || !run) return place.replaceChildren(el("p", { class: "empty" }, t("no-run-named")));
    try {
      await show(place, slug, run);
    } catch (error) {
      place.replaceChildren(el("p", { class: "empty" }, t("run-not-found")), el("p", {}, foreign(run)));
      if (!(error instanceof levelfield.Missing)) throw error;
    }
    place.dataset.drawn = location.hash;
  }

  async function show(place, slug, run) {
    const history = await load(`history-${slug}`), index = history.columns.run.indexOf(run);
    if (index < 0) throw new levelfield.Missing(run);
    const file = await load(`runs-${slug}-${when(history.columns.time[index], 7)}`), record = runOf(history, index, file);
    const shared = file.shared[record.shared];
    const fact = (name) => (Object.hasOwn(record, name) ? record[name] : Object.hasOwn(shared, name) ? shared[name] : null);
    document.title = `${levelfield.shown(run)} · Levelfield`;
    place.replaceChildren();
    heading(place, slug, history, index, record, fact);
    figures(place, history, index, record, fact);
    curves(place, file, record, fact);
    levelfield.step.show(place, file, record);
    training(place, fact("alignment"), fact("certificate"), record);
    telemetry(place, file, record, fact, file.is_host_share);
    setup(place, file, record, fact);
    surroundings(place, history, index, fact);
    remarks(place, fact);
    repeat(place, file.command, record, history.kept.subjects[history.columns.subject[index]]);
  }

  /* Return a run with all that the history and the month's file have of it. Steps and losses are in millionths. */
  function runOf({ columns, kept }, index, file) {
    const record = file.runs.find((candidate) => candidate.run === columns.run[index]);
    if (!record) throw new levelfield.Missing(columns.run[index]);
    const whole = (values) => values.map((value) => (value === null ? null : value / 1e6));
    return {
      ...record,
      ...Object.fromEntries(NAMES.map((name) => [name, columns[name][index]])),
      node: kept.nodes[columns.node[index]],
      word: kept.words[columns.word[index]],
      verdict: kept.verdicts[columns.verdict[index]],
      purpose: kept.purposes[columns.purpose[index]],
      counts: Boolean(columns.counts[index]),
      steps: whole(record.steps),
      losses: whole(record.losses),
    };
  }

  function heading(place, slug, history, index, record, fact) {
    place.append(el("h1", { class: "id" }, foreign(record.run)));
    const link = el("a", { href: `${history.case_file ? `case-${history.case_file}` : "index"}.html#${slug}` }, history.label);
    place.append(el("p", { class: "lead" }, link));
    place.append(el("p", {}, word(record.word), " ", el("span", { class: `evidence ${record.evidence}` }, t(`evidence.${record.evidence}`)),
      el("span", { class: "evidence" }, `${t("training")}: `, foreign(record.verdict))));
    const reasons = [record.failure, record.reason, record.evidence_reason, ...(fact("reasons") || []), fact("evidence_line")].filter(Boolean);
    if (reasons.length) place.append(el("ul", { class: "reasons" }, [...new Set(reasons)].map((reason) => el("li", {}, foreign(reason)))));
    if (!record.counts) place.append(el("p", { class: "caution" }, t("does-not-count")));
    const { run, time } = history.columns;
    const steps = [index > 0 ? el("a", { rel: "prev", href: runHash(slug, run[index - 1]) }, `← ${when(time[index - 1])}`) : null,
      el("span", {}, `${when(time[index])} UTC, ${t("run-of", { place: index + 1, count: run.length })}`),
      index + 1 < run.length ? el("a", { rel: "next", href: runHash(slug, run[index + 1]) }, `${when(time[index + 1])} →`) : null];
    place.append(el("nav", { class: "beside", "aria-label": t("neighbours") }, steps));
  }

  function runHash(slug, run) {
    return `#${slug}/${encodeURIComponent(run)}`;
  }

  function value(known) {
    return known && known.value !== undefined ? known.value : null;
  }

  /* The figures with what was expected: the estimate of memory, the reference's loss, the median of the series. */
  function figures(place, history, index, record, fact) {
    const part = section(place, "figures");
    const earlier = NAMES.map((name) => median(history.columns[name].filter((v, i) => i < index && v !== null && history.columns.counts[i] && history.columns.trend[i]).slice(-30)));
    const rows = NAMES.map((name, i) => row(levelfield.figureName(name), figure(name, record[name]), record[name], figure(name, earlier[i]), earlier[i]));
    const measured = record.memory, expected = fact("expected_bytes");
    if (expected) rows.push(row(`${t("memory-estimate")} (${t("unit.memory")})`, figure("memory", measured), measured, figure("memory", expected), expected));
    const columns = [t("figure"), { name: t("measured"), number: true }, { name: t("expected"), number: true }, { name: t("measured-over-expected"), number: true }];
    levelfield.tables.add(part, t("measured-beside-expected"), columns, rows);
    part.append(el("p", { class: "note" }, t(index ? "expected-means" : "expected-of-first", { count: Math.min(30, index) })));
    const used = fact("utilisation") || [];
    if (used.length) {
      levelfield.tables.add(part, t("utilisation"), [t("formula"), t("kind"), { name: "%", number: true }, { name: t("peak-tflops"), number: true }, t("peak-source")],
        used.map((u) => [u.formula, u.kind, { v: u.value, text: percentRange(u) }, { v: u.peak_tflops, text: number(u.peak_tflops, 2) }, foreign(u.peak_source || u.reason || "–")]));
    }
  }

  function percentRange(u) {
    if (u.low !== null && u.high !== null && u.low !== u.high) return `${number(u.low * 100, 1)}–${number(u.high * 100, 1)}`;
    return u.value === null ? "–" : number(u.value * 100, 1);
  }

  function row(name, shown, measured, shownExpected, expected) {
    const ratio = measured !== null && expected ? measured / expected : null;
    return [name, { v: measured, text: shown }, { v: expected, text: shownExpected }, { v: ratio, text: number(ratio, 3) }];
  }

  function median(values) {
    if (!values.length) return null;
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  function curves(place, file, record, fact) {
    const part = section(place, "curves");
    const [from, to] = record.window;
    if (!record.losses.length && !record.steps.length) {
      part.append(el("p", { class: "empty" }, t("no-steps")));
      return;
    }
    const charts = el("div", { class: "charts wide" });
    part.append(el("p", { class: "note" }, t("window-shaded", { from, to })), charts);
    const spans = [{ from: from - 0.5, to: to + 0.5 }];
    const common = { spans, axis: "steps", whose: `${file.label}, ${record.run}` };
    if (record.losses.length) lossChart(charts, file, record, common);
    if (record.steps.length) stepChart(charts, record, common);
    if (!file.reference) part.append(el("p", { class: "note" }, t("no-reference")));
    const [middle, high] = [fact("median"), fact("p90")];
    if (middle !== null) part.append(el("p", {}, t("step-summary", { median: number(middle * 1000, 1), p90: number(high * 1000, 1) })));
    steps(part, file, record);
    if (record.traces) levelfield.traces.ranks(part, file, record);
  }

  function lossChart(place, file, record, common) {
    const reference = file.reference;
    const count = Math.max(record.losses.length, reference ? reference.losses.length : 0);
    const x = Array.from({ length: count }, (_, i) => i + 1);
    const lines = [{ name: t("this-run"), values: x.map((_, i) => record.losses[i] ?? null), points: count <= 60 }];
    if (reference) lines.push({ name: t("reference"), values: x.map((_, i) => reference.losses[i] ?? null), colour: "other", dash: [6, 4] });
    levelfield.charts.add(place, {
      ...common, name: t("figure.loss"), unit: t("unit.loss"), file: `${record.run}_loss`, x, lines,
      describe: (i) => `${t("step")} ${x[i]}: ${number(lines[0].values[i], 4)}${reference ? `, ${t("reference")} ${number(lines[1].values[i], 4)}` : ""}`,
    });
  }

  function stepChart(place, record, common) {
    const x = record.steps.map((_, i) => i + 1);
    const values = record.steps.map((seconds) => seconds * 1000);
    levelfield.charts.add(place, {
      ...common, name: t("step-time"), unit: "ms", file: `${record.run}_steps`, x, fromZero: true, lines: [{ name: t("step-time"), values, points: x.length <= 60 }],
      describe: (i) => `${t("step")} ${x[i]}: ${number(values[i], 1)} ms`,
    });
  }

  function steps(part, file, record) {
    const count = Math.max(record.losses.length, record.steps.length);
    levelfield.tables.fold(part, t("table-of-steps", { count }), () => {
      const [from, to] = record.window;
      const rows = Array.from({ length: count }, (_, i) => [
        { v: i + 1, text: String(i + 1) }, i + 1 >= from && i + 1 <= to ? t("yes") : t("no"),
        { v: record.steps[i], text: record.steps[i] === undefined ? "–" : number(record.steps[i] * 1000, 1) },
        { v: record.losses[i], text: number(record.losses[i], 4) },
        { v: file.reference ? file.reference.losses[i] : null, text: number(file.reference ? file.reference.losses[i] : null, 4) },
      ]);
      const columns = [{ name: t("step"), number: true }, t("in-window"), { name: `${t("step-time")} (ms)`, number: true },
        { name: t("figure.loss"), number: true }, { name: t("reference"), number: true }];
      return [columns, rows];
    });
  }

  function training(place, alignment, certificate, record) {
    const part = section(place, "training");
    if (!alignment) {
      part.append(el("p", { class: "empty" }, t("no-alignment")));
      return;
    }
    part.append(el("p", {}, el("strong", {}, foreign(alignment.verdict)), ": ", foreign(alignment.reason || "")));
    if (alignment.reference) part.append(el("p", {}, `${t("reference")}: `, foreign(alignment.reference)));
    const layers = alignment.layers || [];
    if (layers.length) {
      const columns = [t("layer"), t("holds"), { name: t("largest-difference"), number: true }, { name: t("limit"), number: true }, t("detail")];
      levelfield.tables.add(part, t("layers"), columns, layers.map((layer) => [
        foreign(layer.name), layer.passed === null ? t("not-told") : t(layer.passed ? "yes" : "no"),
        { v: layer.value, text: small(layer.value) }, { v: layer.limit, text: small(layer.limit) }, foreign(layer.detail),
      ]));
    }
    if (certificate) part.append(el("p", {}, `${t("certificate")}: `, foreign(certificate.holds ? certificate.run_id || t("yes") : certificate.reason || t("no"))));
  }

  function small(value) {
    return typeof value === "number" ? value.toExponential(1) : "–";
  }

  /* isHost: the device is the whole machine, whose counter has the memory of other programs too. */
  function telemetry(place, file, record, fact, isHost) {
    const part = section(place, "telemetry");
    const rows = Object.entries(record.telemetry).map(([name, v]) => (/_bytes_/.test(name) ? [foreign(name.replace("_bytes_", "_gib_")), { v: v / GIB, text: number(v / GIB, 2) }] : [foreign(name), { v, text: number(v, Math.abs(v) < 10 ? 3 : 1) }]));
    const watts = value(fact("mean_watts")), otherCores = value(fact("other_cores"));
    if (watts !== null) rows.push([t("mean-watts", { boundary: fact("boundary") || "–" }), { v: watts, text: number(watts, 1) }]);
    for (const [name, digits] of [["node_watts", 1], ["node_joules_per_token", 4], ["other_joules_per_token", 4]]) {
      const known = fact(name);
      if (!known) continue;
      const v = value(known);
      rows.push([t(name), v === null ? foreign(known.reason || "") : { v, text: number(v, digits) }]);
    }
    if (otherCores !== null) rows.push([t("others"), { v: otherCores, text: number(otherCores, 2) }]);
    const memory = BYTES.map((name) => [t(isHost && name === "device_used" ? "memory.machine" : `memory.${name}`), value(fact(name)), fact(name)]);
    const columns = [t("reading"), { name: t("value"), number: true }];
    if (rows.length) levelfield.tables.add(part, t("telemetry-of-window"), columns, rows);
    else part.append(el("p", { class: "empty" }, t("no-telemetry")));
    const peaks = memory.map(([name, bytes, known]) => [name, { v: bytes, text: bytes === null ? "–" : number(bytes / GIB, 2) }, foreign((known && known.reason) || "")]);
    const capacity = fact("capacity");
    if (capacity) peaks.push([t("memory.capacity"), { v: capacity, text: number(capacity / GIB, 2) }, ""]);
    if (record.traces) levelfield.traces.overTime(part, file, record);
    levelfield.tables.add(part, t("memory-peaks"), [t("what"), { name: "GiB", number: true }, t("why-absent")], peaks);
    if (record.traces) levelfield.traces.memory(part, file, record);
    else if (record.steps.length) part.append(el("p", { class: "note" }, t("no-traces")));
  }

  function pairs(part, caption, entries) {
    const rows = entries.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([name, v]) => [foreign(name), foreign(shownValue(v), LONGEST)]);
    if (rows.length) levelfield.tables.add(part, caption, [t("field"), t("value")], rows).classList.add("pairs");
    else part.append(el("p", { class: "empty" }, `${caption}: ${t("nothing-recorded")}`));
  }

  function shownValue(v) {
    if (Array.isArray(v)) return v.map(shownValue).join(", ");
    if (v !== null && typeof v === "object") return Object.entries(v).map(([name, inner]) => `${name} ${shownValue(inner)}`).join(", ");
    return String(v);
  }

  function setup(place, file, record, fact) {
    const part = section(place, "layout");
    const { layout, in_words: words, work, corpus, version, ...rest } = file.series;
    pairs(part, t("work-and-layout"), [["layout", `${layout} (${words})`], ...Object.entries(rest), ["parameters", fact("parameters")],
      ...EXPERTS.map((name) => [name, fact(name)]), ["repeated", fact("recomputed")], ["attention_kernel", fact("attention_kernel")], ["fp8_library", fact("fp8_library")], ["steps", `${fact("done") ?? "–"} / ${fact("planned") ?? "–"}`], ["work", work], ["corpus", corpus]]);
  }

  function surroundings(place, history, index, fact) {
    const part = section(place, "environment");
    const { columns, kept } = history;
    const conditions = kept.conditions[columns.conditions[index]], subject = kept.subjects[columns.subject[index]];
    if (index > 0) differs(part, kept, columns, index);
    pairs(part, t("subject"), Object.entries(subject));
    pairs(part, t("conditions"), [...Object.entries(conditions).flatMap(flat), ["node", kept.nodes[columns.node[index]]]]);
    const inherited = Object.entries(fact("inherited") || {}), others = fact("inherited_others");
    if (inherited.length) pairs(part, t("inherited"), inherited);
    if (others) part.append(el("p", {}, t("inherited-others", { count: others })));
  }

  function flat([name, inner]) {
    return inner !== null && typeof inner === "object" ? Object.entries(inner).map(([key, v]) => [`${name}.${key}`, v]) : [[name, inner]];
  }

  /* What is not as in the run before. */
  function differs(part, kept, columns, index) {
    const before = index - 1;
    const rows = [["conditions", "conditions"], ["subject", "subjects"]].flatMap(([column, list]) => {
      const old = new Map(Object.entries(kept[list][columns[column][before]]).flatMap(flat).map(([n, v]) => [n, shownValue(v)]));
      const now = new Map(Object.entries(kept[list][columns[column][index]]).flatMap(flat).map(([n, v]) => [n, shownValue(v)]));
      return [...new Set([...old.keys(), ...now.keys()])].filter((n) => old.get(n) !== now.get(n)).map((n) => [foreign(n), foreign(old.get(n) ?? "–"), foreign(now.get(n) ?? "–")]);
    });
    if (columns.node[before] !== columns.node[index]) rows.push([t("node"), foreign(kept.nodes[columns.node[before]]), foreign(kept.nodes[columns.node[index]])]);
    if (rows.length) levelfield.tables.add(part, t("differs-from-previous"), [t("field"), t("before"), t("now")], rows);
    else part.append(el("p", {}, t("same-as-previous")));
  }

  function remarks(place, fact) {
    const part = section(place, "warnings");
    const all = ["warnings", "deviations", "flags", "disturbance_flags", "container_permissions"].flatMap((name) => fact(name) || []);
    if (all.length) part.append(el("ul", {}, all.map((remark) => el("li", {}, foreign(remark)))));
    else part.append(el("p", { class: "empty" }, t("no-warnings")));
  }

  function repeat(place, command, record, subject) {
    const part = section(place, "repeat");
    const button = el("button", { type: "button", class: "copy" }, t("copy"));
    button.addEventListener("click", () => levelfield.copy(command, button));
    part.append(el("pre", { id: "command", tabindex: "0" }, el("code", {}, command)), button);
    part.append(el("p", { class: "note" }, t("repeat-means", { commit: subject.commit || t("unknown"), version: subject.framework_version })));
    part.append(el("p", { class: "note" }, `${t("content")}: `, el("code", {}, record.content_digest)));
  }

  levelfield.ready(start);
  addEventListener("hashchange", start);
})();
