"use strict";
/* The page of a case: for each series its charts over time, what changed around it, and a table of its runs. */
(() => {
  const { el, t, load, when, figure, figureName, word, runLink, number } = levelfield;
  const NAMES = Object.keys(levelfield.FIGURES);
  const { GATED, RINGS } = levelfield.pairs;

  function start() {
    const sections = [...document.querySelectorAll("section[data-series]")];
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) { seen.unobserve(entry.target); show(entry.target); }
      }
    }, { rootMargin: "400px" });
    levelfield.groups.start(sections, ahead);
    sections.forEach((section) => seen.observe(section));
    addEventListener("hashchange", () => named(sections));
    named(sections);
    levelfield.printing(() => sections.filter(levelfield.groups.isOpen).forEach(drawKnown));
  }

  function filesOf(section) {
    return [`history-${section.dataset.series}`, `case-${document.querySelector("main").dataset.case}`];
  }

  /* Load what may be printed before it comes into view. A page that is still loading waits for it. */
  function ahead(sections) {
    for (const section of sections) filesOf(section).forEach((name) => load(name).catch(() => {})); // `show` tells it
  }

  /* Draw the series of the address at once, and bring it into view: sections above it grow when they are drawn. */
  async function named(sections) {
    const section = sections.find((candidate) => candidate.id === levelfield.parts()[0]);
    if (!section) return;
    levelfield.groups.open(section);
    await show(section);
    section.scrollIntoView();
  }

  async function show(section) {
    try {
      await Promise.all(filesOf(section).map(load));
      drawKnown(section);
    } catch (error) {
      section.querySelector(".series").replaceChildren(el("p", { class: "empty" }, t("no-data")));
      throw error;
    }
  }

  /* Draw a series whose data have come. Paper does not wait for data. */
  function drawKnown(section) {
    const [history, statements] = filesOf(section).map(levelfield.loaded);
    if (section.dataset.drawn || !history || !statements) return;
    section.dataset.drawn = "yes";
    const place = section.querySelector(".series");
    place.replaceChildren();
    draw(place, section.dataset.series, history, statements[section.dataset.series]);
  }

  function draw(place, slug, history, statements) {
    const columns = history.columns;
    const charts = el("div", { class: "charts" });
    const isOne = columns.trend.filter(Boolean).length < 2;
    place.append(nodes(history), isOne ? el("p", { class: "note" }, t("one-run")) : charts);
    levelfield.pairs.add(place, slug, history, statements);
    const absent = [];
    for (const name of NAMES) {
      if (columns[name].some((value) => value !== null)) { if (!isOne) chart(charts, slug, history, statements, name); }
      else absent.push(t(`figure.${name}`));
    }
    if (absent.length) place.append(el("p", { class: "empty" }, t("no-figure", { names: absent.join(", ") })));
    changes(place, history);
    events(place, statements.events);
    words(place, slug, statements.findings);
    runs(place, slug, history, statements);
  }

  /* The nodes by their marks. */
  function nodes(history) {
    const signs = levelfield.charts.SIGNS;
    const shown = history.kept.nodes.flatMap((node, i) => [el("span", { class: "node" }, `${signs[i % signs.length]} `, levelfield.foreign(short(node))), " "]);
    return el("p", { class: "legend" }, el("span", {}, `${t("nodes")}: `), shown);
  }

  function short(digest) {
    return digest.replace(/^sha256:/, "").slice(0, 10);
  }

  function chart(place, slug, history, statements, name) {
    const { columns, kept } = history;
    const { factor } = levelfield.FIGURES[name];
    const at = columns.run.map((run, i) => i).filter((i) => columns.trend[i]);
    const of = (column) => at.map((i) => column[i]);
    const values = of(columns[name]).map((value) => (value === null ? null : value * factor));
    const nightly = kept.purposes.indexOf("nightly");
    levelfield.charts.add(place, {
      name: t(`figure.${name}`),
      unit: t(`unit.${name}`),
      x: of(columns.time),
      time: true,
      axis: "time",
      file: `${slug}_${name}`,
      whose: history.label,
      columns: [
        { name: t("run"), values: of(columns.run) },
        { name: t("result"), values: of(columns.word).map((word) => t(`word.${kept.words[word]}`)) },
        { name: t("node"), values: of(columns.node).map((node) => short(kept.nodes[node])) },
        { name: t("gate"), values: of(columns.run).map((run) => wordsOf(statements, run).map((word) => t(`word.${word}`)).join(", ")) },
      ],
      lines: [{ name: t(`figure.${name}`), values, width: 0.6, colour: "faint" }],
      marks: { kinds: of(columns.node), full: of(columns.purpose).map((p) => p === nightly), counts: of(columns.counts) },
      rings: at.map((i) => ring(statements, name, columns.run[i])),
      steps: [
        ...history.segments.map((segment) => ({ x: columns.time[segment.at], label: changeName(segment) })),
        ...statements.events.map((event) => ({ x: event.time, label: t(`event.${event.kind}`), colour: "note" })),
      ],
      levels: levels(history, statements, name, factor),
      open: (i) => `run.html#${slug}/${encodeURIComponent(columns.run[at[i]])}`,
      describe: (i) => description(history, name, at[i]),
    });
  }

  /* Return the gate's words about a run, the most urgent first, without the calm ones. */
  function wordsOf(statements, run) {
    return [...new Set(statements.findings.filter((finding) => finding.run_id === run && finding.word in RINGS).map((finding) => finding.word))];
  }

  /* Return what the gate said about a figure of a run, for its mark. A word about no figure is about the training. */
  function ring(statements, name, run) {
    const of = (finding) => (finding.figure === null ? name === "loss" : finding.figure === GATED[name]);
    const finding = statements.findings.find((finding) => finding.run_id === run && finding.word in RINGS && of(finding));
    return finding ? { word: t(`word.${finding.word}`), colour: RINGS[finding.word] } : null;
  }

  /* Return a change of conditions in a few words: `driver changed`, or `driver +2 changed`. */
  function changeName(segment) {
    const [first, ...others] = segment.fields.map(([name]) => name.split(".").pop());
    const name = levelfield.shown(first === undefined ? t("conditions") : first.slice(0, 24));
    return t("field-changed", { name: others.length ? `${name} +${others.length}` : name });
  }

  /* Accepted levels: each holds until the next one, or until it ended. Without one, the level that the gate used. */
  function levels(history, statements, name, factor) {
    const end = history.columns.time[history.columns.time.length - 1];
    const accepted = statements.events.filter((event) => event.kind === "baseline" && GATED[name] in event.level);
    if (accepted.length) {
      return accepted.map((event, i) => ({ from: event.time, to: accepted[i + 1] ? accepted[i + 1].time : end, value: event.level[GATED[name]] * factor }));
    }
    const last = statements.findings.filter((finding) => finding.figure === GATED[name] && finding.level !== null).pop();
    if (!last) return [];
    const since = Date.parse(last.level_since) / 1000;
    return [{ from: Number.isFinite(since) ? since : history.columns.time[0], to: end, value: last.level * factor }];
  }

  function description(history, name, i) {
    const { columns, kept } = history;
    const value = columns[name][i];
    const text = value === null ? t("no-value") : `${figure(name, value)} ${t(`unit.${name}`)}`;
    const key = `word.${kept.words[columns.word[i]]}`;
    return `${when(columns.time[i])} UTC: ${text}, ${t(key)}, ${t("node")} ${short(kept.nodes[columns.node[i]])}`;
  }

  function changes(place, history) {
    if (!history.segments.length) {
      place.append(el("p", { class: "empty" }, t("no-segments")));
      return;
    }
    const rows = history.segments.map((segment) => [
      changeName(segment),
      when(history.columns.time[segment.at]),
      el("ul", { class: "fields" }, segment.fields.map(([name, before, after]) => el("li", {}, levelfield.foreign(`${name}: ${before || "–"} → ${after || "–"}`)))),
    ]);
    levelfield.tables.add(place, t("conditions-changed"), [t("line-in-charts"), t("since"), t("what-differs")], rows);
  }

  function events(place, all) {
    if (!all.length) return;
    const rows = all.map((event) => [
      t(`event.${event.kind}`), when(event.time), levelfield.foreign(event.why), levelfield.foreign(event.who), event.until ? levelfield.foreign(event.until) : "–",
    ]);
    levelfield.tables.add(place, t("events"), [t("line-in-charts"), t("when"), t("why"), t("who"), t("until")], rows);
  }

  /* What the gate said, without the calm words: they would hide the others. */
  function words(place, slug, findings) {
    const notable = findings.filter((finding) => finding.word !== "no change").reverse();
    if (!notable.length) {
      place.append(el("p", { class: "empty" }, t(findings.length ? "gate-calm" : "gate-silent")));
      return;
    }
    const rows = notable.map((finding) => [
      finding.night, word(finding.word), finding.figure ? t(`gated.${finding.figure}`) : "–",
      { v: finding.change, text: change(finding) }, levelfield.foreign([finding.detail, ...(finding.explanation || []).map((reason, place) => `${place + 1}. ${reason}`)].filter(Boolean).join(" ")),
      finding.run_id ? runLink(slug, finding.run_id, t("run")) : "–",
    ]);
    const columns = [t("night"), t("word"), t("figure"), { name: t("change"), number: true }, t("detail"), t("run")];
    levelfield.tables.add(place, t("gate-said"), columns, rows);
  }

  function change(finding) {
    const { signedPercent } = levelfield;
    if (finding.change === null) return "–";
    const bounds = finding.low === null || finding.high === null ? "" : ` (${signedPercent(finding.low, 1)} … ${signedPercent(finding.high, 1)})`;
    return signedPercent(finding.change, 1) + bounds;
  }

  /* The table of the charts: ten series of a year are 3,000 rows. */
  function runs(place, slug, history, statements) {
    const { columns, kept } = history;
    levelfield.tables.fold(place, t("table-of-runs", { count: columns.run.length }), () => {
      const rows = columns.run.map((run, i) => [
        when(columns.time[i]), runLink(slug, run), word(kept.words[columns.word[i]]), el("span", {}, wordsOf(statements, run).map((name) => [word(name), " "]).flat()), levelfield.foreign(kept.verdicts[columns.verdict[i]]),
        `${levelfield.charts.SIGNS[columns.node[i] % levelfield.charts.MARKS]} ${short(kept.nodes[columns.node[i]])}`,
        t(`purpose.${kept.purposes[columns.purpose[i]]}`),
        ...NAMES.map((name) => ({ v: columns[name][i], text: figure(name, columns[name][i]) })),
      ]).reverse();
      const heads = [t("when"), t("run"), t("result"), t("gate"), t("training"), t("node"), t("purpose"), ...NAMES.map((name) => ({ name: figureName(name), number: true }))];
      return [heads, rows];
    });
  }

  levelfield.ready(start);
})();
