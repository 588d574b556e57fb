"use strict";
/* Tables that sort, filter and copy. A cell's data-v is the number that it sorts by. */
levelfield.tables = (() => {
  const { el, t } = levelfield;
  const FILTERED = 6; // rows from which a filter is worth its place

  /* Return the value that a cell sorts by. */
  function key(row, column) {
    const cell = row.cells[column];
    if (!cell) return "";
    if (cell.dataset.v !== undefined) return cell.dataset.v === "" ? null : Number(cell.dataset.v);
    return cell.textContent.trim();
  }

  /* Absent values come last in both directions. */
  function compare(a, b, sign) {
    const none = (value) => value === null || value === "" || Number.isNaN(value);
    if (none(a) || none(b)) return none(a) - none(b);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  }

  function sort(table, column, header) {
    const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort((a, b) => compare(a[0], b[0], sign));
    body.append(...rows.map((pair) => pair[1]));
  }

  /* Show the rows that have every word. Return their number. */
  function filter(table, text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
      count += !row.hidden;
    }
    return count;
  }

  /* Return a text for a spreadsheet: one line, and never a formula. */
  function inert(value) {
    const text = value.replace(/\s+/g, " ").trim();
    const isNumber = /^[+\-\u2212]?[\d.,]+( ?%)?$/.test(text);
    return !isNumber && /^[=+\-\u2212@\t]/.test(text) ? `'${text}` : text;
  }

  /* Return the names and the visible rows. A cell is its text; with `exact`, the number that it sorts by. */
  function rowsOf(table, exact = true) {
    const rows = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter((row) => !row.hidden)];
    const value = (cell) => (exact && cell.dataset.v !== undefined ? (cell.dataset.v === "" ? null : Number(cell.dataset.v)) : cell.textContent);
    return rows.map((row) => [...row.cells].map(value));
  }

  function tools(table) {
    const all = table.tBodies[0].rows.length;
    const button = el("button", { type: "button", class: "copy" }, t("copy-table"));
    button.addEventListener("click", () => levelfield.copy(rowsOf(table, false).map((row) => `${row.map(inert).join("\t")}\n`).join(""), button));
    if (all < FILTERED) return el("div", { class: "tools" }, button);
    const count = el("span", { class: "count" });
    const input = el("input", { type: "search", "aria-label": `${t("filter")}: ${table.caption?.textContent ?? ""}`, placeholder: t("filter") });
    input.addEventListener("input", () => {
      const left = filter(table, input.value);
      count.textContent = input.value ? t("rows-of", { count: left, all }) : "";
      levelfield.announce(count.textContent);
    });
    return el("div", { class: "tools" }, input, count, button);
  }

  /* Give a table its buttons. It stays readable without them. */
  function enhance(table) {
    if (table.dataset.enhanced || !table.tHead || !table.tBodies[0].rows.length) return;
    table.dataset.enhanced = "yes";
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const button = el("button", { type: "button", class: "sort" });
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(table, column, header));
    });
    const frame = table.closest(".scroll") || table;
    const framed = el("div", { class: "framed" });
    frame.before(framed);
    framed.append(tools(table), frame);
  }

  /* Return a table in its frame. columns: names, or {name, number}; a cell: text, element, or {v, text}. */
  function make(caption, columns, rows) {
    const heads = columns.map((c) => el("th", { scope: "col", class: c.number ? "number" : null }, c.name || c));
    const lines = rows.map((row) => el("tr", {}, row.map((cell, i) => cellOf(cell, columns[i]))));
    const table = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), el("tbody", {}, lines));
    const frame = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
    return { frame, table };
  }

  function cellOf(cell, column) {
    const isNumber = Boolean(column.number);
    if (cell !== null && typeof cell === "object" && !(cell instanceof Node)) {
      return el("td", { "data-v": cell.v ?? "", class: isNumber ? "number" : null }, cell.text);
    }
    return el("td", { class: isNumber ? "number" : null }, cell);
  }

  /* Append a table with its buttons. */
  function add(place, caption, columns, rows) {
    const { frame, table } = make(caption, columns, rows);
    place.append(frame);
    enhance(table);
    return table;
  }

  /* Append a table that is folded below its caption. It is made when it is opened first: a year of runs has many rows.
     make: returns the columns and the rows. */
  function fold(place, caption, make) {
    const details = el("details", { class: "figures" }, el("summary", {}, caption));
    details.addEventListener("toggle", () => {
      if (!details.open || details.dataset.filled) return;
      details.dataset.filled = "yes";
      add(details, caption, ...make());
    });
    place.append(details);
  }

  /* Paper does not scroll: a table that is wider is printed in smaller letters, and if that does not help as several. */
  function toPaper() {
    const room = document.querySelector("main").clientWidth;
    for (const table of document.querySelectorAll(".scroll > table")) {
      if (!table.tHead || table.offsetWidth <= room) continue;
      table.classList.add("dense");
      if (table.offsetWidth <= room) continue;
      const parts = partsOf([...table.tHead.rows[0].cells].map((cell) => cell.offsetWidth), room, keysOf(table));
      table.parentNode.classList.add("on-screen");
      table.parentNode.after(el("div", { class: "for-paper" }, parts.map((columns, i) => partOf(table, columns, `${i + 1} / ${parts.length}`))));
    }
  }

  /* Return the columns that tell the rows apart: the first one, and what a template calls the name of a row. */
  function keysOf(table) {
    return [...table.tBodies[0].rows[0]?.cells ?? []].flatMap((cell, i) => (i === 0 || cell.matches(".row") ? [i] : []));
  }

  /* Return the columns of each part. The keys are in all of them. */
  function partsOf(widths, room, keys) {
    const parts = [];
    let left = 0;
    widths.forEach((width, i) => {
      if (keys.includes(i)) return;
      if (!parts.length || width > left) {
        parts.push([...keys]);
        left = room - keys.reduce((sum, key) => sum + widths[key], 0);
      }
      parts[parts.length - 1].push(i);
      left -= width;
    });
    return parts;
  }

  function partOf(table, columns, place) {
    const part = table.cloneNode(true);
    part.removeAttribute("id");
    if (part.caption) part.caption.append(` (${place})`);
    for (const row of part.rows) {
      let column = 0;
      for (const cell of [...row.cells]) {
        const left = columns.filter((place) => place >= column && place < column + cell.colSpan).length;
        column += cell.colSpan;
        if (left) cell.colSpan = left;
        else cell.remove();
      }
    }
    return part;
  }

  function toScreen() {
    document.querySelectorAll(".framed > .for-paper").forEach((part) => part.remove());
    document.querySelectorAll("table.dense").forEach((table) => table.classList.remove("dense"));
    document.querySelectorAll(".scroll.on-screen").forEach((frame) => frame.classList.remove("on-screen"));
  }

  levelfield.printing(toPaper, toScreen);
  levelfield.ready(() => document.querySelectorAll("table.sortable").forEach(enhance));
  return { add, fold, inert, rowsOf };
})();
