"use strict";
/* Pairs of builds on the page of a case: the new build against the accepted one, pair by pair, with the ruling. */
levelfield.pairs = (() => {
  const { el, t, figure, runLink, signedPercent } = levelfield;
  const GATED = Object.fromEntries(Object.entries(levelfield.FIGURES).filter(([, { gated }]) => gated).map(([name, { gated }]) => [name, gated]));
  // The gate's words that a mark gets a ring for, with the colour of the ring.
  const RINGS = { regression: "bad", "training differs": "bad", "environment step": "step", "bad night": "note", improvement: "level" };

  /* Append charts and a table of the pairs, in the order in which they ran, where the series has any. */
  function add(place, slug, history, statements) {
    if (!history.pairs.length) return;
    const charts = el("div", { class: "charts" });
    const part = el("div", { class: "pairs" }, el("h3", {}, t("pairs")), el("p", { class: "note" }, t("pairs-note")), charts);
    place.append(part);
    const figures = Object.keys(GATED).filter((name) => statements.findings.some((finding) => finding.pairs && finding.figure === GATED[name]));
    for (const name of figures.length ? figures : ["tokens"]) chart(charts, slug, history, statements, name);
    table(part, slug, history);
  }

  /* Return B over A, minus one, of each pair; null where a value is absent. */
  function changes({ columns, pairs }, name) {
    return pairs.map(({ a, b }) => (columns[name][a] && columns[name][b] ? columns[name][b] / columns[name][a] - 1 : null));
  }

  /* Return the nights by the place of their first pair, with their number of pairs and the ruling. */
  function nightsOf(pairs, statements, name) {
    return [...new Set(pairs.map((pair) => pair.night))].map((night) => ({
      night,
      first: pairs.findIndex((pair) => pair.night === night) + 1,
      count: pairs.filter((pair) => pair.night === night).length,
      ruling: statements.findings.find((finding) => finding.pairs && finding.night === night && finding.figure === GATED[name]),
    }));
  }

  function chart(place, slug, history, statements, name) {
    const { pairs, columns } = history, all = pairs.length;
    const part = changes(history, name), nights = nightsOf(pairs, statements, name);
    const proven = nights.filter(({ ruling }) => ruling && ruling.change !== null && ruling.low !== null).map(({ first, count, ruling }) => ({ ...ruling, from: first - 0.4, to: first + count - 0.6 }));
    const ruled = (pair) => (nights.find((night) => night.night === pair.night).ruling || {}).word;
    const title = t("pairs-of", { name: t(`figure.${name}`) });
    const yes = pairs.map(() => true);
    levelfield.charts.add(place, {
      name: title, unit: "%", below: t("pair"), file: `${slug}_${name}_pairs`, whose: history.label, rest: t("pairs-rest", { count: all }),
      x: pairs.map((pair, i) => i + 1), ends: [0.5, all + 0.5],
      lines: [{ name: title, values: part.map((value) => (value === null ? null : value * 100)), width: 0 }],
      marks: { kinds: pairs.map(() => 0), full: yes, counts: yes },
      steps: nights.map(({ night, first, ruling }) => ({
        x: first - 0.5, label: `${(night || "").slice(5)} ${ruling ? t(`word.${ruling.word}`) : ""}`, colour: (ruling && RINGS[ruling.word]) || "step",
      })),
      spans: proven.map(({ from, to, low, high }) => ({ from, to, low: low * 100, high: high * 100 })),
      levels: [{ from: 0.5, to: all + 0.5, value: 0, colour: "muted" }, ...proven.map(({ from, to, change }) => ({ from, to, value: change * 100 }))],
      columns: [
        { name: t("night"), values: pairs.map((pair) => pair.night) },
        { name: "A", values: pairs.map((pair) => columns.run[pair.a]) },
        { name: "B", values: pairs.map((pair) => columns.run[pair.b]) },
        { name: t("gate"), values: pairs.map((pair) => (ruled(pair) ? t(`word.${ruled(pair)}`) : "")) },
      ],
      open: (i) => `run.html#${slug}/${encodeURIComponent(columns.run[pairs[i].b])}`,
      describe: (i) => `${t("pair")} ${i + 1}, ${pairs[i].night || "–"}: B / A ${signedPercent(part[i], 2)}`,
    });
  }

  function table(place, slug, history) {
    const { pairs, columns } = history, names = Object.keys(GATED);
    const all = names.map((name) => changes(history, name));
    const rows = pairs.map((pair, i) => [
      { v: i + 1, text: String(i + 1) }, pair.night || "–",
      ...[pair.a, pair.b].map((at) => runLink(slug, columns.run[at], figure("tokens", columns.tokens[at]))),
      ...all.map((values) => ({ v: values[i], text: signedPercent(values[i], 2) })),
    ]);
    const heads = [{ name: t("pair"), number: true }, t("night"), `A, ${t("unit.tokens")}`, `B, ${t("unit.tokens")}`,
      ...names.map((name) => ({ name: `${t(`figure.${name}`)}, B / A`, number: true }))];
    levelfield.tables.add(place, t("pairs-caption", { count: pairs.length }), heads, rows);
  }

  return { add, GATED, RINGS };
})();
