// Other runs: the list of a folder, and the comparison with some of them.
"use strict";

(() => {
  const {formatCount, formatValue} = GlassNumbers;
  const {button, code, isolated, node, prose, section, sparkline, swatch, syncChildren} = GlassElements;
  const LETTERS = "ABCDEFGH";
  const NUMBERS = ["best_val", "last_loss", "updates", "tokens_per_s", "modified"];  // columns
  const MAX_COMPARED = 6;  // --run-1 … in style.css
  const {getJson, loadRuns, notify, open, page, register, runPath, say, toggleRuns, writeHash} = GlassPage;

  // ---- compare with other runs ----

  const comparison = {
    id: "compare",
    order: 50,
    build({isOffline, runs}) {
      if (isOffline || runs.length < 2) return null;
      this.root = section("compare", say("page.compare"));
      const card = node("div", "card", this.root);
      const row = node("div", "chosen", card);
      this.chips = node("div", "chips", row);
      this.choice = node("select", "", row);
      this.choice.ariaLabel = say("page.add_run");
      this.choice.addEventListener("change", () => { if (this.choice.value) compareWith([...page.compared, this.choice.value]); });
      this.note = node("p", "note", card);
      this.sentences = node("ul", "sentences", card);
      this.table = node("table", "", node("div", "differences", card));
      // What one of the logs does not say may be the same in all runs.
      this.partly = node("details", "differences", card);
      node("summary", "", this.partly, say("page.partly_known"));
      this.partlyTable = node("table", "", this.partly);
      return this.root;
    },
    update({runs, run, compared, baseline}, changed) {
      if (!changed.has("runs") && !changed.has("compared")) return;
      const others = runs.filter(({id}) => id !== run && !compared.includes(id));
      this.choice.replaceChildren(new Option(say("page.add_run"), ""), ...others.map(({id, name}) => new Option(name, id)));
      this.choice.hidden = !others.length || compared.length >= MAX_COMPARED;
      const shown = compared.length ? [run, ...compared] : [];
      // The sentences call the runs A, B, C: the baseline first.
      const order = [baseline ?? run, ...shown.filter((id) => id !== (baseline ?? run))];
      const items = shown.map((id, index) => ({id, name: nameOf(id), colour: index ? `run-${index}` : "train", letter: LETTERS[order.indexOf(id)], isBaseline: id === order[0]}));
      syncChildren(this.chips, items, ({id}) => id, ({id, name, colour, letter, isBaseline}) => {
        const chip = node("span", `chip${isBaseline ? " baseline" : ""}`);
        node("i", "", chip).style.setProperty("--tone", `var(--${colour})`);
        node("b", "", chip, letter);
        isolated("bdi", name, chip);
        const pin = button(say("page.baseline"), () => { page.baseline = id; compareWith(page.compared); }, {iconName: "pin", className: "bare", parent: chip});
        pin.ariaPressed = String(isBaseline);
        if (id !== run) button(say("page.remove"), () => compareWith(page.compared.filter((one) => one !== id)), {iconName: "close", className: "bare", parent: chip});
        return chip;
      });
      this.note.textContent = compared.length ? "" : say("page.compare_hint");
      this.note.hidden = compared.length > 0;
      if (!compared.length) this.show({sentences: [], causes: [], differences: []}, []);
    },
    show({sentences = [], causes = [], differences = []}, names) {
      const text = JSON.stringify([sentences, causes, differences, names]);
      if (text === this.text) return;  // what is selected or unfolded stays
      this.text = text;
      const lines = [...sentences, ...causes];
      this.sentences.replaceChildren(...lines.map((text) => prose(text, node("li"))));
      this.sentences.hidden = !lines.length;
      const isKnown = ({values}) => !values.includes(null);
      this.fill(this.table, differences.filter(isKnown), names);
      this.fill(this.partlyTable, differences.filter((one) => !isKnown(one)), names);
    },
    fill(table, differences, names) {
      table.parentNode.hidden = !differences.length;
      table.replaceChildren();
      const head = node("tr", "", node("thead", "", table));
      for (const name of [say("page.setting"), ...names]) Object.assign(isolated("th", name, head), {scope: "col"});
      const body = node("tbody", "", table);
      for (const {name, values} of differences) {
        const row = node("tr", "", body);
        code(name, Object.assign(node("th", "", row), {scope: "row"}));
        const shown = (value) => (value === null ? "–" : String(value).replace(/^([0-9a-f]{12})[0-9a-f]{28,}$/, "$1…"));
        for (const value of values) code(shown(value), node("td", "", row));
      }
    },
  };
  register(comparison);

  const nameOf = (id) => page.runs.find((run) => run.id === id)?.name ?? id;

  async function compareWith(ids) {
    page.compared = [...new Set(ids)].filter((id) => id !== page.run && page.runs.some((run) => run.id === id)).slice(0, MAX_COMPARED);
    if (page.baseline !== page.run && !page.compared.includes(page.baseline)) page.baseline = null;
    writeHash();
    notify(new Set(["compared"]));
    runList.arrange();
    try {
      if (await drawCompared()) await explainCompared();
    } catch (error) {
      comparison.note.hidden = false;
      comparison.note.textContent = error.message;
    }
  }
  // False: another choice was made meanwhile. `isStale`: which of them are fetched although they are drawn.
  async function drawCompared(isStale = () => false) {
    const others = page.compared;
    const overlays = await Promise.all(others.map(async (id, index) => {
      const drawn = page.group.overlays.find((one) => one.id === id), colour = `run-${index + 1}`;
      if (drawn && !isStale(id)) return {...drawn, colour};
      const {view, rows} = await getJson(runPath("view", id));
      return {id, name: view.name, colour, knots: view.knots, rows, panels: view.panels};
    }));
    if (others === page.compared) page.group.setOverlays(overlays);
    return others === page.compared;
  }
  // Why they differ. Of runs that go on it is asked again, in at most a tenth of the time: it may take long.
  const explained = {isStale: false, nextAt: 0};
  async function explainCompared() {
    const others = page.compared, first = page.baseline ?? page.run, startedAt = performance.now();
    explained.isStale = false;
    if (!others.length) return;
    const order = [first, ...[page.run, ...others].filter((id) => id !== first)];
    const found = await getJson(`api/compare?${order.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`);
    if (others !== page.compared) return;
    comparison.show(found, order.map((id, index) => `${LETTERS[index]} ${nameOf(id)}`));
    explained.nextAt = performance.now() + 9 * (performance.now() - startedAt);
  }
  // Once in a while: what became of runs that go on, in the list, in the charts and in what is said of them.
  async function refresh() {
    if (page.hasFailed && page.run) await open(page.run);  // it may be there by now
    const isLive = (id) => page.runs.some((run) => run.id === id && run.live);
    const wasLive = new Set(page.compared.length ? [page.run, ...page.compared].filter(isLive) : []);
    explained.isStale ||= wasLive.size > 0;
    if (document.hidden || (runList.root.hidden && !explained.isStale)) return;
    const hadRuns = page.runs.length > 0;
    await loadRuns();
    if (!page.run && !hadRuns && page.runs.length === 1) {  // the first one, which the page waited for
      toggleRuns(false);
      await open(page.runs[0].id);
    }
    if (page.compared.some((id) => wasLive.has(id))) await drawCompared((id) => wasLive.has(id));
    if (explained.isStale && performance.now() >= explained.nextAt) await explainCompared();
  }

  // ---- all runs of a folder ----

  const runList = {
    sortKey: "modified", isDown: true, filter: "",
    build() {
      this.root = Object.assign(node("section", "runs"), {id: "runs", hidden: true});
      const head = node("div", "head", this.root);
      node("h2", "", head, say("page.runs"));
      this.folder = isolated("span", "", head, "folder");
      this.search = Object.assign(node("input", "", head), {type: "search", placeholder: say("page.filter"), ariaLabel: say("page.filter")});
      this.search.addEventListener("input", () => { this.filter = this.search.value.toLowerCase(); this.arrange(); });
      const scroll = node("div", "scroll", this.root);
      this.table = node("table", "", scroll);
      const row = node("tr", "", node("thead", "", this.table));
      const columns = {
        name: say("page.column_name"), state_label: say("page.column_state"), spark: say("page.column_spark"),
        best_val: say("page.column_best_val"), last_loss: say("page.column_last_loss"), updates: say("page.column_updates"),
        tokens_per_s: say("page.column_tokens_per_s"), modified: say("page.column_modified"), compare: say("page.column_compare"),
      };
      this.heads = Object.entries(columns).map(([key, title]) => {
        const cell = Object.assign(node("th", NUMBERS.includes(key) ? "number" : "", row), {scope: "col"});
        cell.dataset.column = key;
        if (["spark", "compare"].includes(key)) cell.textContent = title;
        else button(title, () => this.sortBy(key), {parent: cell});
        return cell;
      });
      this.body = node("tbody", "", this.table);
      this.none = node("p", "none", this.root, say("page.no_runs"));
      return this.root;
    },
    sortBy(key) {
      this.isDown = this.sortKey === key ? !this.isDown : !["name", "state_label", "best_val", "last_loss"].includes(key);
      this.sortKey = key;
      this.arrange();
    },
    show() {
      this.folder.textContent = page.folder;
      this.none.hidden = page.runs.length > 0;
      this.table.parentNode.hidden = this.search.hidden = !page.runs.length;
      this.arrange();
    },
    arrange() {
      const value = (run) => run[this.sortKey] ?? null, sign = this.isDown ? -1 : 1;
      const kept = page.runs.filter((run) => [run.name, run.state_label, run.dataset, run.model].join(" ").toLowerCase().includes(this.filter));
      kept.sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === null || b === null) return (a === null) - (b === null);  // unknown last
        return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
      });
      for (const cell of this.heads) cell.ariaSort = cell.dataset.column === this.sortKey ? (this.isDown ? "descending" : "ascending") : "none";
      const isFull = page.compared.length >= MAX_COMPARED;
      const items = kept.map((run) => {
        const isCurrent = run.id === page.run, isChosen = isCurrent || page.compared.includes(run.id);
        return {run, isCurrent, isChosen, isRefused: isFull && !isChosen};
      });
      syncChildren(this.body, items, (item) => item.run.id, (item) => this.row(item));
    },
    row({run, isCurrent, isChosen, isRefused}) {
      const row = node("tr", isCurrent ? "current" : "");
      const link = node("a", "", Object.assign(node("th", "", row), {scope: "row"}));
      link.href = `#run=${encodeURIComponent(run.id)}`;
      isolated("bdi", run.name, link);
      const about = [run.model, run.dataset].filter(Boolean).join(" · ");
      if (about) isolated("bdi", about, node("small", "", link));
      const state = node("td", "", row);
      node("span", `state ${run.live ? "live" : ""}`, state, run.state_label);
      node("td", "", row).append(sparkline(run.spark ?? []));
      const number = (value, format) => isolated("td", value === null || value === undefined ? "–" : format(value), row, "number");
      number(run.best_val, (value) => formatValue(value));
      number(run.last_loss, (value) => formatValue(value));
      number(run.updates, (value) => (run.planned ? `${value.toLocaleString("en-US")} / ${formatCount(run.planned)}` : value.toLocaleString("en-US")));
      number(run.tokens_per_s, (value) => formatCount(value));
      number(run.modified, (value) => new Date(1000 * value).toLocaleString("sv", {dateStyle: "short", timeStyle: "short"}));
      const box = Object.assign(node("input", "", node("td", "", row)), {
        type: "checkbox", checked: isChosen, disabled: isCurrent || isRefused,
        title: isRefused ? say("page.compare_full") : "", ariaLabel: `${say("page.compare")}: ${run.name}`,
      });
      box.addEventListener("change", () => {
        if (!page.view) open(run.id);  // the first one: others are drawn into its charts
        else compareWith(box.checked ? [...page.compared, run.id] : page.compared.filter((id) => id !== run.id));
      });
      return row;
    },
  };

  Object.assign(GlassPage, {runList, compareWith, refresh});
})();
