// Draws the figures in the colours of the page, again when those change.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  function colour(name) {
    probe.style.color = name;
    return getComputedStyle(probe).color;
  }

  // A copy of a figure with every var(--name) replaced by the colour it stands for now.
  function painted(value) {
    if (typeof value === "string") return value.startsWith("var(--") ? colour(value) : value;
    if (Array.isArray(value)) return typeof value[0] === "object" && value[0] ? value.map(painted) : value.slice();
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, painted(inner)]));
  }

  // On a touch screen a finger scrolls the page; a chart that zooms would hold it.
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const config = {displayModeBar: false, responsive: true, showTips: false};

  function draw() {
    for (const [id, figure] of Object.entries(figures)) {
      const {data, layout} = painted(figure);
      layout.font.family = layout.hoverlabel.font.family = getComputedStyle(document.body).fontFamily;
      if (touch) {
        layout.dragmode = false;
        layout.xaxis.fixedrange = layout.yaxis.fixedrange = true;
      }
      Plotly.react(id, data, layout, config);
    }
  }

  // "": what the system prefers
  function setTheme(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    draw();
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
  }

  button.hidden = false;
  button.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  systemDark.addEventListener("change", draw);
  let onScreen = "";
  window.addEventListener("beforeprint", () => {
    onScreen = root.dataset.theme || "";
    setTheme("light");
  });
  window.addEventListener("afterprint", () => setTheme(onScreen));
  draw();
})();
