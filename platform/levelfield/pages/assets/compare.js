"use strict";
/* Two runs beside each other: the fields that differ come first, because they decide whether a ratio means anything.
   compare.html#SERIES/RUN/SERIES/RUN */
(() => {
  const { el, t, load, when, number, figure, word, foreign, runLink, section } = levelfield;
  const NAMES = Object.keys(levelfield.FIGURES);
  const SIDES = [0, 1];

  async function start() {
    const site = await load("site");
    const given = levelfield.parts();
    for (const side of SIDES) {
      const series = document.getElementById(`series${side}`);
      const isNew = !series.options.length;
      if (isNew) fill(series, site.series.map((each) => [each.slug, each.label]));
      if (given[2 * side]) series.value = given[2 * side];
      else if (isNew && side === 1) series.value = beside(site.series, document.getElementById("series0").value);
      await runs(side, given[2 * side + 1]);
    }
    if (!given.some(Boolean)) apart();
    await show(site);
  }

  /* What a series is compared with where nobody chose: another framework of its case, else another of its case, else
     another one. */
  function beside(all, slug) {
    const own = all.find((each) => each.slug === slug);
    const others = all.filter((each) => each.slug !== slug);
    const near = others.filter((each) => each.case === own?.case);
    return (near.find((each) => each.framework !== own.framework) ?? near[0] ?? others[0] ?? own)?.slug ?? "";
  }

  /* Where there is one series alone, A is the run before the newest one. */
  function apart() {
    const [a, b] = SIDES.map((side) => document.getElementById(`run${side}`));
    if (a.value && a.value === b.value && a.options.length > 1) a.selectedIndex = 1;
  }

  function fill(select, options) {
    select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  }

  /* Offer the runs of the chosen series, the newest first. */
  async function runs(side, chosen) {
    const slug = document.getElementById(`series${side}`).value;
    const select = document.getElementById(`run${side}`);
    if (!slug) return fill(select, []);
    const { columns, kept } = await load(`history-${slug}`);
    const options = columns.run.map((run, i) => [run, `${when(columns.time[i])} ${kept.words[columns.word[i]]} ${figure("tokens", columns.tokens[i])}`]);
    fill(select, options.reverse());
    if (chosen && columns.run.includes(chosen)) select.value = chosen;
  }

  function changed() {
    const values = SIDES.flatMap((side) => [document.getElementById(`series${side}`).value, document.getElementById(`run${side}`).value]);
    location.hash = values.map(encodeURIComponent).join("/"); // hashchange shows them
  }

  async function loaded(rules, side) {
    const slug = document.getElementById(`series${side}`).value;
    const run = document.getElementById(`run${side}`).value;
    const whole = await levelfield.loadRun(slug, run);
    return whole && { slug, ...whole, fields: fields(rules, whole) };
  }

  /* Every field of a run by its name, as in comparison_rules.py. */
  function fields(rules, { history, index, file, found }) {
    const { columns, kept } = history;
    const all = new Map();
    const put = (above, value) => {
      for (const [name, inner] of Object.entries(value)) {
        if (inner !== null && typeof inner === "object" && !Array.isArray(inner)) put(`${above}.${name}`, inner);
        else all.set(`${above}.${name}`, inner === null ? "–" : [inner].flat().join(", "));
      }
    };
    const { device_is: device, ...series } = file.series;
    const { formulas, ...subject } = kept.subjects[columns.subject[index]];
    put("series", series);
    put("conditions", kept.conditions[columns.conditions[index]]);
    put("subject", subject);
    for (const formula of formulas) all.set(`formula.${formula.split("/")[0]}`, formula);
    const shares = device === rules.host_share ? `, ${series.devices / series.nodes} / host` : "";
    all.set("device", `${device}${shares}`); // a share of a host is another one where the host has another number
    all.set("window", found.window.join(" – "));
    const done = file.shared[found.shared]; // digests that follow from the work
    for (const [name, key] of [["tokens read", "tokens_read"], ["initial weights", "initial_weights"]]) {
      if (Object.hasOwn(done, key)) all.set(name, done[key]);
    }
    all.set("node", found.node);
    all.set("training", found.verdict);
    all.set("date", when(columns.time[index], 10));
    all.set("run order", when(columns.time[index], 19));
    for (const name of Object.keys(rules.harmless)) if (!all.has(name)) all.set(name, rules.nothing);
    for (const [name, value] of Object.entries(found.cautions)) all.set(name, value);
    return all;
  }

  async function show(site) {
    const place = document.getElementById("comparison");
    const [a, b] = await Promise.all(SIDES.map((side) => loaded(site.rules, side)));
    place.replaceChildren();
    if (!a || !b) place.append(el("p", { class: "empty" }, t("choose-two")));
    else if (a.found.run === b.found.run) place.append(el("p", { class: "empty" }, t("same-run")));
    else draw(place, site, a, b);
    place.dataset.drawn = location.hash || "start";
  }

  function draw(place, site, a, b) {
    const kinds = new Map(differing(site.rules, a.fields, b.fields).map((name) => [name, kind(site.rules, name, a.fields, b.fields)]));
    const names = [...kinds.keys()];
    const blocking = names.filter((name) => kinds.get(name) === "must");
    const unfit = [a, b].filter((side) => !side.found.counts);
    verdict(place, blocking, unfit, names.some((name) => kinds.get(name) === "caution"));
    fieldTable(place, a, b, names, kinds);
    figureTable(place, a, b, !blocking.length && !unfit.length);
    levelfield.step.differ(place, a, b);
  }

  /* The fields that differ, and those that call for caution also where they do not. What one run lacks of a formula, of
     a kernel or of the digests of tokens and weights is no difference, nor is a date within the limit. Two runs of one
     node ran one after the other. */
  function differing(rules, a, b) {
    const days = Math.abs(Date.parse(a.get("date")) - Date.parse(b.get("date"))) / 86400000;
    return [...new Set([...a.keys(), ...b.keys()])].filter((name) => {
      if (name in rules.harmless && [a, b].some((side) => side.get(name) !== rules.harmless[name])) return true;
      if (a.get(name) === b.get(name) || (name === "date" && !(days > rules.days))) return false;
      if (name === "run order") return a.get("node") === b.get("node") && !(days > rules.days);
      const isOpen = name.startsWith("formula.") || ["attention kernel", "fp8 library", "tokens read", "initial weights"].includes(name);
      return !isOpen || (a.has(name) && b.has(name));
    });
  }

  function kind(rules, name, a, b) {
    const isPart = (part) => name === part || name.startsWith(`${part}.`);
    if (rules.must.some(isPart)) return "must";
    if (name in rules.harmless) return "caution";
    const isOwn = rules.of_a_framework.includes(name) && a.get("series.framework") !== b.get("series.framework");
    if (isOwn || rules.asked.includes(name)) return "asked";
    return rules.caution.some(isPart) ? "caution" : "other";
  }

  function verdict(place, blocking, unfit, isCautious) {
    const part = section(place, "comparable");
    if (blocking.length) part.append(el("p", { class: "caution" }, t("not-comparable"), " ", foreign(blocking.join(", "))));
    for (const side of unfit) part.append(el("p", { class: "caution" }, t("run-does-not-count"), " ", foreign(side.found.run)));
    if (!blocking.length && !unfit.length) {
      part.append(el("p", {}, t(isCautious ? "comparable-caution" : "comparable-yes")), el("p", { class: "note" }, t("one-run-a-side")));
    }
  }

  function fieldTable(place, a, b, names, kinds) {
    const part = section(place, "fields-that-differ");
    if (!names.length) return part.append(el("p", { class: "empty" }, t("no-field-differs")));
    const order = ["must", "caution", "asked", "other"];
    const rows = [...names].sort((x, y) => order.indexOf(kinds.get(x)) - order.indexOf(kinds.get(y)))
      .map((name) => [foreign(name), el("span", { class: `kind ${kinds.get(name)}` }, t(`differs.${kinds.get(name)}`)), foreign(a.fields.get(name) ?? "–"), foreign(b.fields.get(name) ?? "–")]);
    levelfield.tables.add(part, t("fields-that-differ"), [t("field"), t("meaning"), "A", "B"], rows);
  }

  function figureTable(place, a, b, hasRatio) {
    const part = section(place, "figures");
    const rows = NAMES.map((name) => {
      const [x, y] = [a.found[name], b.found[name]];
      const ratio = hasRatio && x !== null && y !== null && x !== 0 && name !== "loss" ? y / x : null;
      return [levelfield.figureName(name), { v: x, text: figure(name, x) }, { v: y, text: figure(name, y) }, { v: ratio, text: number(ratio, 3) }];
    });
    const columns = [t("figure"), { name: "A", number: true }, { name: "B", number: true }, { name: "B / A", number: true }];
    levelfield.tables.add(part, t("figures"), columns, rows);
    part.append(el("p", {}, "A: ", runLink(a.slug, a.found.run), " ", word(a.found.word), " ", foreign(a.found.verdict)));
    part.append(el("p", {}, "B: ", runLink(b.slug, b.found.run), " ", word(b.found.word), " ", foreign(b.found.verdict)));
    losses(part, a, b);
  }

  function losses(part, a, b) {
    const [ours, theirs] = [a.found.losses, b.found.losses];
    const count = Math.max(ours.length, theirs.length);
    if (!count) return;
    const x = Array.from({ length: count }, (_, i) => i + 1);
    const lines = [{ name: "A", values: x.map((_, i) => ours[i] ?? null) }, { name: "B", values: x.map((_, i) => theirs[i] ?? null), colour: "other", dash: [6, 4] }];
    const charts = el("div", { class: "charts wide" });
    part.append(charts);
    levelfield.charts.add(charts, {
      name: t("figure.loss"), unit: t("unit.loss"), x, lines, axis: "steps", file: `${a.found.run}_${b.found.run}_loss`, whose: `A: ${a.found.run}, B: ${b.found.run}`,
      describe: (i) => `${t("step")} ${x[i]}: A ${number(lines[0].values[i], 4)}, B ${number(lines[1].values[i], 4)}`,
    });
    levelfield.tables.fold(part, t("table-of-steps", { count }), () => {
      const rows = x.map((step, i) => [{ v: step, text: String(step) }, ...lines.map((line) => ({ v: line.values[i], text: number(line.values[i], 4) }))]);
      return [[{ name: t("step"), number: true }, { name: `A, ${t("figure.loss")}`, number: true }, { name: `B, ${t("figure.loss")}`, number: true }], rows];
    });
  }

  levelfield.ready(async () => {
    for (const side of SIDES) {
      document.getElementById(`series${side}`).addEventListener("change", async () => { await runs(side); changed(); });
      document.getElementById(`run${side}`).addEventListener("change", changed);
    }
    document.getElementById("swap").addEventListener("click", () => {
      const [s0, r0, s1, r1] = SIDES.flatMap((side) => [document.getElementById(`series${side}`).value, document.getElementById(`run${side}`).value]);
      location.hash = [s1, r1, s0, r0].map(encodeURIComponent).join("/");
    });
    await start();
  });
  addEventListener("hashchange", start);
})();
