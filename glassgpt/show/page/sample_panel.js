// What the model writes: samples of the run, and a box to ask a checkpoint.
"use strict";

(() => {
  const {code, isolated, node, section} = GlassElements;
  const {jsonLines, page, post, register, runPath, say} = GlassPage;

  // ---- what the model writes ----

  register({
    id: "samples",
    order: 40,
    build({view, isOffline}) {
      const canAsk = !isOffline && view.checkpoints.length > 0;
      if (!canAsk && !view.samples.length) return null;
      this.root = section("samples", say("page.samples"));
      this.columns = node("div", "columns", this.root);
      if (canAsk) this.columns.append(this.buildBox());
      this.kept = node("div", "card kept", this.columns);
      const head = node("div", "head", this.kept);
      node("h3", "", head, say("page.samples_of_run"));
      this.at = node("output", "", head);
      this.slider = Object.assign(node("input", "", this.kept), {type: "range", min: 0, step: 1, ariaLabel: say("page.samples_of_run")});
      this.text = isolated("pre", "", this.kept);
      this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
      return this.root;
    },
    update({view}, changed) {
      if (changed.has("checkpoints") && this.checkpoint) this.setCheckpoints(view);
      if (!changed.has("samples")) return;
      const isLast = Number(this.slider.value) === Number(this.slider.max);
      this.samples = view.samples;
      this.kept.hidden = !view.samples.length;
      this.slider.max = Math.max(0, view.samples.length - 1);
      this.slider.hidden = view.samples.length < 2;
      this.show(isLast || this.shown === undefined ? view.samples.length - 1 : this.shown);
    },
    show(index) {
      const sample = this.samples[index];
      this.shown = this.slider.value = index;
      this.at.textContent = sample ? `${page.group.updateWord} ${sample.at.toLocaleString("en-US")}` : "";
      this.text.textContent = sample?.text ?? "";
    },
    buildBox() {
      const box = node("form", "card box");
      node("h3", "", box, say("page.ask"));
      this.prompt = Object.assign(node("textarea", "", box), {rows: 2, maxLength: 8000, placeholder: say("page.prompt"), ariaLabel: say("page.prompt"), dir: "auto"});
      const options = node("div", "options", box);
      const field = (label, type, attributes, parent = options) => {
        const held = node("label", "", parent);
        node("span", "", held, label);
        return Object.assign(node("input", "", held), {type, ...attributes});
      };
      this.checkpoint = field(say("page.checkpoint"), "range", {min: 0, step: 1});
      this.which = node("output", "", this.checkpoint.parentElement);
      this.temperature = field(say("page.temperature"), "number", {min: 0, max: 100, step: 0.1, value: 0.8});
      this.topK = field("top-k", "number", {min: 1, step: 1, value: 200});
      this.seed = field(say("page.seed"), "number", {min: 0, step: 1, value: 1337});
      this.length = field(say("page.tokens"), "number", {min: 1, max: 1000, step: 1, value: 200});
      const row = node("div", "row", box);
      this.go = Object.assign(node("button", "primary", row, say("page.write")), {type: "submit"});
      this.note = node("span", "note", row);
      const result = node("div", "result", box);
      this.answer = isolated("pre", "", result, "answer");
      this.answer.hidden = true;
      this.answer.setAttribute("aria-live", "polite");
      this.next = node("div", "next", result);
      this.next.hidden = true;
      box.addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
      this.checkpoint.addEventListener("input", () => this.nameCheckpoint());
      this.checkpoint.addEventListener("change", () => { if (!this.answer.hidden) this.ask(); });
      return box;
    },
    setCheckpoints({checkpoints}) {
      const isLast = this.checkpoint.value === this.checkpoint.max || !this.checkpoints;
      this.checkpoints = checkpoints;
      this.checkpoint.max = checkpoints.length - 1;
      if (isLast) this.checkpoint.value = checkpoints.length - 1;
      this.nameCheckpoint();
    },
    nameCheckpoint() {
      const chosen = this.checkpoints[Number(this.checkpoint.value)];
      this.which.textContent = chosen ? `${chosen.at.toLocaleString("en-US")}${chosen.best ? ` · ${say("page.best")}` : ""}` : "";
    },
    async ask() {
      this.asking?.abort();
      const asking = (this.asking = new AbortController());
      const prompt = this.prompt.value;
      const number = (field) => (field.value === "" ? null : Number(field.value));
      const body = {
        prompt, checkpoint: this.checkpoints[Number(this.checkpoint.value)]?.at ?? null, temperature: number(this.temperature) ?? 0.8,
        top_k: number(this.topK), seed: number(this.seed) ?? 1337, max_new_tokens: number(this.length) ?? 200,
      };
      this.note.textContent = say("page.loading_model");
      this.answer.hidden = false;
      this.answer.replaceChildren(node("b", "", null, prompt));
      try {
        const response = await post(runPath("samples"), body, asking.signal);
        for await (const message of jsonLines(response)) {
          if (message.next) this.showNext(message.next);
          if (message.text) this.answer.append(message.text);
          this.note.textContent = message.error ?? (message.done ? "" : say("page.writing"));
        }
      } catch (error) {
        if (error.name !== "AbortError") this.note.textContent = error.message;
      }
    },
    showNext(next) {
      this.next.hidden = false;
      const most = Math.max(...next.map(({p}) => p), 1e-9);
      this.next.replaceChildren(node("p", "", null, say("page.next_token")), ...next.slice(0, 10).filter(({p}) => p >= 0.0005).map(({token, p}) => {
        const row = node("div");
        code(JSON.stringify(token).slice(1, -1).replaceAll("\\\"", "\"").replaceAll(" ", "␣"), row);
        const bar = node("i", "", row);
        bar.style.setProperty("--share", p / most);
        isolated("bdi", `${(100 * p).toFixed(1)}%`, row);
        return row;
      }));
    },
  });
})();
