"use strict";
/* The series of a case in groups by chip, framework or layout. Each group is folded to a row: how many series, the
   fastest one, and the gate's words of the last night. The address keeps what is open: #?by=framework&open=torch */
levelfield.groups = (() => {
  const { el, t, word, number } = levelfield;
  const KINDS = ["chip", "framework", "layout"];
  const FEW = 4; // series that need no groups
  let place, sections, ahead;

  /* Put the sections into groups. loaded: called with the sections of each group that is opened. */
  function start(all, loaded) {
    [place, sections, ahead] = [document.getElementById("all-series"), all, loaded];
    if (sections.length > FEW) {
      place.before(chooser());
      regroup();
      addEventListener("hashchange", regroup);
    } else ahead(sections);
  }

  function kinds() {
    return KINDS.filter((kind) => new Set(sections.map((section) => section.dataset[kind])).size > 1);
  }

  function chosen() {
    const choice = levelfield.settings().get("by");
    return KINDS.includes(choice) ? choice : kinds()[0] || "chip";
  }

  function chooser() {
    const buttons = KINDS.map((kind) => {
      const button = el("button", { type: "button", "data-by": kind }, t(`by.${kind}`));
      button.addEventListener("click", () => { levelfield.remember({ by: kind, open: null }); regroup(); });
      return button;
    });
    const all = [true, false].map((opens) => {
      const button = el("button", { type: "button" }, t(opens ? "open-all" : "fold-all"));
      button.addEventListener("click", () => {
        place.querySelectorAll("details.group").forEach((group) => { group.open = opens; });
        keep();
      });
      return button;
    });
    const label = `${t("group-by")}: `;
    return el("div", { class: "grouping" }, el("span", { role: "group", "aria-label": t("group-by") }, label, buttons), el("span", { role: "group", "aria-label": t("groups") }, all));
  }

  /* Make the groups that the address names. Sections keep what was drawn in them. */
  function regroup() {
    const by = chosen(), open = levelfield.settings().getAll("open");
    for (const button of document.querySelectorAll(".grouping [data-by]")) button.setAttribute("aria-pressed", String(button.dataset.by === by));
    const names = [...new Set(sections.map((section) => section.dataset[by]))];
    const groups = names.map((name) => group(name, sections.filter((section) => section.dataset[by] === name), open.includes(name)));
    place.replaceChildren(...groups);
  }

  /* Keep in the address what is open. */
  function keep() {
    levelfield.remember({ open: [...place.querySelectorAll("details.group[open]")].map((group) => group.dataset.name) });
  }

  function group(name, inside, isOpen) {
    const head = row(name, inside);
    const made = el("details", { class: "group", "data-name": name, open: isOpen }, head, el("div", { class: "in-group" }, inside));
    head.addEventListener("click", () => { setTimeout(keep); }); // by keyboard, too
    if (isOpen) ahead(inside);
    made.addEventListener("toggle", () => {
      if (made.open) ahead(inside);
    });
    return made;
  }

  function row(name, inside) {
    const speed = (section) => Number(section.dataset.tokens ?? NaN);
    const [best] = inside.filter((section) => speed(section) > 0).sort((a, b) => speed(b) - speed(a));
    const words = new Map();
    const urgent = [...inside].sort((a, b) => a.dataset.urgency - b.dataset.urgency);
    for (const { dataset } of urgent) if (dataset.word && dataset.word !== "no change") words.set(dataset.word, (words.get(dataset.word) || 0) + 1);
    return el("summary", {}, el("strong", {}, name), el("span", {}, t("series-count", { count: inside.length })),
      el("span", {}, best ? t("fastest", { tokens: number(speed(best), 1), name: best.querySelector("h2").textContent.replace(/\s+/g, " ") }) : t("no-figure-yet")),
      el("span", {}, [...words].flatMap(([name, count]) => [word(name), ` ${count} `])));
  }

  /* Open the group of a section. */
  function open(section) {
    const group = section.closest("details.group");
    if (group) group.open = true;
  }

  function isOpen(section) {
    const group = section.closest("details.group");
    return !group || group.open;
  }

  return { start, open, isOpen };
})();
