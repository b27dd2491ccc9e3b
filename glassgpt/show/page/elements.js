// Parts of the page: elements, icons, buttons, tables. All text goes through textContent.
"use strict";

const GlassElements = (() => {
  function node(tag, className = "", parent = null, text = "") {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text) made.textContent = text;
    parent?.append(made);
    return made;
  }
  // A spot of a colour of the style sheet, and its name.
  function swatch(parent, colour, text) {
    node("i", "", parent).style.setProperty("--tone", `var(--${colour})`);
    node("span", "", parent, text);
    return parent;
  }
  const SVG = "http://www.w3.org/2000/svg";
  const ICONS = {
    theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
    bell: "M6 16v-5a6 6 0 0 1 12 0v5l2 2H4zM10 20a2 2 0 0 0 4 0",
    keep: "M12 4v11m0 0-4-4m4 4 4-4M5 19h14",
    runs: "M4 6h16M4 12h16M4 18h16",
    copy: "M9 9h10v11H9zM5 15V4h10",
    more: "M5 12h.01M12 12h.01M19 12h.01",
    close: "M6 6l12 12M18 6 6 18",
    pin: "M12 3l2.7 5.6 6.1.8-4.5 4.3 1.1 6.1L12 16.9l-5.4 2.9 1.1-6.1L3.2 9.4l6.1-.8z",
  };
  function icon(name) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("class", `icon icon-${name}`);
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  }
  function button(label, action, {iconName = "", className = "", parent = null} = {}) {
    const made = node("button", className, parent);
    made.type = "button";
    if (iconName) made.append(icon(iconName));
    if (iconName && className.includes("bare")) Object.assign(made, {title: label, ariaLabel: label});
    else node("span", "", made, label);
    made.addEventListener("click", action);
    return made;
  }
  // A value from a log or of a machine: its own direction, whatever the language of the page.
  const isolated = (tag, text, parent, className = "") => {
    const made = node(tag, className, parent, text);
    made.dir = "auto";
    return made;
  };
  // For a canvas, which knows no language: right-to-left words keep their order beside a number or a bracket.
  const directed = (text) => (/[\u0590-\u08ff]/.test(text) ? `\u2067${text}\u2069` : text);
  // Each word is whole: a browser would break a line after the hyphens of a flag.
  function code(text, parent) {
    const made = Object.assign(node("code", "", parent), {dir: "ltr"});
    text.split(/( )/).forEach((word) => (word.startsWith("-") ? node("span", "flag", made, word) : made.append(word)));
    return made;
  }
  // What a line must not break: a number and its unit; a flag and its value.
  const WHOLE = /(\d[\d.,]*[dhm]? (?:\d\d[hms]|ms|s|h|[kMGTP]?i?B|[kMGTP]?FLOPs?(?:\/s)?|tokens\/s)(?![\p{L}\d]))|(--\w[\w.]*(?:="[^"]*"|=[\w./-]*\w)?)/u;
  // A sentence, with flags and what stands between backticks as code.
  function prose(text, parent) {
    text.split("`").forEach((part, index, {length}) => {
      if (index % 2 && index < length - 1) { code(part, parent); return; }
      const pieces = (index % 2 ? `\`${part}` : part).split(WHOLE);
      for (let at = 0; at < pieces.length; at += 3) {
        parent.append(pieces[at]);
        if (pieces[at + 1]) node("span", "whole", parent, pieces[at + 1]);
        if (pieces[at + 2]) code(pieces[at + 2], parent);
      }
    });
    return parent;
  }
  function section(id, title, className = "") {
    const made = node("section", className);
    made.id = id;
    const heading = node("h2", "", made, title);
    heading.id = `${id}-title`;
    made.setAttribute("aria-labelledby", heading.id);
    return made;
  }
  function download(name, content, type) {
    const link = node("a");
    const blob = content instanceof Blob ? content : new Blob([content], {type});
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  async function copy(text, at, note) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // no permission, or a file
      const field = node("textarea", "offscreen", document.body);
      field.value = text;
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    at.dataset.note = note;
    setTimeout(() => delete at.dataset.note, 1500);
  }
  // Adds what is new, keeps what is the same: elements stay, with their focus and what is open in them.
  function syncChildren(parent, items, keyOf, build) {
    const held = new Map([...parent.children].map((child) => [child.dataset.key, child]));
    const wanted = items.map((item) => {
      const key = keyOf(item), text = JSON.stringify(item), old = held.get(key);
      if (old?.dataset.text === text) return old;
      const made = build(item, old);
      Object.assign(made.dataset, {key, text});
      return made;
    });
    const kept = new Set(wanted);
    for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
    wanted.forEach((one, index) => { if (one !== parent.children[index]) parent.insertBefore(one, parent.children[index] ?? null); });
  }
  function sparkline(values) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 96 24");
    svg.setAttribute("class", "spark");
    svg.setAttribute("aria-hidden", "true");
    const known = values.filter((value) => Number.isFinite(value));
    if (known.length < 2) return svg;
    const low = Math.min(...known), span = Math.max(...known) - low || 1;
    const points = values.map((value, index) => [index, value]).filter(([, value]) => Number.isFinite(value))
      .map(([index, value]) => `${(1 + (94 * index) / (values.length - 1)).toFixed(1)},${(22 - (20 * (value - low)) / span).toFixed(1)}`);
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.join(" "));
    svg.append(line);
    return svg;
  }

  return {button, code, copy, directed, download, icon, isolated, node, prose, section, sparkline, swatch, syncChildren};
})();
