"use strict";
/* What a run recorded over time: step times of its ranks, readings of its devices on the same axis, memory by rank. */
levelfield.traces = (() => {
  const { el, t, number, foreign } = levelfield;
  const COLOURS = ["line", "other", "level", "step"];
  const QUANTITIES = { power_watts: ["W", 1], utilisation: ["%", 0], memory_used_mebibytes: ["GiB", 2], temperature_celsius: ["°C", 1] };
  const SCALES = { utilisation: 100, memory_used_mebibytes: 1 / 1024 };

  function looks(i) {
    return { colour: COLOURS[i % COLOURS.length], dash: i % COLOURS.length === 0 ? undefined : [[6, 4], [2, 3], [10, 3, 2, 3]][(i % COLOURS.length) - 1] };
  }

  function finite(values) {
    return values.filter((value) => Number.isFinite(value));
  }

  function mean(values) {
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  }

  /* What a saved chart says about its run. */
  function saving(file, record, figure) {
    return { file: `${record.run}_${figure}`, whose: `${file.label}, ${record.run}` };
  }

  /* The step times of the ranks that were kept, and in a table how much each needed in the window. */
  function ranks(place, file, record) {
    const { traces, window } = record;
    const traced = traces.rank_traces || [];
    if (traced.length < 2) return;
    const count = Math.max(...traced.map((rank) => rank.step_microseconds.length));
    if (!count) return;
    const x = Array.from({ length: count }, (_, i) => i + 1);
    const [from, to] = window;
    place.append(el("h3", {}, t("ranks")), el("p", { class: "note" }, t("ranks-kept", { kept: traced.length, count: traces.ranks })));
    const charts = el("div", { class: "charts wide" });
    place.append(charts);
    const lines = traced.map((rank, i) => ({ name: t("rank", { rank: rank.rank }), values: x.map((_, k) => (k in rank.step_microseconds ? rank.step_microseconds[k] / 1000 : null)), ...looks(i) }));
    levelfield.charts.add(charts, {
      ...saving(file, record, "steps-by-rank"), axis: "steps", name: t("step-time-by-rank"), unit: "ms", x, lines, spans: [{ from: from - 0.5, to: to + 0.5 }], describe: (i) => `${t("step")} ${x[i]}: ${lines.map((line) => `${line.name} ${number(line.values[i], 1)} ms`).join(", ")}`,
    });
    const sums = traced.map((rank) => rank.step_microseconds.slice(from - 1, to).reduce((sum, value) => sum + value, 0) / 1e6);
    const least = Math.min(...sums);
    const rows = traced.map((rank, i) => {
      const inside = rank.step_microseconds.slice(from - 1, to);
      const [middle, most] = [inside.length ? mean(inside) / 1000 : null, inside.length ? Math.max(...inside) / 1000 : null];
      const more = least > 0 ? (sums[i] / least - 1) * 100 : null;
      return [{ v: rank.rank, text: String(rank.rank) }, { v: middle, text: number(middle, 1) }, { v: most, text: number(most, 1) }, { v: sums[i], text: number(sums[i], 3) }, { v: more, text: number(more, 2) }];
    });
    const columns = [t("rank-number"), t("mean-step"), t("longest-step"), t("window-seconds"), t("more-than-fastest")].map((name) => ({ name, number: true }));
    levelfield.tables.add(place, t("ranks-in-window"), columns, rows);
  }

  /* Step times and every quantity, each a chart over the seconds since step 1 began. */
  function overTime(place, file, record) {
    const { traces, steps, window } = record;
    const devices = traces.device_traces || [];
    if (!devices.length || !(traces.parts > 0) || !(traces.seconds > 0)) return;
    const ends = ending(steps);
    const shaded = ends.length ? [{ from: ends[window[0] - 2] ?? 0, to: ends[Math.min(window[1], ends.length) - 1] }] : [];
    const last = Math.max(traces.seconds, ends[ends.length - 1] || 0);
    const common = { spans: shaded, axis: "seconds", below: t("seconds-since-begin"), ends: [0, last] };
    place.append(el("h3", {}, t("over-time")), el("p", { class: "note" }, t("devices-kept", { kept: devices.length, count: traces.devices, parts: traces.parts })));
    const charts = el("div", { class: "charts" });
    place.append(charts);
    if (ends.length) {
      levelfield.charts.add(charts, { ...common, ...saving(file, record, "step-times"), name: t("step-time"), unit: "ms", x: ends, rest: t("chart-rest-steps", { count: ends.length }), lines: [{ name: t("step-time"), values: steps.map((s) => s * 1000) }],
        describe: (i) => `${number(ends[i], 1)} s, ${t("step")} ${i + 1}: ${number(steps[i] * 1000, 1)} ms` });
    }
    const x = Array.from({ length: traces.parts }, (_, i) => (i + 0.5) * traces.seconds / traces.parts);
    const quantities = Object.keys(QUANTITIES).filter((name) => devices.some((device) => device.values[name]));
    for (const name of quantities) quantity(charts, { ...common, ...saving(file, record, name.replace(/_(watts|mebibytes|celsius)$/, "")) }, name, devices, x);
    table(place, quantities, devices);
  }

  function ending(steps) {
    let sum = 0;
    return steps.map((seconds) => (sum += seconds));
  }

  function scaled(name, device, count) {
    const values = device.values[name] || [];
    return Array.from({ length: count }, (_, i) => (Number.isFinite(values[i]) ? values[i] * (SCALES[name] || 1) : null));
  }

  function quantity(place, common, name, devices, x) {
    const [unit, digits] = QUANTITIES[name];
    const lines = devices.map((device, i) => ({ name: levelfield.shown(t("device", { device: device.device })), values: scaled(name, device, x.length), ...looks(i) }));
    levelfield.charts.add(place, { ...common, name: t(`trace.${name}`), unit, x, lines, rest: t("chart-rest-parts", { count: x.length }),
      describe: (i) => `${number(x[i], 1)} s: ${lines.map((line) => `${line.name} ${number(line.values[i], digits)} ${unit}`).join(", ")}` });
  }

  /* The same as numbers: the least, the mean and the most of each device. */
  function table(place, names, devices) {
    const rows = names.flatMap((name) => devices.filter((device) => device.values[name]).map((device) => {
      const [unit, digits] = QUANTITIES[name];
      const values = finite(scaled(name, device, device.values[name].length));
      const cells = values.length ? [Math.min(...values), mean(values), Math.max(...values)] : [null, null, null];
      return [`${t(`trace.${name}`)} (${unit})`, foreign(device.device), ...cells.map((v) => ({ v, text: number(v, digits) }))];
    }));
    const columns = [t("reading"), t("device-name"), ...[t("least"), t("mean"), t("most")].map((name) => ({ name, number: true }))];
    levelfield.tables.add(place, t("readings-by-device"), columns, rows);
  }

  function memory(place, file, record) {
    const { traces } = record;
    const peaks = traces.rank_peaks || [];
    if (!peaks.length) return;
    const kinds = ["process", "allocated", "reserved"].filter((kind) => peaks.some((rank) => Number.isFinite(rank[kind])));
    const rows = peaks.map((rank) => [{ v: rank.rank, text: String(rank.rank) }, ...kinds.map((kind) => ({ v: rank[kind] ?? null, text: number(Number.isFinite(rank[kind]) ? rank[kind] / 1024 : null, 2) }))]);
    place.append(el("h3", {}, t("memory-by-rank")));
    if (peaks.length > 1) memoryChart(place, saving(file, record, "memory-by-rank"), peaks, kinds);
    const columns = [{ name: t("rank-number"), number: true }, ...kinds.map((kind) => ({ name: `${t(`memory.${kind}`)} (GiB)`, number: true }))];
    levelfield.tables.add(place, t("memory-of-ranks", { kept: peaks.length, count: traces.ranks }), columns, rows);
  }

  function memoryChart(place, saved, peaks, kinds) {
    const x = peaks.map((rank) => rank.rank);
    const lines = kinds.map((kind, i) => ({ name: t(`memory.${kind}`), values: peaks.map((rank) => (Number.isFinite(rank[kind]) ? rank[kind] / 1024 : null)), points: true, width: 0.6, ...looks(i) }));
    const charts = el("div", { class: "charts wide" });
    place.append(charts);
    levelfield.charts.add(charts, { ...saved, name: t("memory-by-rank"), unit: "GiB", x, lines, fromZero: true, below: t("rank-number"), rest: t("chart-rest-ranks", { count: x.length }),
      describe: (i) => `${t("rank", { rank: x[i] })}: ${lines.map((line) => `${line.name} ${number(line.values[i], 2)} GiB`).join(", ")}` });
  }

  return { ranks, overTime, memory };
})();
