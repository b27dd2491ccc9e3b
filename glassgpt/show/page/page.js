// The page around the charts. Offline, the document is in the page; live, it comes from the server, and what
// is new follows as events. Everything that is shown goes through textContent.
//
// A panel is {id, order, build(page) -> element or null, update(page, changed)}. `changed` holds the keys of
// the View that are new: all of them after building. A panel with nothing to show is null, and is built once
// there is something. It may have `viewChanged(page)`, after a zoom or another axis, and `showFinding(id)`. It is added by
//
//   GlassPage.register({id: "mine", order: 45, build: ({view}) => …});
"use strict";

const GlassPage = (() => {
  const {Group} = GlassCharts;
  const {button, icon, node} = GlassElements;
  const readBlock = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
  const offline = readBlock("document");
  const words = readBlock("words") ?? {};
  const say = (key) => words[key] ?? key;
  const root = document.documentElement;
  const DEFAULT_SMOOTHING = 0.8;  // nine rows: noise becomes pale, and a line can be read
  const MAX_SMOOTHING = 0.99;
  const REFRESH_MS = 5000;  // of the list of runs, and of compared runs that go on
  const MAX_ROWS = 3000;  // of a series; above, the rows are asked for anew, decimated

  const page = {view: null, run: null, runs: [], folder: "", group: null, compared: [], baseline: null, isOffline: Boolean(offline)};
  const panels = [];
  const register = (panel) => {
    panels.push(panel);
    panels.sort((one, other) => one.order - other.order);
    return panel;
  };

  const remember = (key, value) => { try { localStorage.setItem(`glass-${key}`, value); } catch { /* a private window */ } };
  const remembered = (key) => { try { return localStorage.getItem(`glass-${key}`); } catch { return null; } };

  // ---- the view in the address ----

  function writeHash() {
    if (!page.group) return;
    const {axis, logX, smoothing, range, toPlan, hidden, flipped} = page.group.state;
    const values = {
      run: page.isOffline ? "" : page.run, x: axis === "update" ? "" : axis, logx: logX ? "1" : "", smooth: smoothing === DEFAULT_SMOOTHING ? "" : String(smoothing),
      range: range ? range.map((update) => Math.round(update * 10) / 10).join("-") : "", plan: toPlan ? "1" : "",
      hide: [...hidden].join(","), log: [...flipped].join(","), with: page.compared.join(","), base: page.baseline ?? "",
    };
    const text = new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }
  const hashValues = () => new URLSearchParams(location.hash.slice(1));
  function stateFromHash() {
    const values = hashValues(), list = (key) => new Set((values.get(key) ?? "").split(",").filter(Boolean));
    const range = (values.get("range") ?? "").split("-").map(Number), smooth = Number(values.get("smooth") ?? NaN);
    return {
      axis: values.get("x") || "update", logX: values.has("logx"), smoothing: smooth >= 0 && smooth <= MAX_SMOOTHING ? smooth : DEFAULT_SMOOTHING,
      range: range.length === 2 && range[1] > range[0] ? range : null, toPlan: values.has("plan"), hidden: list("hide"), flipped: list("log"),
    };
  }

  const runPath = (what, id = page.run) => `api/runs/${encodeURIComponent(id)}/${what}`;
  async function post(path, body, signal) {
    const response = await fetch(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});
    if (!response.ok) throw new Error(await problemOf(response));
    return response;
  }
  async function getJson(path) {
    const response = await fetch(path);
    if (!response.ok) throw new Error(await problemOf(response));
    return response.json();
  }
  async function problemOf(response) {
    const text = await response.text();
    try { return JSON.parse(text).error ?? text; } catch { return text || `HTTP ${response.status}`; }
  }
  async function* jsonLines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {done, value} = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines) if (line.trim()) yield JSON.parse(line);
      if (done) return;
    }
  }

  // ---- the bar at the top ----

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  function setTheme(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    page.group?.repaint();
  }

  const bar = {
    build() {
      this.root = node("header", "bar-top");
      const start = node("div", "start", this.root);
      node("span", "brand", start, "GlassGPT");
      if (!page.isOffline) {
        this.runs = button(say("page.runs"), () => toggleRuns(), {iconName: "runs", parent: start});
        Object.assign(this.runs, {ariaExpanded: "false", ariaLabel: say("page.runs")});  // a phone shows the icon only
      }
      this.state = node("span", "state", start);
      const end = node("div", "end", this.root);
      this.requests = node("div", "requests", end);
      if (!page.isOffline) {
        this.bell = button(say("page.bell"), () => this.toggleBell(), {iconName: "bell", className: "bare", parent: end});
        this.keep = node("a", "button bare", end);
        this.keep.append(icon("keep"));
        Object.assign(this.keep, {title: say("page.keep"), ariaLabel: say("page.keep"), hidden: true});
        this.showBell();
      }
      button(say("report.theme_button"), () => { const next = isDark() ? "light" : "dark"; remember("theme", next); setTheme(next); }, {iconName: "theme", className: "bare theme", parent: end});
      return this.root;
    },
    update({view, isOffline, isConnected, hasEnded}) {
      const isLive = view.live && !isOffline && !hasEnded;
      const isLost = !isOffline && !isConnected;
      this.state.className = `state ${isLost ? "lost" : isLive ? "live" : ""}`;
      this.state.textContent = isLost ? say("page.connection_lost") : isLive ? say("page.live") : view.trainer === "GlassGPT" ? "" : view.trainer;
      if (isOffline) return;
      this.keep.href = runPath("report.html");
      this.keep.hidden = false;
      const wanted = view.can_request && isLive ? "save stop" : "";
      if (this.requests.dataset.now === wanted) return;
      this.requests.dataset.now = wanted;
      this.requests.replaceChildren(...wanted.split(" ").filter(Boolean).map((action) => this.request(action)));
    },
    // Asked twice: the first click asks back, in the page.
    request(action) {
      const [word, question, answer] = {
        save: [say("page.save"), say("page.really_save"), say("page.asked_save")],
        stop: [say("page.stop"), say("page.really_stop"), say("page.asked_stop")],
      }[action];
      const held = node("span", `request ${action}`);
      const ask = () => {
        held.replaceChildren(node("span", "", null, question));
        button(word, () => send(), {className: action === "stop" ? "danger" : "primary", parent: held}).focus();
        button(say("page.cancel"), () => offer(), {parent: held});
      };
      const offer = () => { held.replaceChildren(); button(word, ask, {parent: held}); };
      const send = async () => {
        held.replaceChildren(node("span", "note", null, answer));
        try {
          await post(runPath("requests"), {action});
          setTimeout(offer, 6000);
        } catch (error) {
          held.firstChild.textContent = error.message;
          setTimeout(offer, 6000);
        }
      };
      offer();
      return held;
    },
    async toggleBell() {
      const isOn = remembered("bell") === "on";
      if (!isOn && "Notification" in window && Notification.permission === "default") await Notification.requestPermission();
      remember("bell", isOn ? "off" : "on");
      this.showBell();
    },
    showBell() {
      const isOn = remembered("bell") === "on" && "Notification" in window && Notification.permission === "granted";
      this.bell.ariaPressed = String(isOn);
    },
  };

  function toggleRuns(isOpen = GlassPage.runList.root.hidden) {
    GlassPage.runList.root.hidden = !isOpen;
    bar.runs.ariaExpanded = String(isOpen);
    if (isOpen) { loadRuns(); GlassPage.runList.search.focus(); }
  }

  // ---- the whole ----

  function render() {
    const main = node("main");
    document.title = `${page.view.name} · GlassGPT`;
    Object.assign(root, {lang: page.view.language, dir: page.view.direction});
    page.group?.plots.slice().forEach((plot) => page.group.remove(plot));
    page.group = new Group({
      axes: page.view.axes, knots: page.view.knots, planned: page.view.planned, title: page.view.name,
      onChange: () => { writeHash(); panels.forEach((panel) => panel.element && panel.viewChanged?.(page)); wantDetail(); },
      onFinding: (id) => panels.forEach((panel) => panel.element && panel.showFinding?.(id)),
    });
    Object.assign(page.group.state, stateFromHash());
    page.group.setAxes(page.view.axes, page.view.knots, page.view.planned);
    page.group.rows = page.rows;
    for (const panel of panels) {
      if (buildPanel(panel)) main.append(panel.element);
    }
    page.main.replaceWith(main);
    page.main = main;
    page.group.refresh();
    bar.update(page);
    if (page.group.state.range) wantDetail();
  }

  const EVERYTHING = {has: () => true};
  function buildPanel(panel) {
    panel.element = panel.build(page);
    if (panel.element) panel.update?.(page, EVERYTHING);
    return panel.element;
  }

  function notify(changed) {
    for (const panel of panels) {
      if (panel.element) { panel.update?.(page, changed); continue; }
      if (!buildPanel(panel)) continue;
      const before = panels.slice(0, panels.indexOf(panel)).findLast((one) => one.element)?.element;
      if (before) before.after(panel.element);
      else page.main.prepend(panel.element);
    }
    bar.update(page);
  }

  // Zoomed in: finer rows of the range, a moment after the last change of it.
  let detailTimer = 0;
  function wantDetail() {
    clearTimeout(detailTimer);
    const {range} = page.group.state, {detail} = page.group;
    if (page.isOffline || !range) return;
    const width = range[1] - range[0];
    const isFine = detail && range[0] >= detail.first && range[1] <= detail.last && width > (detail.last - detail.first) / 4;
    if (isFine) return;
    detailTimer = setTimeout(async () => {
      const first = Math.max(0, Math.floor(range[0] - width / 2)), last = Math.ceil(range[1] + width / 2), {run} = page;
      const {rows} = await getJson(`${runPath("rows", run)}?first=${first}&last=${last}&points=2000`);
      if (run === page.run && page.group.state.range) page.group.setDetail(first, last, rows);
    }, 200);
  }

  let source = null;
  function follow(cursor) {
    source?.close();
    const {run} = page;
    source = new EventSource(`${runPath("events", run)}?cursor=${encodeURIComponent(cursor)}`);
    const on = (kind, action) => source.addEventListener(kind, (event) => {
      cursor = event.lastEventId || cursor;
      if (run === page.run) action(JSON.parse(event.data || "{}"));
    });
    const setConnected = (isConnected) => { page.isConnected = isConnected; bar.update(page); };
    source.onopen = () => setConnected(true);
    source.onerror = ({target}) => {
      setConnected(false);
      // Refused, as by a server with too many tabs: then the browser does not try again by itself.
      if (target.readyState === EventSource.CLOSED) setTimeout(() => target === source && follow(cursor), REFRESH_MS);
    };
    on("append", ({series, rows}) => {
      page.group.append(series, rows);
      if (page.group.rows[series].length > MAX_ROWS) decimate();
    });
    on("supersede", ({from_iter: update}) => page.group.supersede(update));
    on("reset", () => open(run));
    on("summary", (changes) => {
      Object.assign(page.view, changes);
      if (changes.live) page.hasEnded = false;
      const changed = new Set(Object.keys(changes));
      if (["axes", "knots", "planned"].some((key) => changed.has(key))) page.group.setAxes(page.view.axes, page.view.knots, page.view.planned);
      notify(changed);
    });
    // The stream stays open: the server ends when no tab is left, and a run may be resumed.
    on("end", () => { page.hasEnded = true; bar.update(page); });
  }
  let isDecimating = false;
  async function decimate() {
    if (isDecimating) return;
    isDecimating = true;
    try {
      const {run} = page;
      const last = Math.max(...Object.values(page.group.rows).map((rows) => rows.at(-1)?.[0] ?? 0));
      const {rows} = await getJson(`${runPath("rows", run)}?first=0&last=${last}&points=1500`);
      if (run !== page.run) return;
      // Rows that arrived meanwhile are kept.
      for (const [series, held] of Object.entries(page.group.rows)) rows[series] = [...(rows[series] ?? []), ...held.filter((row) => row[0] > last)];
      page.group.setRows(rows);
    } finally {
      isDecimating = false;
    }
  }

  async function loadRuns() {
    const {folder, selected, runs} = await getJson("api/runs");
    const isNew = runs.map(({id}) => id).join() !== page.runs.map(({id}) => id).join();
    Object.assign(page, {folder, runs});
    GlassPage.runList.show();
    if (isNew && page.view) notify(new Set(["runs"]));
    return selected;
  }

  function fail(error) {
    page.hasFailed = true;
    if (page.main.querySelector(".failure")?.textContent === error.message) return;  // once for a screen reader
    const note = node("p", "failure", null, error.message);
    note.setAttribute("role", "alert");
    page.main.replaceChildren(note);
  }

  // A long file is read first: until then the answer is the share of it that is read; 1 before the first line of a run.
  async function readView(run) {
    for (;;) {
      const answer = await getJson(runPath("view", run));
      if (answer.view || run !== page.run) return answer;
      const isRead = answer.reading === 1;
      const note = node("p", "reading", null, isRead ? say("watch_view.nothing_yet") : say("page.reading_file"));
      if (!isRead) node("progress", "", note).value = answer.reading ?? 0;
      page.main.replaceChildren(note);
      await new Promise((resume) => setTimeout(resume, isRead ? 1000 : 200));
    }
  }

  async function open(run) {
    source?.close();
    Object.assign(page, {run, hasEnded: false, hasFailed: false, isConnected: true});
    try {
      const {view, rows, cursor} = await readView(run);
      if (run !== page.run) return;
      Object.assign(page, {view, rows});
      page.compared = [];
      page.baseline = hashValues().get("base");
      const wanted = (hashValues().get("with") ?? "").split(",").filter(Boolean);
      render();
      writeHash();
      if (wanted.length) GlassPage.compareWith(wanted);
      follow(cursor);
      GlassPage.runList.show();
    } catch (error) {
      fail(error);
    }
  }

  async function start() {
    const theme = remembered("theme");
    if (theme) root.dataset.theme = theme;
    const host = document.getElementById("page");
    page.main = node("main");
    host.append(bar.build());
    if (!page.isOffline) host.append(GlassPage.runList.build());
    host.append(page.main, node("footer", "", null, page.isOffline ? say("report.footer") : say("page.footer_live")));
    for (const kind of ["beforeprint", "afterprint"]) window.addEventListener(kind, () => beforeOrAfterPrint(kind === "beforeprint"));
    if (page.isOffline) {
      Object.assign(page, {view: offline.view, rows: offline.rows});
      render();
      window.addEventListener("hashchange", () => page.group.set(stateFromHash()));
      return;
    }
    try {
      const selected = await loadRuns();
      const wanted = hashValues().get("run");
      const run = page.runs.find(({id}) => id === wanted)?.id ?? selected ?? (page.runs.length === 1 ? page.runs[0].id : null);
      if (run) await open(run);
      else toggleRuns(true);
    } catch (error) {
      fail(error);
    }
    setInterval(() => GlassPage.refresh().catch(() => {}), REFRESH_MS);  // the events say that the server is gone
    window.addEventListener("hashchange", () => {
      const asked = hashValues().get("run");
      if (asked && asked !== page.run) { toggleRuns(false); open(asked); } else page.group?.set(stateFromHash());
    });
  }

  // On paper: light, and everything unfolded.
  let onScreen = {};
  function beforeOrAfterPrint(isBefore) {
    if (isBefore) {
      onScreen = {theme: root.dataset.theme ?? "", closed: [...document.querySelectorAll("main details:not(.menu):not([open])")]};
      onScreen.closed.forEach((details) => (details.open = true));
      setTheme("light");
      page.group?.flush();
    } else {
      onScreen.closed.forEach((details) => (details.open = false));
      setTheme(onScreen.theme);
    }
  }

  document.addEventListener("DOMContentLoaded", start);
  return {MAX_SMOOTHING, getJson, jsonLines, loadRuns, notify, open, page, post, register, remembered, runPath, say, toggleRuns, writeHash};
})();
