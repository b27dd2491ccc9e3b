// What is known of one run: sentence and figures, charts with findings, time, tables.
"use strict";

(() => {
  const {formatDuration, formatValue} = GlassNumbers;
  const {button, code, copy, download, icon, isolated, node, prose, section, swatch, syncChildren} = GlassElements;
  const {MAX_SMOOTHING, page, register, remembered, runPath, say} = GlassPage;
  const fileName = (panel, ending) => `${page.view.name.replace(/[^\p{L}\p{N}._-]+/gu, "-")}-${panel.id}.${ending}`;

  // ---- the top of the page ----

  register({
    id: "status",
    order: 10,
    build({view}) {
      this.root = node("section", "status");
      const name = node("h1", "", this.root);
      this.name = isolated("bdi", view.name, name);
      this.sentence = node("p", "sentence", this.root);
      this.sentence.setAttribute("aria-live", "polite");
      this.verdict = node("p", "verdict", this.root);
      this.figures = node("dl", "figures", this.root);
      return this.root;
    },
    update({view}) {
      const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };
      set(this.name, view.name);
      if (this.sentence.textContent !== view.sentence) { this.sentence.replaceChildren(); prose(view.sentence, this.sentence); }
      const holds = (text, part) => text.toLowerCase().includes(part.toLowerCase());
      const titles = view.findings.map(({title}) => title), said = titles.filter((title) => holds(view.sentence, title));
      const rest = view.verdict.filter((text) => !holds(view.sentence, text) && !said.some((title) => holds(text, title)));
      syncChildren(this.verdict, rest, (text) => text, (text) =>
        prose(`${text} `, node("span", titles.some((title) => holds(text, title)) ? "repeats" : "")));
      syncChildren(this.figures, view.figures, ({name}) => name, ({name, value, reason}) => {
        const cell = node("div");
        node("dt", "", cell, name);
        const held = node("dd", "", cell);
        isolated("bdi", value, held);
        if (reason) node("small", "", held, reason);
        return cell;
      });
    },
  });

  // ---- findings ----

  const showFinding = (id) => {
    const card = document.getElementById(`finding-${id}`);
    if (!card) return;
    card.querySelector("details")?.setAttribute("open", "");
    card.scrollIntoView({block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth"});
    card.classList.remove("found");
    void card.offsetWidth;  // starts the animation anew
    card.classList.add("found");
    card.focus({preventScroll: true});
  };
  const commandText = ({settings, command}) =>
    command ?? Object.entries(settings ?? {}).map(([name, value]) => `--${name}=${value}`).join(" ");

  function findingCard(finding, old) {
    const {id, severity, label, title, evidence, explanation, advice, more, commands} = finding;
    const card = node("article", `finding ${severity}`);
    Object.assign(card, {id: `finding-${id}`, tabIndex: -1});
    const head = node("h3", "", card);
    const texts = (commands ?? []).map(commandText).filter(Boolean);
    const marked = (text) => (text.includes("`") ? text : texts.reduce((all, one) => all.replace(one, `\`${one}\``), text));
    node("span", "badge", head, label);
    node("span", "", head, title);
    const isNews = severity !== "info" || Boolean(advice);
    if (isNews) prose(evidence, node("p", "evidence", card));
    if (advice) {
      const line = node("p", "advice", card);
      node("strong", "", line, `${say("report.what_to_do")}:`);
      prose(` ${marked(advice)}`, line);
    }
    for (const text of texts) {
      const line = node("div", "command", card);
      code(text, line);
      const copying = button(say("page.copy"), () => copy(text, copying, say("page.copied")), {iconName: "copy", className: "bare", parent: line});
    }
    const reasons = [explanation, more].filter(Boolean).join(" ");
    if (reasons || !isNews) {
      const details = node("details", "", card);
      details.open = old?.querySelector("details")?.open ?? false;
      node("summary", "", details, say("page.why"));
      if (!isNews) prose(evidence, node("p", "evidence", details));
      prose(reasons, node("p", "", details));
      code(id, node("p", "id", details));
    }
    for (const kind of ["pointerenter", "focusin"]) card.addEventListener(kind, () => page.group.setHighlight(id));
    for (const kind of ["pointerleave", "focusout"]) card.addEventListener(kind, () => page.group.setHighlight(null));
    return card;
  }

  const findingsPanel = {
    build({view}) {
      this.root = section("findings", say("report.findings.title"));
      this.count = node("span", "count", this.root.querySelector("h2"));
      this.list = node("div", "list", this.root);
      this.none = node("p", "none", this.root);
      this.known = new Set(view.findings.map(({id}) => id));
      this.update({view});
      return this.root;
    },
    update({view: {findings, live}, group}) {
      if (group) {
        group.findings = Object.fromEntries(findings.map(({id, at, severity}) => [id, {at, severity}]));
        group.refresh(({panel}) => panel?.marks?.length > 0);  // a pin has the colour of its finding
      }
      syncChildren(this.list, findings, ({id}) => id, findingCard);
      this.none.hidden = findings.length > 0;
      this.none.textContent = live ? say("page.no_findings_yet") : say("report.findings.none");
      this.count.textContent = findings.length || "";
      for (const finding of findings) {
        if (!this.known.has(finding.id)) ring(finding);
        this.known.add(finding.id);
      }
    },
  };

  // A new problem or warning: a mark in the title of the tab, and a notification if the bell is on.
  let rung = 0;
  function ring({severity, title, evidence}) {
    if (severity !== "problem" && severity !== "warning") return;
    if (document.hidden) document.title = `(${(rung += 1)}) ${page.view.name} · GlassGPT`;
    if (remembered("bell") !== "on" || !("Notification" in window) || Notification.permission !== "granted") return;
    new Notification(`${page.view.name}: ${title}`, {body: evidence, tag: title});
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !page.view) return;
    rung = 0;
    document.title = `${page.view.name} · GlassGPT`;
  });

  // ---- charts ----

  const toolbar = {
    build({group}) {
      this.root = node("div", "toolbar");
      Object.assign(this.root, {role: "toolbar", ariaLabel: say("page.view")});
      this.axes = node("div", "segments", this.root);
      Object.assign(this.axes, {role: "radiogroup", ariaLabel: say("page.x_axis")});
      const toggle = (label, action) => {
        const made = button(label, action, {className: "toggle", parent: this.root});
        made.ariaPressed = "false";
        return made;
      };
      this.logX = toggle(say("page.log_x"), () => group.set({logX: !group.state.logX}));
      this.plan = toggle(say("page.whole_plan"), () => group.set({toPlan: !group.state.toPlan, range: null}));
      const label = node("label", "smoothing", this.root);
      node("span", "", label, say("page.smoothing"));
      this.smooth = Object.assign(node("input", "", label), {type: "range", min: 0, max: MAX_SMOOTHING, step: 0.01});
      this.smoothed = node("output", "", label);
      this.smooth.addEventListener("input", () => group.set({smoothing: Number(this.smooth.value)}));
      this.reset = button(say("page.reset_zoom"), () => group.reset(), {className: "accent", parent: this.root});
      this.help = node("details", "menu help", this.root);
      node("summary", "", this.help, "?").ariaLabel = say("page.keys");
      node("p", "", this.help, say("page.keys_text"));
      this.update(page);
      return this.root;
    },
    update({group, view}) {
      const {state} = group;
      syncChildren(this.axes, view.axes, ({id}) => id, ({id, label}) => {
        const made = button(label, () => group.set({axis: id}));
        made.setAttribute("role", "radio");
        return made;
      });
      for (const one of this.axes.children) one.ariaChecked = String(one.dataset.key === state.axis);
      this.axes.hidden = view.axes.length < 2;
      this.logX.ariaPressed = String(state.logX);
      this.plan.ariaPressed = String(state.toPlan);
      const lastSeen = Math.max(0, ...Object.values(group.rows).map((rows) => rows.at(-1)?.[0] ?? 0));
      this.plan.hidden = view.planned === null || view.planned <= lastSeen * 1.02;
      this.smooth.value = state.smoothing;
      this.smoothed.textContent = state.smoothing ? state.smoothing.toFixed(2) : say("page.off");
      this.reset.hidden = state.range === null;
    },
  };

  function chartMenu(chart) {
    const menu = node("details", "menu");
    const summary = node("summary", "", menu);
    summary.append(icon("more"));
    Object.assign(summary, {title: say("page.chart_menu"), ariaLabel: say("page.chart_menu")});
    const list = node("div", "items", menu);
    const item = (label, action) => button(label, () => { menu.open = false; action(); }, {parent: list});
    item(say("page.log_y"), () => page.group.toggle("flipped", chart.panel.id));
    for (const kind of ["png", "svg"]) item(kind.toUpperCase(), async () => download(fileName(chart.panel, kind), await chart.picture(kind)));
    item("CSV", () => saveCsv(chart));
    if (!page.isOffline) item(say("page.csv_all"), () => location.assign(runPath("series.csv")));
    menu.addEventListener("focusout", (event) => { if (!menu.contains(event.relatedTarget)) menu.open = false; });
    return menu;
  }
  // Live, the server has every logged row; the offline file has those that it draws.
  function saveCsv({panel}) {
    const query = panel.series.map(({id}) => `series=${encodeURIComponent(id)}`).join("&");
    if (!page.isOffline) return location.assign(`${runPath("series.csv")}?${query}`);
    const lines = panel.series.flatMap(({id}) => (page.group.rows[id] ?? []).map((row) => [id, ...row].join(",")));
    return download(fileName(panel, "csv"), ["series,update,value,low,high", ...lines, ""].join("\r\n"), "text/csv");
  }
  function chartCard(panel, group) {
    const card = node("figure", panel.wide ? "wide" : "");
    card.id = `chart-${panel.id}`;
    const head = node("div", "head", card);
    const title = node("h3", "", head, panel.title);
    const caption = node("figcaption", "", card, panel.caption);
    const chart = group.addChart(panel, node("div", "chart", card));
    head.append(chartMenu(chart));
    const show = (now) => {
      if (title.textContent !== now.title) title.textContent = now.title;
      if (caption.textContent !== now.caption) caption.textContent = now.caption;
      chart.setPanel(now);
    };
    return {card, chart, show};
  }

  register({
    id: "charts",
    order: 20,
    viewChanged: () => toolbar.update(page),
    showFinding,
    build() {
      this.strip = null;
      this.root = section("charts", say("report.charts.title"));
      this.root.append(toolbar.build(page));
      const first = node("div", "first", this.root);
      this.main = node("div", "main", first);
      first.append(findingsPanel.build(page));
      this.grid = node("div", "grid", this.root);
      this.missing = node("details", "missing", this.root);
      node("summary", "", this.missing, say("page.not_drawn"));
      this.reasons = node("ul", "", this.missing);
      this.cards = new Map();
      return this.root;
    },
    update({view, group}, changed) {
      if (changed.has("findings") || changed.has("live")) findingsPanel.update(page);
      if (changed.has("axes") || changed.has("planned") || changed.has("rows")) toolbar.update(page);
      if (changed.has("panels")) this.showPanels(view, group);
      if (changed.has("ledger")) this.showStrip(view, group);
      if (changed.has("missing")) {
        this.missing.hidden = !view.missing.length;
        syncChildren(this.reasons, view.missing, (text) => text, (text) => node("li", "", null, text));
      }
    },
    showPanels(view, group) {
      const ids = new Set(view.panels.map(({id}) => id));
      for (const [id, {card, chart}] of this.cards) {
        if (ids.has(id)) continue;
        group.remove(chart);
        card.remove();
        this.cards.delete(id);
      }
      view.panels.forEach((panel, index) => {
        const held = this.cards.get(panel.id);
        if (held) {
          if (held.text !== JSON.stringify(panel)) held.show(panel);
        } else {
          const made = chartCard(panel, group);
          (index === 0 ? this.main : this.grid).append(made.card);
          this.cards.set(panel.id, made);
        }
        this.cards.get(panel.id).text = JSON.stringify(panel);
      });
      this.root.classList.toggle("no-chart", !view.panels.length);
    },
    // The ledger on the x axis of the first chart.
    showStrip({ledger, panels: [first]}, group) {
      if (!ledger?.bins?.edges?.length || !first) return;
      const {card, chart} = this.cards.get(first.id);
      if (this.strip) {
        this.strip.setLedger(ledger);
      } else {
        const host = node("div", "strip", card);
        this.strip = group.addStrip(ledger, host, chart, (from, to, bin) => this.showMoment(from, to, bin));
        this.strip.area.ariaLabel = say("page.time_strip");
        this.keys = node("div", "legend phases", card);
        this.moment = node("div", "moment", card);
        this.moment.setAttribute("aria-live", "polite");
        this.moment.hidden = true;
      }
      syncChildren(this.keys, ledger.bins.phases, ({id}) => id, ({label, colour}) => swatch(node("span", "key"), colour, label));
    },
    showMoment(from, to, bin) {
      const {view: {ledger}, group} = page, number = (value) => Math.round(value).toLocaleString("en-US");
      const inside = (ledger.moments ?? []).filter((one) => one.bin === bin);
      this.moment.replaceChildren();
      this.moment.hidden = false;
      const head = node("div", "head", this.moment);
      node("strong", "", head, `${group.updateWord} ${number(from)} – ${number(to)}`);
      button(say("page.close"), () => (this.moment.hidden = true), {iconName: "close", className: "bare", parent: head});
      const times = ledger.bins.phases.filter(({id}) => ledger.bins.seconds[id]?.[bin] > 0)
        .map(({id, label}) => `${label} ${formatDuration(ledger.bins.seconds[id][bin])}`);
      node("p", "", this.moment, times.join(" · "));
      const list = node("ul", "", this.moment);
      for (const {at, ms, text} of inside.slice(0, 40)) {
        const item = node("li", "", list);
        node("span", "at", item, number(at));
        node("span", "", item, text);
        if (ms !== null && ms !== undefined) node("span", "ms", item, formatValue(ms, "ms"));
      }
      if (!inside.length) node("li", "none", list, say("page.nothing_special"));
    },
  });

  register({
    id: "time",
    order: 30,
    build({view}) {
      if (!view.ledger?.phases?.length) return null;
      this.root = section("time", say("report.time.title"));
      const card = node("div", "card", this.root);
      this.total = node("p", "total", card);
      this.bar = node("div", "bar", card);
      this.bar.ariaHidden = "true";
      this.list = node("ul", "phase-list", card);
      this.caption = node("p", "caption", card);
      return this.root;
    },
    update({view: {ledger}}, changed) {
      if (!changed.has("ledger") || !ledger?.phases?.length) return;
      this.caption.textContent = ledger.caption ?? "";
      this.total.textContent = `${say("page.in_total")} ${ledger.total}`;
      const parts = ledger.phases.filter(({seconds}) => seconds > 0);
      syncChildren(this.bar, parts, ({id}) => id, ({colour, share}) => {
        const part = node("i");
        part.style.setProperty("--tone", `var(--${colour})`);
        part.style.flexGrow = share;
        return part;
      });
      syncChildren(this.list, parts, ({id}) => id, ({label, colour, time, percent}) => {
        const item = swatch(node("li"), colour, label);
        isolated("bdi", time, item);
        isolated("bdi", percent, item);
        return item;
      });
    },
  });

  // ---- tables ----

  function fillTable(table, rows, write) {
    for (const {name, value, reason} of rows) {
      const row = node("tr", "", table), cell = node("td");
      write(name, Object.assign(node("th", "", row), {scope: "row"}));
      row.append(cell);
      write(value, cell);
      if (reason) node("small", "", cell, reason);
    }
  }

  register({
    id: "tables",
    order: 90,
    build() {
      this.root = section("tables", say("page.details"));
      this.facts = node("div", "facts", this.root);
      this.code = node("div", "code-tables", this.root);
      return this.root;
    },
    update({view: {tables}}, changed) {
      if (!changed.has("tables")) return;
      syncChildren(this.facts, tables.filter((one) => !one.code && one.rows.length), ({id}) => id, ({title, rows}) => {
        const card = node("div", "card");
        node("h3", "", card, title);
        const table = node("table", "plain", card);
        fillTable(table, rows, (text, cell) => isolated("bdi", text, cell));
        return card;
      });
      syncChildren(this.code, tables.filter((one) => one.code), ({id}) => id, ({title, caption, rows}, old) => {
        const card = node("details", "card");
        card.open = old?.open ?? false;
        const summary = node("summary", "", card);
        node("h3", "", summary, title);
        node("small", "", summary, rows.length ? String(rows.length) : "");
        if (caption) node("p", "caption", card, caption);
        const table = node("table", "code", card);
        fillTable(table, rows, code);
        return card;
      });
    },
  });
})();
