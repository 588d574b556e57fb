"use strict";
/* Charts as files: SVG, PNG and CSV, made in the page. The policy allows pictures of `blob:` for the PNG; no request
   leaves the page.
   A static figure of a template gets its buttons by itself:
     <figure data-file="SERIES_FIGURE" data-table="ID">  <figcaption>, one <svg>
     <table class="bars" data-file="SERIES_FIGURE" data-rows="JSON" data-whose="SERIES">  an <svg> in each row
   data-table: the table with the same numbers; without it there is no CSV. A script calls `buttons`. */
levelfield.saving = (() => {
  const { el, t } = levelfield;
  const SVG = "http://www.w3.org/2000/svg";
  const HEAD = 46, FOOT = 22, EDGE = 12, COLUMN = 205, SHARPNESS = 2; // in pixels of the page; a PNG has twice as many
  // What the style sheet gives to parts of an SVG: a file has no style sheet.
  const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "vector-effect", "opacity", "font-size",
    "font-weight", "font-family", "text-anchor", "dominant-baseline"];

  /* Return an element of SVG. Texts become text nodes. */
  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children.map((child) => (child instanceof Node ? child : levelfield.shown(child))));
    return made;
  }

  /* Call `make` while the page has the colours of paper. */
  function onPaper(make) {
    const list = document.documentElement.classList;
    const was = list.contains("paper");
    list.add("paper");
    try { return make(); } finally { list.toggle("paper", was); }
  }

  /* Return a copy of an SVG of the page with its look in attributes. */
  function styled(original) {
    const copy = original.cloneNode(true);
    const looks = [...original.querySelectorAll("*")].map((part) => getComputedStyle(part));
    [...copy.querySelectorAll("*")].forEach((part, i) => {
      part.removeAttribute("class");
      if (looks[i].display === "none") part.setAttribute("display", "none");
      for (const name of LOOKS) part.setAttribute(name, looks[i].getPropertyValue(name));
    });
    for (const name of ["class", "role", "aria-label", "aria-labelledby", "id"]) copy.removeAttribute(name);
    return copy;
  }

  /* Return the picture with what a stranger needs beside it: the name, whose it is, and which site it is from. */
  function framed(picture, name, whose) {
    const box = picture.viewBox.baseVal;
    const width = Number(picture.getAttribute("width")) || box.width, height = Number(picture.getAttribute("height")) || box.height;
    const whole = [Math.max(width, 7 * whose.length) + 2 * EDGE, height + HEAD + FOOT];
    const line = (y, size, weight, colour, text) => svg("text", { x: EDGE, y, "font-family": "system-ui, sans-serif", "font-size": size, "font-weight": weight, fill: colour }, text);
    for (const [key, value] of Object.entries({ x: EDGE, y: HEAD, width, height })) picture.setAttribute(key, value);
    const made = document.querySelector("footer p");
    return svg("svg", { xmlns: SVG, width: whole[0], height: whole[1], viewBox: `0 0 ${whole.join(" ")}` },
      svg("title", {}, `${name}. ${whose}`), svg("rect", { width: whole[0], height: whole[1], fill: "#ffffff" }),
      line(18, 14, 700, "#1b1f24", name), line(36, 12, 400, "#57606a", whose), picture,
      line(whole[1] - 7, 10, 400, "#57606a", made ? made.textContent : ""));
  }

  function asPicture(picture) {
    return new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });
  }

  /* Return a promise of the PNG of an SVG. */
  async function asPixels(picture) {
    const address = URL.createObjectURL(asPicture(picture));
    try {
      const image = new Image();
      await new Promise((resolve, reject) => {
        image.onload = resolve;
        image.onerror = () => reject(new Error("the picture cannot be drawn"));
        image.src = address;
      });
      const canvas = el("canvas", { width: image.width * SHARPNESS, height: image.height * SHARPNESS });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      return await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  /* Return rows as CSV. A number stays one; a text is never a formula. A mark in front tells a spreadsheet the letters. */
  function asCsv(rows) {
    const cell = (value) => {
      if (value === null || value === undefined) return "";
      if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(12))) : "";
      const text = levelfield.tables.inert(levelfield.shown(value));
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const begin = levelfield.language === "en" ? "" : "\ufeff";
    return new Blob([begin, rows.map((row) => row.map(cell).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" });
  }

  function give(content, name) {
    const address = URL.createObjectURL(content);
    el("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
    levelfield.announce(t("saved-as", { name }));
  }

  /* Return the buttons of a chart. chart: file, the name of its files without an end: series and figure; name; whose:
     the series in words; picture: returns an SVG in pixels of the page; rows: returns the rows of the CSV, names first. */
  function buttons(chart) {
    const stem = chart.file.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[.-]+/, "").slice(0, 150);
    const picture = () => onPaper(() => framed(chart.picture(), chart.name, chart.whose));
    const kinds = { svg: () => asPicture(picture()), png: () => asPixels(picture()), ...(chart.rows ? { csv: () => asCsv(chart.rows()) } : {}) };
    return el("span", { class: "save", role: "group", "aria-label": t("save-chart", { name: chart.name }) }, `${t("save")} `,
      Object.entries(kinds).map(([end, make]) => {
        const button = el("button", { type: "button" }, end.toUpperCase());
        button.addEventListener("click", async () => give(await make(), `${stem}.${end}`));
        return button;
      }));
  }

  /* Give a static figure its buttons. */
  function attach(figure) {
    const picture = figure.querySelector("svg"), table = document.getElementById(figure.dataset.table);
    const [name, whose] = ["strong", "small"].map((part) => (figure.querySelector(`figcaption ${part}`) || { textContent: "" }).textContent.trim());
    figure.append(el("p", { class: "axis" }, buttons({
      file: figure.dataset.file, name, whose, picture: () => styled(picture), rows: table ? () => levelfield.tables.rowsOf(table) : null,
    })));
  }

  /* Return the bars of a table as one SVG: what each is called, the bar, and what stands beside it. sizes: of these
     three. legend: a list of colours below, each an SVG and a text. */
  function barsOf(table, sizes = [190, 250, 330], legend = null) {
    const ROW = 24, [NAME, BAR, BESIDE] = sizes;
    const write = (x, y, content) => svg("text", { x, y, "font-size": 12, "font-family": "system-ui, sans-serif", fill: "#1b1f24" }, content);
    const textOf = (cell) => cell.innerText.replace(/\s+/g, " ").trim();
    const lines = [...table.tBodies[0].rows].map((row, i) => {
      const text = (x, content) => write(x, ROW * i + 16, content);
      const bar = styled(row.querySelector("svg"));
      for (const [key, value] of Object.entries({ x: NAME, y: ROW * i + 4, width: BAR, height: ROW - 8 })) bar.setAttribute(key, value);
      return [text(0, textOf(row.cells[0])), bar, text(NAME + BAR + 10, [...row.querySelectorAll("td.value")].map(textOf).join("   "))];
    });
    const width = NAME + BAR + BESIDE, columns = Math.max(1, Math.floor(width / COLUMN));
    const keys = [...(legend ? legend.children : [])].map((key, i) => {
      const [x, y] = [COLUMN * (i % columns), ROW * lines.length + 12 + 18 * Math.floor(i / columns)];
      const mark = styled(key.querySelector("svg"));
      for (const [name, value] of Object.entries({ x, y, width: 12, height: 12 })) mark.setAttribute(name, value);
      return [mark, write(x + 18, y + 11, textOf(key))];
    });
    const box = [width, ROW * lines.length + (keys.length ? 18 + 18 * Math.ceil(keys.length / columns) : 0)];
    return svg("svg", { width: box[0], height: box[1], viewBox: `0 0 ${box.join(" ")}` }, ...lines.flat(), ...keys.flat());
  }

  /* Give a table of bars its buttons. */
  function attachBars(table) {
    const rows = JSON.parse(table.dataset.rows);
    table.after(el("p", { class: "axis" }, buttons({
      file: table.dataset.file, name: table.caption.textContent, whose: table.dataset.whose || "", picture: () => barsOf(table), rows: () => rows,
    })));
  }

  levelfield.ready(() => {
    document.querySelectorAll("figure[data-file]").forEach(attach);
    document.querySelectorAll("table.bars[data-file]").forEach(attachBars);
  });
  return { buttons, barsOf, svg };
})();
