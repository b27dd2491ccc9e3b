// What the model has learned: the ladder of n-gram tables, a passage coloured by loss at each evaluation, the loss
// by kind of token and position, and the attention of its heads, asked of a checkpoint.
"use strict";

(() => {
  const {button, isolated, node, section, syncChildren} = GlassElements;
  const {page, post, register, runPath, say} = GlassPage;
  const number = (value, digits) => value.toFixed(digits);
  const count = (value) => value.toLocaleString("en-US");
  const LOSS_BOUNDS = [0.5, 1.5, 3, 5];  // nats; above the last is the fifth colour
  const DIFFERENCE_BOUNDS = [-1, -0.2, 0.2, 1];
  const level = (value, bounds) => bounds.filter((bound) => value >= bound).length;
  const shown = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

  register({
    id: "learned",
    order: 25,
    build({view}) {
      if (!view.learned?.evaluations?.length && !view.learned?.ladder) return null;
      this.root = section("learned", say("page.learned"));
      this.sentence = node("p", "", this.root);
      this.columns = node("div", "columns", this.root);
      this.buildPassage();
      this.buildLadder();
      this.partsCard = node("div", "card wide", this.columns);
      node("h3", "", this.partsCard, say("page.parts"));
      this.parts = node("div", "parts", this.partsCard);
      this.buildHeads();
      return this.root;
    },
    update({view}, changed) {
      if (!changed.has("learned") && !changed.has("checkpoints") && !changed.has("live")) return;
      const {evaluations = [], ladder, looks = []} = view.learned;
      const isLast = !this.evaluations || Number(this.slider.value) === Number(this.slider.max);
      const at = this.evaluations?.[Number(this.slider.value)]?.at;
      this.evaluations = evaluations;
      this.looks = new Map(looks.map((look) => [look.at, look]));
      this.saved = new Set(view.checkpoints.map((one) => one.at));
      this.sentence.textContent = ladder?.sentence ?? "";
      this.showLadder(ladder);
      this.passageCard.hidden = this.partsCard.hidden = !evaluations.length;
      this.slider.max = Math.max(0, evaluations.length - 1);
      this.slider.hidden = evaluations.length < 2;
      const index = isLast ? evaluations.length - 1 : evaluations.findIndex((one) => one.at === at);
      this.slider.value = Math.max(0, index);
      this.nameAgainst();
      this.show();
    },

    // ---- the passage, and the loss apart ----

    buildPassage() {
      this.passageCard = node("div", "card kept passage", this.columns);
      const head = node("div", "head", this.passageCard);
      node("h3", "", head, say("page.passage"));
      this.at = node("output", "", head);
      this.slider = Object.assign(node("input", "", this.passageCard), {type: "range", min: 0, step: 1, ariaLabel: say("page.checkpoint")});
      this.slider.addEventListener("input", () => this.show());
      this.text = isolated("pre", "", this.passageCard, "tokens");
      this.text.tabIndex = 0;
      this.text.addEventListener("pointerover", (event) => this.point(event.target.dataset.index));
      this.text.addEventListener("focusin", (event) => this.point(event.target.dataset.index));
      this.text.addEventListener("keydown", (event) => {
        const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        if (!step) return;
        event.preventDefault();
        this.point(Math.min(Math.max(0, Number(this.pointed ?? -1) + step), this.text.children.length - 1));
      });
      this.detail = node("div", "detail", this.passageCard);
      this.detail.setAttribute("aria-live", "polite");
      const row = node("div", "row", this.passageCard);
      this.legend = node("div", "legend levels", row);
      const label = node("label", "against", row);
      node("span", "", label, say("page.compare_with"));
      this.against = node("select", "", label);
      this.against.addEventListener("change", () => this.show());
    },
    nameAgainst() {
      const chosen = this.against.value;
      const options = [["", "–"], ...this.evaluations.map(({at}) => [String(at), count(at)])];
      this.against.replaceChildren(...options.map(([value, text]) => Object.assign(node("option", "", null, text), {value})));
      this.against.value = options.some(([value]) => value === chosen) ? chosen : "";
    },
    show() {
      const now = this.evaluations[Number(this.slider.value)];
      if (!now) return;
      const other = this.evaluations.find(({at}) => String(at) === this.against.value);
      const isDifference = Boolean(other) && other !== now && other.losses.length === now.losses.length;
      this.at.textContent = `${page.group.updateWord} ${count(now.at)} · ${say("page.loss")} ${number(now.loss, 4)}`;
      const values = isDifference ? now.losses.map((loss, index) => loss - other.losses[index]) : now.losses;
      const bounds = isDifference ? DIFFERENCE_BOUNDS : LOSS_BOUNDS;
      this.text.hidden = !now.losses.length;
      this.text.classList.toggle("difference", isDifference);
      page.view.learned.passage.forEach((text, index) => {
        const token = this.text.children[index] ?? node("span", "", this.text);
        token.dataset.index = index;
        token.dataset.level = values.length ? level(values[index], bounds) : "";
        const written = text.replaceAll("\n", "⏎\n");
        if (token.textContent !== written) token.textContent = written;
      });
      while (this.text.children.length > page.view.learned.passage.length) this.text.lastChild.remove();
      const words = bounds.map((bound) => `< ${bound}`).concat(`≥ ${bounds.at(-1)}`);
      this.legend.classList.toggle("difference", isDifference);
      this.legend.replaceChildren(node("span", "", null, isDifference ? say("look_view.passage.difference_legend") : say("look_view.passage.legend")), ...words.map((text, index) => {
        const key = node("bdi", "", null, text);
        key.dataset.level = index;
        return key;
      }));
      this.values = isDifference ? values : null;
      this.point(this.pointed);
      this.showParts(now, isDifference ? other : null);
      this.showHeads(now.at);
    },
    // The loss of one token, and what the model expected in its place, if its checkpoint was looked at.
    point(index) {
      this.text.querySelector("[data-pointed]")?.removeAttribute("data-pointed");
      const now = this.evaluations[Number(this.slider.value)], token = this.text.children[index];
      if (index === undefined || !token || !now?.losses.length) { this.detail.textContent = say("page.point_at_token"); return; }
      this.pointed = index;
      token.dataset.pointed = "";
      const loss = now.losses[index];
      this.detail.replaceChildren();
      const line = (text, value) => { const held = node("span", "", this.detail); isolated("code", text, held); isolated("bdi", value, held).dir = "ltr"; };
      const change = this.values ? ` (${this.values[index] >= 0 ? "+" : ""}${number(this.values[index], 2)})` : "";
      line(shown(page.view.learned.passage[index]), `${number(loss, 2)}${change} nats, p ${number(100 * Math.exp(-loss), 1)}%`);
      const guesses = this.looks.get(now.at)?.guesses[index];
      if (guesses) {
        node("b", "", this.detail, say("page.it_expected"));
        for (const [text, p] of guesses) line(shown(text), `${number(100 * p, 0)}%`);
      }
      if (this.attention) this.showAttentionOf(Number(index));
    },
    showParts(now, other) {
      const before = new Map((other?.parts ?? []).flatMap(({title, rows}) => rows.map(([name, , loss]) => [`${title}\n${name}`, loss])));
      const wanted = now.parts.map(({title, rows}) => ({title, rows: rows.map((row) => [...row, before.get(`${title}\n${row[0]}`) ?? null])}));
      syncChildren(this.parts, wanted, ({title}) => title, ({title, rows}, old) => {
        const details = node("details");
        details.open = old?.open ?? true;
        node("summary", "", details, title);
        const total = rows.reduce((sum, [, tokens]) => sum + tokens, 0), most = Math.max(...rows.map(([, , loss]) => loss), 1e-9);
        const table = node("table", "plain bars", details);
        for (const [name, tokens, loss, was] of rows) {
          const row = node("tr", "", table);
          isolated("bdi", name, Object.assign(node("th", "", row), {scope: "row"}));
          isolated("bdi", number(loss, 3), node("td", "", row));
          const cell = node("td", "bar-cell", row), bar = node("i", "", cell);
          bar.style.setProperty("--share", Math.max(0, loss / most));
          isolated("bdi", was === null ? "" : `${loss - was > 0 ? "+" : ""}${number(loss - was, 3)}`, node("td", "change", row));
          isolated("bdi", `${number((100 * tokens) / total, 0)}%`, node("td", "share", row));
        }
        return details;
      });
    },

    // ---- the ladder ----

    buildLadder() {
      this.side = node("div", "card", this.columns);
      node("h3", "", this.side, say("page.ladder"));
      this.ladder = node("table", "plain ladder", this.side);
      node("p", "caption", this.side, say("page.ladder_caption"));
    },
    showLadder(ladder) {
      this.side.hidden = !ladder;
      this.ladder.replaceChildren();
      if (!ladder) return;
      const head = node("tr", "", this.ladder);
      const hasBits = ladder.rungs.some(({bits}) => bits !== null);
      const titles = [say("page.what_it_knows"), say("page.nats"), ...(hasBits ? [say("page.bits_per_byte")] : []), say("page.passed_at")];
      titles.forEach((text) => Object.assign(node("th", "", head, text), {scope: "col"}));
      for (const {name, loss, bits, at, best} of ladder.rungs) {
        const row = node("tr", [at === null ? "ahead" : "passed", best ? "best" : ""].join(" ").trim(), this.ladder);
        Object.assign(node("th", "", row, name), {scope: "row"});
        isolated("bdi", number(loss, 3), node("td", "", row));
        if (hasBits) isolated("bdi", bits === null ? "" : number(bits, 3), node("td", "", row));
        isolated("bdi", at === null ? "–" : count(at), node("td", "", row));
      }
    },

    // ---- heads ----

    buildHeads() {
      this.heads = node("div", "card wide heads", this.columns);
      const head = node("div", "head", this.heads);
      node("h3", "", head, say("page.heads"));
      this.lookAt = button(say("page.look_inside"), () => this.ask(), {parent: head});
      this.note = node("span", "note", head);
      this.sentences = node("ul", "", this.heads);
      this.scores = node("div", "scores", this.heads);
      const chosen = node("div", "chosen-head", this.heads);
      this.canvas = node("canvas", "attention", chosen);
      this.attentionTitle = node("p", "caption", chosen);
      this.canvas.hidden = true;
      this.canvas.addEventListener("pointermove", (event) => {
        const {top, height} = this.canvas.getBoundingClientRect();
        this.point(Math.min(this.attention.length - 1, Math.max(0, Math.floor(((event.clientY - top) / height) * this.attention.length))));
      });
    },
    showHeads(at) {
      const look = this.looks.get(at), canAsk = !page.isOffline && this.saved.has(at);
      this.heads.hidden = !look && !canAsk;
      this.lookAt.hidden = Boolean(look) || !canAsk;
      this.sentences.replaceChildren(...(look?.sentences ?? []).map((text) => node("li", "", null, text)));
      if (this.shownAt !== at || !look) { this.attention = null; this.canvas.hidden = true; this.attentionTitle.textContent = ""; this.clearAttention(); }
      this.shownAt = at;
      const grids = look ? [[say("page.previous_token"), look.previous, look.previous_uniform], [say("page.induction"), look.induction, look.induction_uniform]] : [];
      this.scores.replaceChildren(...grids.filter(([, rows]) => rows).map(([title, rows, uniform]) => {
        const figure = node("div", "grid-of-heads");
        node("p", "", figure, `${title} · ${say("page.uniform")} ${number(uniform, 2)}`);
        const table = node("table", "", figure);
        const names = node("tr", "", table);
        [say("page.head"), ...rows[0].map((_, index) => index + 1)].forEach((text) => node("th", "", names, String(text)));
        rows.forEach((row, layer) => {
          const line = node("tr", "", table);
          Object.assign(node("th", "", line, `${say("page.layer")} ${layer + 1}`), {scope: "row"});
          row.forEach((score, index) => {
            const cell = node("td", "", line), name = `${say("page.layer")} ${layer + 1}, ${say("page.head")} ${index + 1}: ${number(score, 2)}`;
            const made = button(number(score, 2), () => this.askAttention(at, layer, index, name), {parent: cell});
            Object.assign(made, {title: name, ariaLabel: name, disabled: !canAsk});
            made.style.setProperty("--score", score);
          });
        });
        return figure;
      }));
      // A run that has ended loses nothing by a look; one that trains is asked for it.
      if (canAsk && !look && !page.view.live && !this.asked?.has(at)) {
        clearTimeout(this.askTimer);
        this.askTimer = setTimeout(() => { if (this.shownAt === at && document.visibilityState === "visible") this.ask(); }, 600);
      }
    },
    // An answer of the process that looks into checkpoints; null where there is none: the note says why.
    async request(body) {
      this.note.textContent = say("page.loading_model");
      try {
        const answer = await (await post(runPath("looks"), body)).json();
        if (answer.error) throw new Error(answer.error);
        this.note.textContent = "";
        return answer;
      } catch (error) {
        this.note.textContent = error.message;
        return null;
      }
    },
    async ask() {
      const at = this.shownAt;
      this.asked = (this.asked ?? new Set()).add(at);
      const answer = await this.request({checkpoint: at});
      if (!answer) return;
      page.view.learned = answer.learned;
      this.update(page, new Set(["learned"]));
    },
    async askAttention(at, layer, head, name) {
      const answer = await this.request({checkpoint: at, layer, head});
      if (!answer || this.shownAt !== at) return;
      this.attention = answer.rows;
      this.attentionTitle.textContent = `${name}. ${say("page.attention_caption")}`;
      this.drawAttention();
      this.point(this.pointed ?? this.attention.length - 1);
    },
    // A row for each token, over those before it; row 0 is the token before the passage.
    drawAttention() {
      const size = this.attention.length, drawing = this.canvas.getContext("2d");
      Object.assign(this.canvas, {width: size, height: size, hidden: false, ariaLabel: this.attentionTitle.textContent});
      this.canvas.setAttribute("role", "img");
      drawing.clearRect(0, 0, size, size);
      drawing.fillStyle = getComputedStyle(this.canvas).color;
      this.attention.forEach((row, query) => row.forEach((weight, key) => {
        drawing.globalAlpha = Math.min(1, weight / 500);
        drawing.fillRect(key, query, 1, 1);
      }));
    },
    // Where the model looked when it predicted this token: from the token before it, back.
    showAttentionOf(index) {
      this.clearAttention();
      const row = this.attention[index];
      if (!row) return;
      row.forEach((weight, key) => { if (key > 0) this.text.children[key - 1]?.style.setProperty("--attention", weight / 1000); });
    },
    clearAttention() {
      for (const token of this.text.children) token.style.removeProperty("--attention");
    },
  });
})();
