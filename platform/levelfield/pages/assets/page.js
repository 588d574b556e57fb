"use strict";
/* What every page uses: data files, texts, numbers, and elements that are made from text alone.
   No function takes HTML. Every string of a run reaches the page through `shown` and a text node. */
const levelfield = (() => {
  const root = document.documentElement.dataset.root;
  const language = document.documentElement.dataset.language;
  const SHORT = 16; // characters: such a word is not broken
  const parsed = new Map();
  const FIGURES = {}; // of data/figures.js: digits, the factor from what is stored to what is shown, the gate's name
  const promised = new Map();
  // What a reader could not see or what turns the direction of the text, as report/escapes.py has it.
  const OBEYED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  const ALONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

  function escaped(unit) {
    return "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0");
  }

  /* Return the text with \u202e in place of an invisible character. */
  function shown(value) {
    return String(value).replace(ALONE, escaped).replace(OBEYED, escaped);
  }

  /* A data file calls this with its name and its JSON. */
  function data(name, json) {
    parsed.set(name, JSON.parse(json));
    if (name === "figures") Object.assign(FIGURES, parsed.get(name));
  }

  /* A data file or a run that is not there. */
  class Missing extends Error {}

  /* Return a promise of the value of data/NAME.js. A page of a file may load a script; it may not fetch. */
  function load(name) {
    if (parsed.has(name)) return Promise.resolve(parsed.get(name));
    if (!/^[a-z0-9-]+$/.test(name)) return Promise.reject(new Missing(name));
    if (!promised.has(name)) {
      promised.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = `${root}data/${name}.js`;
        script.onload = () => (parsed.has(name) ? resolve(parsed.get(name)) : reject(new Missing(name)));
        script.onerror = () => reject(new Missing(name));
        document.head.append(script);
      }));
    }
    return promised.get(name);
  }

  /* Return the value of a data file that was loaded. */
  function loaded(name) {
    return parsed.get(name);
  }

  /* Return the text of a key with its values filled in; the key itself where the table lacks it. */
  function t(key, values) {
    const template = (parsed.get(`texts-${language}`) || {})[key];
    if (template === undefined) return key;
    return template.replace(/\{(\w+)\}/g, (whole, name) => (values && name in values ? values[name] : whole));
  }

  /* Return an element. Attributes are names and values of our own; children are elements or texts. */
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === true) made.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined) continue;
      made.append(child instanceof Node ? child : shown(child));
    }
    return made;
  }

  /* Return a text of a run, marked as English where the page is in another language. */
  function foreign(value, longest = Infinity) {
    const digest = /^(sha256:)?[0-9a-f]{40,64}$/.test(value); // its beginning tells it from others
    const most = digest ? (value.startsWith("sha256:") ? 19 : 12) : longest, size = String(value ?? "").length;
    return el("span", { lang: language === "en" ? null : "en", class: size > SHORT ? "foreign" : "foreign whole", title: size > most ? value : null },
      size > most ? `${value.slice(0, most)}…` : value);
  }

  const formats = new Map();
  function number(value, digits) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (!formats.has(digits)) {
      formats.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
    }
    return formats.get(digits).format(value).replace("-", "\u2212");
  }

  function signedPercent(value, digits) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    return `${value > 0 ? "+" : ""}${number(value * 100, digits)} %`;
  }

  /* Return a time in UTC: 2026-11-22 08:16, or its first part. */
  function when(seconds, length) {
    return new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, length || 16);
  }

  function figure(name, value) {
    const { digits, factor } = FIGURES[name];
    return value === null || value === undefined ? "–" : number(value * factor, digits);
  }

  function figureName(name) {
    return `${t(`figure.${name}`)} (${t(`unit.${name}`)})`;
  }

  function word(name) {
    const key = `word.${name}`;
    const text = t(key);
    const kind = /^[a-z ()-]+$/.test(name) ? `w-${name.replace(/[()]/g, "").replaceAll(" ", "-")}` : "";
    return el("span", { class: `word ${kind}` }, text === key ? name : text);
  }

  function runLink(slug, run, text) {
    return el("a", { href: `run.html#${slug}/${encodeURIComponent(run)}` }, text || run);
  }

  /* Append a section below the text of a key, and return it. */
  function section(place, key) {
    const made = el("section", {}, el("h2", {}, t(key)));
    place.append(made);
    return made;
  }

  /* What follows # in the address: #PART/PART?NAME=VALUE, which is shown and how. */
  function address() {
    const [path, ...rest] = location.hash.slice(1).split("?");
    return { path, settings: new URLSearchParams(rest.join("?")) };
  }

  function settings() {
    return address().settings;
  }

  /* Keep settings in the address: a value, several, or null for none. It is the same page, so nothing is loaded. */
  function remember(changes) {
    const { path, settings: changed } = address();
    for (const [name, values] of Object.entries(changes)) {
      changed.delete(name);
      for (const value of [values ?? []].flat()) changed.append(name, value);
    }
    const text = changed.toString().replaceAll("%3A", ":");
    history.replaceState(history.state, "", `#${path}${text ? `?${text}` : ""}`);
  }

  /* Return the parts of the address. A part that is not valid is an empty text. */
  function parts() {
    return address().path.split("/").map((part) => {
      try { return decodeURIComponent(part); } catch { return ""; }
    });
  }

  /* Put the text on the clipboard. Pages of plain http have no clipboard; there the old way is used. */
  async function copy(text, button) {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      const area = el("textarea", { class: "away", "aria-hidden": "true", tabindex: "-1" });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const label = button.textContent;
    button.textContent = t(done ? "copied" : "not-copied");
    announce(button.textContent);
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  /* Tell a screen reader. */
  function announce(text) {
    const place = document.getElementById("announced");
    if (place) place.textContent = text;
  }

  /* Call `toPaper` before the page is printed, when it is as wide as paper and as light, and `toScreen` after that.
     A page calls this after the scripts that it uses, and its own part comes before theirs. */
  const printed = [];
  function printing(toPaper, toScreen = () => {}) {
    printed.unshift({ toPaper, toScreen });
  }
  function print(isBegun, part) {
    document.documentElement.classList.toggle("paper", isBegun);
    for (const phase of printed) phase[part]();
  }
  addEventListener("beforeprint", () => print(true, "toPaper"));
  addEventListener("afterprint", () => print(false, "toScreen"));

  /* The pages of bars are one sheet of A4: what does not fit is left out, the last first, and a note says so. */
  const SHEET = 1015; // pixels between the margins, less what fonts may add
  function fitSheet(note) {
    let left = [];
    const last = (selector) => [...document.querySelectorAll(selector)].reverse();
    printing(() => {
      left = [];
      const rows = [...last(".training tbody tr:nth-child(n + 3)"), ...last("#means tbody tr:nth-child(n + 3)")];
      for (const part of [...last(".how"), ...last(".training ~ .training"), ...rows, ...last("#means ~ .training")]) {
        if (document.body.getBoundingClientRect().height <= SHEET) break;
        part.hidden = true;
        left.push(part);
        if (!part.matches(".how")) note.hidden = false;
      }
    }, () => {
      for (const part of [...left, note]) part.hidden = part === note;
    });
  }

  function ready(start) {
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
    else start();
  }

  ready(() => {
    const note = document.getElementById("not-printed");
    if (note) fitSheet(note);
    // The other language of the same run, and not of an empty page.
    for (const link of document.querySelectorAll("a.language")) {
      const page = link.getAttribute("href");
      link.addEventListener("click", () => { link.setAttribute("href", page + location.hash); });
    }
    for (const button of document.querySelectorAll("button[data-copy]")) {
      button.hidden = false;
      button.addEventListener("click", () => copy(document.getElementById(button.dataset.copy).textContent, button));
    }
  });

  return {
    data, load, loaded, Missing, t, el, foreign, shown, number, signedPercent, when, figure, figureName, FIGURES, word, runLink, section, parts,
    settings, remember, copy, announce, printing, ready, language,
  };
})();
