// The charts of the page and of the report: drawn on a canvas, exported as PNG or SVG. No library.
//
//   const group = new GlassCharts.Group({axes, knots, planned, onChange, onFinding});
//   const chart = group.addChart(panel, element);      // a Panel of the View document
//   group.setRows({loss: [[0, 4.2], [10, 3.9, 3.7, 4.1]]});
//
// Charts of a group share x axis, zoom and crosshair. x of every row is an update; the knots map updates to
// tokens, seconds, FLOPs or epochs. Stale charts on the screen are drawn together in the next animation frame.
"use strict";

const GlassCharts = (() => {
  const {byteScale, exponential, formatCount, formatDuration, formatValue, grouped} = GlassNumbers;
  const {directed, node, swatch} = GlassElements;

  // ---- scales and ticks ----

  class Scale {
    constructor(low, high, start, end, log) {
      Object.assign(this, {low, high, start, log, base: log ? Math.log(low) : low});
      this.slope = (end - start) / ((log ? Math.log(high) : high) - this.base || 1);
    }
    to(value) {
      return this.start + ((this.log ? Math.log(Math.max(value, 1e-300)) : value) - this.base) * this.slope;
    }
    from(pixel) {
      const value = this.base + (pixel - this.start) / this.slope;
      return this.log ? Math.exp(value) : value;
    }
  }

  const DURATION_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

  function niceStep(span, count, unit) {
    const rough = span / Math.max(count, 1);
    if (unit === "s" && rough > 0.5) return DURATION_STEPS.find((step) => rough < 1.5 * step) ?? 86400 * niceStep(span / 86400, count, "");
    const magnitude = 10 ** Math.floor(Math.log10(rough));
    return magnitude * [1, 2, 5, 10].find((step) => rough / magnitude < 1.5 * step);
  }

  // About `count` round values between the ends of a scale, with their labels.
  function ticksOf(scale, count, unit = "") {
    let [factor, suffix] = unit === "bytes" ? byteScale(scale.high) : [1, {ms: " ms", "%": "%"}[unit] ?? ""];
    if (unit === "ms" && scale.high >= 1e4) [factor, suffix] = [1000, " s"];
    const [low, high] = [scale.low / factor, scale.high / factor], values = [];
    if (!(high > low)) return [];
    const decades = scale.log ? Math.log10(high / low) : 0;
    const step = decades > 0.9 ? 0 : niceStep(high - low, count, unit);
    if (step) {
      for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step && values.length < 60; index += 1) values.push(index * step);
    } else {
      const stride = Math.max(1, Math.ceil(decades / Math.max(count, 1)));
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        if (power % stride === 0) values.push(...(decades * 3 <= count ? [1, 2, 5] : [1]).map((one) => one * 10 ** power));
      }
    }
    const digitsOf = (value) => Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    const label = (value) => {
      if (value === 0) return "0";
      if (unit === "s") return formatDuration(value).replace(/ 00[smh]$/, "");
      if (["count", "update", "tokens"].includes(unit)) return formatCount(value, unit === "update" ? 6 : 3);
      const size = Math.abs(value), isExtreme = size < 1e-4 || size >= 1e6;
      if (unit === "lr" || unit === "flops" || isExtreme) return exponential(value, step ? Math.max(0, digitsOf(value) - digitsOf(step)) : 0);
      return grouped(value, Math.max(0, -digitsOf(step || value)));
    };
    return values
      .filter((value) => value >= low - 1e-9 * (high - low) && value <= high + 1e-9 * (high - low))
      .map((value) => ({at: value * factor, label: `${label(value)}${suffix}`}));
  }

  // Index of the first x that is not below the value.
  function firstNotBelow(xs, value) {
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Piecewise linear, going on with the slope of its first and last piece.
  function interpolate(from, to, value) {
    if (from.length < 2) return from.length ? to[0] + value - from[0] : value;
    const high = Math.min(Math.max(firstNotBelow(from, value), 1), from.length - 1), low = high - 1;
    const width = from[high] - from[low];
    return width ? to[low] + ((value - from[low]) / width) * (to[high] - to[low]) : to[low];
  }

  // Moving mean over `window` (in x, or in log x). Nothing is averaged over a gap. Near an end the window shrinks
  // on both sides, to a quarter, so that a falling line is hardly bent there and one last row is no spike.
  function movingMean(xs, rows, window, log) {
    const count = rows.length;
    const at = log ? Float64Array.from(xs, (x) => Math.log(Math.max(x, 1e-300))) : xs;
    const means = new Float64Array(count).fill(NaN), sums = new Float64Array(count + 1);
    for (let index = 0; index < count; index += 1) sums[index + 1] = sums[index] + (rows[index][1] ?? 0);
    for (let start = 0; start < count; ) {
      let end = start;
      while (end < count && rows[end][1] !== null) end += 1;
      for (let index = start, left = start, right = start; index < end; index += 1) {
        while (at[left] < at[index] - window / 2) left += 1;
        while (right < end && at[right] <= at[index] + window / 2) right += 1;
        let [from, to] = [left, right];
        if (left === start || right === end) {
          const reach = Math.max(Math.min(index - left, right - 1 - index), (right - left) >> 2);
          [from, to] = [Math.max(left, index - reach), Math.min(right, index + reach + 1)];
        }
        means[index] = (sums[to] - sums[from]) / (to - from);
      }
      start = end + 1;
    }
    return means;
  }

  // ---- pens: the same few strokes on a canvas and as SVG ----

  class CanvasPen {
    constructor(ctx) { this.ctx = ctx; }
    set font(font) { this.ctx.font = font; }
    measure(text) { return this.ctx.measureText(text).width; }
    translate(x, y) { this.ctx.translate(x, y); }
    clip(...box) { this.ctx.save(); this.ctx.beginPath(); this.ctx.rect(...box); this.ctx.clip(); }
    unclip() { this.ctx.restore(); }
    // Points as [x, y]; null lifts the pen.
    stroke(points, colour, {width = 1, dash = [], alpha = 1} = {}) {
      const {ctx} = this;
      let isDown = false;
      ctx.beginPath();
      for (const point of points) {
        if (point) ctx[isDown ? "lineTo" : "moveTo"](point[0], point[1]);
        isDown = point !== null;
      }
      Object.assign(ctx, {strokeStyle: colour, lineWidth: width, lineJoin: "round", globalAlpha: alpha});
      ctx.setLineDash(dash);
      ctx.stroke();
    }
    polygon(points, colour, alpha = 1) {
      this.ctx.beginPath();
      points.forEach(([x, y], index) => this.ctx[index ? "lineTo" : "moveTo"](x, y));
      Object.assign(this.ctx, {fillStyle: colour, globalAlpha: alpha});
      this.ctx.fill();
    }
    disc(x, y, radius, fill, edge = null) {
      const {ctx} = this;
      ctx.beginPath();
      ctx.arc(x, y, radius, 0, 7);
      Object.assign(ctx, {fillStyle: fill ?? "", strokeStyle: edge ?? "", lineWidth: fill ? 1.5 : 3, globalAlpha: 1});
      ctx.setLineDash([]);
      if (fill) ctx.fill();
      if (edge) ctx.stroke();
    }
    // `halo`: the colour of an edge that keeps the text readable on lines.
    write(text, x, y, colour, textAlign = "left", halo = "") {
      Object.assign(this.ctx, {fillStyle: colour, strokeStyle: halo, lineWidth: 4, textAlign, textBaseline: "middle", globalAlpha: 1});
      if (halo) this.ctx.strokeText(directed(text), x, y);
      this.ctx.fillText(directed(text), x, y);
    }
  }

  const escapeXml = (text) =>
    String(text).replace(/[\u0000-\u001f\ufffe\uffff]/g, " ").replace(/[<>&"]/g, (one) => `&#${one.charCodeAt(0)};`);

  class SvgPen {
    constructor(width, height, measuring) { Object.assign(this, {width, height, measuring, parts: [], font: "", left: 0, top: 0}); }
    measure(text) { this.measuring.font = this.font; return this.measuring.measureText(text).width; }
    translate(x, y) { this.left += x; this.top += y; }
    add(tag, attributes, text = null) {
      const listed = Object.entries(attributes).map(([name, value]) => ` ${name}="${escapeXml(value)}"`).join("");
      this.parts.push(`<${tag}${listed}${text === null ? "/" : `>${escapeXml(text)}</${tag}`}>`);
    }
    clip(x, y, width, height) {
      const id = `clip${this.parts.length}`;
      const box = `x="${x + this.left}" y="${y + this.top}" width="${width}" height="${height}"`;
      this.parts.push(`<clipPath id="${id}"><rect ${box}/></clipPath><g clip-path="url(#${id})">`);
    }
    unclip() { this.parts.push("</g>"); }
    path(points) {
      const place = ([x, y], index) => `${index && points[index - 1] ? "L" : "M"}${(x + this.left).toFixed(2)} ${(y + this.top).toFixed(2)}`;
      return points.map((point, index) => (point ? place(point, index) : "")).join("");
    }
    stroke(points, colour, {width = 1, dash = [], alpha = 1} = {}) {
      this.add("path", {d: this.path(points), fill: "none", stroke: colour, "stroke-width": width, "stroke-linejoin": "round", "stroke-dasharray": dash.join(" "), opacity: alpha});
    }
    polygon(points, colour, alpha = 1) { this.add("path", {d: `${this.path(points)}Z`, fill: colour, opacity: alpha}); }
    disc(x, y, radius, fill, edge = null) {
      this.add("circle", {cx: x + this.left, cy: y + this.top, r: radius, fill: fill ?? "none", stroke: edge ?? "none", "stroke-width": 1.5});
    }
    write(text, x, y, colour, textAlign = "left", halo = "none") {
      const [, weight = 400, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font);
      const anchor = {left: "start", center: "middle", right: "end"}[textAlign];
      const look = {fill: colour, stroke: halo, "stroke-width": 4, "paint-order": "stroke", "font-size": size, "font-weight": weight, "font-family": family, "text-anchor": anchor};
      this.add("text", {x: x + this.left, y: y + this.top + 0.35 * size, ...look}, directed(text));
    }
    toString() {
      const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
      return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${this.parts.join("")}</svg>`;
    }
  }

  function drawStar(pen, x, y, radius, fill, edge) {
    const corners = Array.from({length: 11}, (_, corner) => {
      const size = corner % 2 ? radius * 0.45 : radius, angle = (corner * Math.PI) / 5;
      return [x + size * Math.sin(angle), y - size * Math.cos(angle)];
    });
    pen.polygon(corners, fill);
    pen.stroke(corners, edge);
  }

  // ---- a group of charts ----

  const stats = {lastFrameMs: 0};  // for measurements
  class Group {
    constructor(options = {}) {
      const usual = {axes: [{id: "update", label: "update"}], knots: {update: [0, 1]}, planned: null, title: ""};
      Object.assign(this, usual, {onChange: () => {}, onFinding: () => {}}, options);
      // rows: series -> rows of the whole run; detail: {first, last, rows}, finer rows of the range zoomed to; overlays: other runs,
      // {id, name, colour, knots, rows}; hover: x on the current axis; highlight: the id of a finding; findings: id -> {at: [updates], severity}
      Object.assign(this, {plots: [], rows: {}, detail: null, overlays: [], hover: null, highlight: null, findings: {}});
      Object.assign(this, {colours: new Map(), version: 0, frame: 0, isCropped: true});
      this.state = {axis: "update", logX: false, smoothing: 0, range: null, toPlan: false, hidden: new Set(), flipped: new Set()};
      this.intersections = new IntersectionObserver((entries) => {
        for (const {target, isIntersecting} of entries) this.plotIn("host", target, (plot) => (plot.isVisible = isIntersecting));
        this.schedule();
      }, {rootMargin: "120px"});
      this.sizes = new ResizeObserver((entries) => {
        for (const {target, contentRect: {width, height}} of entries) this.plotIn("area", target, (plot) => plot.resize(width, height));
      });
      this.probe = Object.assign(node("span", "", document.body), {hidden: true});
      this.measure = document.createElement("canvas").getContext("2d");
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    }
    plotIn(key, element, action) { this.plots.filter((plot) => plot[key] === element).forEach(action); }
    addChart(panel, host) { return this.add(new Chart(this, panel, host)); }
    addStrip(ledger, host, beside, onPick) { return this.add(new Strip(this, ledger, host, beside, onPick)); }
    add(plot) { this.plots.push(plot); this.watch("observe", plot); return plot; }
    remove(plot) { this.plots = this.plots.filter((one) => one !== plot); this.watch("unobserve", plot); }
    watch(verb, {host, area}) { this.intersections[verb](host); this.sizes[verb](area); }
    colour(name) {
      if (!this.colours.has(name)) {
        this.probe.style.color = `var(--${name})`;
        this.colours.set(name, getComputedStyle(this.probe).color);
      }
      return this.colours.get(name);
    }
    get font() { return (this.family ??= getComputedStyle(document.body).fontFamily); }

    // -- data
    setRows(rows) { Object.assign(this, {rows, detail: null}); this.refresh(); }
    append(series, rows) {
      (this.rows[series] ??= []).push(...rows);
      this.detail?.rows[series]?.push(...rows.filter((row) => row[0] <= this.detail.last));
      this.refresh((plot) => plot.draws(series));
    }
    supersede(update) {
      for (const part of [this.rows, this.detail?.rows ?? {}]) for (const name of Object.keys(part)) part[name] = part[name].filter((row) => row[0] <= update);
      this.refresh();
    }
    setDetail(first, last, rows) { this.detail = {first, last, rows}; this.refresh(); }
    setAxes(axes, knots, planned) {
      Object.assign(this, {axes, knots, planned});
      if (!axes.some((axis) => axis.id === this.state.axis)) this.state.axis = axes[0]?.id ?? "update";
      if (this.state.axis !== "update") this.refresh();
    }
    setOverlays(overlays) { this.overlays = overlays; this.set({}); }
    rowsOf(series) {
      const {detail, state: {range}} = this;
      const isFiner = detail && range && range[0] >= detail.first && range[1] <= detail.last;
      return (isFiner ? detail : this).rows[series] ?? [];
    }

    // -- the view: axis, zoom, smoothing
    set(change) {
      Object.assign(this.state, change);
      if (this.state.range === null) this.detail = null;
      this.refresh();
      this.plots.forEach((plot) => plot.buildLegend());
      this.onChange(this.state);
    }
    toggle(name, key) {
      const changed = new Set(this.state[name]);
      if (!changed.delete(key)) changed.add(key);
      this.set({[name]: changed});
    }
    toAxis(update, knots = this.knots) {
      const there = knots[this.state.axis];
      return this.state.axis === "update" || !there ? update : interpolate(knots.update, there, update);
    }
    toUpdate(value) {
      const there = this.knots[this.state.axis];
      return this.state.axis === "update" || !there ? value : interpolate(there, this.knots.update, value);
    }
    get axisUnit() { return this.state.axis === "seconds" ? "s" : this.state.axis; }
    get updateWord() { return this.axes.find(({id}) => id === "update")?.label ?? ""; }
    get axisLabel() { return this.axes.find((axis) => axis.id === this.state.axis)?.label ?? ""; }
    formatX(value) {
      const {axis} = this.state;
      if (axis === "seconds") return formatDuration(value);
      const text = axis === "update" ? grouped(Math.round(value)) : axis === "flops" ? exponential(value, 2)
        : axis === "epochs" ? value.toFixed(2) : formatCount(value, 4);
      return `${this.axisLabel} ${text}`;
    }
    fullDomain() {
      if (this.whole) return this.whole;
      const {logX, toPlan} = this.state;
      let low = Infinity, high = -Infinity;
      const take = (rows, knots) => {
        const first = rows?.find((row) => !logX || this.toAxis(row[0], knots) > 0);
        if (!first) return;
        low = Math.min(low, this.toAxis(first[0], knots));
        high = Math.max(high, this.toAxis(rows.at(-1)[0], knots));
      };
      for (const name of new Set(this.plots.flatMap((plot) => plot.seriesIds ?? []))) {
        for (const run of [this, ...this.overlays]) take(run.rows[name], run.knots);
      }
      const end = this.planned === null ? null : this.toAxis(this.planned);
      if (low === Infinity) [low, high] = [logX ? 1 : 0, end ?? 1];
      if ((toPlan || low === high) && end !== null) high = Math.max(high, end);
      return (this.whole = [low, high > low ? high : low + Math.max(1, Math.abs(low))]);
    }
    domain() {
      const {range, logX} = this.state;
      if (!range) return this.fullDomain();
      const [low, high] = range.map((update) => this.toAxis(update));
      return [logX ? Math.max(low, high * 1e-9) : low, high > low ? high : low + 1e-9];
    }
    zoomTo(one, other) {
      const [from, to] = this.fullDomain();
      const first = Math.max(Math.min(one, other), from), last = Math.min(Math.max(one, other), to);
      if (first <= from && last >= to) this.set({range: null});
      else if (this.toUpdate(last) - this.toUpdate(first) >= 1) this.set({range: [this.toUpdate(first), this.toUpdate(last)]});
    }
    // About a point at `share` of the width; a factor below 1 zooms in.
    zoomBy(factor, share = 0.5) {
      const scale = new Scale(...this.domain(), 0, 1, this.state.logX);
      this.zoomTo(scale.from(share - share * factor), scale.from(share + (1 - share) * factor));
    }
    pan(share) {
      const scale = new Scale(...this.domain(), 0, 1, this.state.logX), whole = this.fullDomain();
      const room = share < 0 ? Math.max(share, scale.to(whole[0])) : Math.min(share, scale.to(whole[1]) - 1);
      if (room) this.set({range: [scale.from(room), scale.from(1 + room)].map((value) => this.toUpdate(value))});
    }
    reset() { this.isCropped = true; this.set({range: null}); }
    // Back to the whole run; there, an axis that leaves out a high beginning shows all of it, or not.
    unzoom() { this.isCropped = this.state.range ? true : !this.isCropped; this.set({range: null}); }
    cycleAxis() { this.set({axis: this.axes[(this.axes.findIndex(({id}) => id === this.state.axis) + 1) % this.axes.length].id}); }
    setHover(hover, hoverSource = null) { Object.assign(this, {hover, hoverSource}); this.refreshOverlays(); }
    setHighlight(finding) { this.highlight = finding; this.refreshOverlays(); }

    // -- drawing
    refresh(isChanged = () => true) {
      const before = this.state.range ? "" : String(this.whole);
      this.version += 1;
      this.whole = null;
      const hasMoved = !this.state.range && before !== String(this.fullDomain());
      for (const plot of this.plots) plot.isStale ||= hasMoved || isChanged(plot);
      this.schedule();
    }
    refreshOverlays() { this.plots.forEach((plot) => (plot.isOverlayStale = true)); this.schedule(); }
    repaint() { this.colours.clear(); this.refresh(); }
    schedule() { this.frame ||= requestAnimationFrame(() => this.flush()); }
    flush() {
      this.frame = 0;
      const started = performance.now();
      for (const plot of this.plots) {
        if (!plot.isVisible || !plot.width) continue;
        if (plot.isStale) plot.draw();
        if (plot.isOverlayStale) plot.drawOverlay();
      }
      stats.lastFrameMs = performance.now() - started;
    }
  }

  // ---- one plot: canvases, pointer and keyboard ----

  class Plot {
    constructor(group, host) {
      Object.assign(this, {group, host, width: 0, height: 0, isVisible: true, isStale: true, isOverlayStale: true});
      host.replaceChildren();
      this.legend = node("div", "legend", host);
      this.area = node("div", "plot", host);
      Object.assign(this.area, {dir: "ltr", tabIndex: 0, role: "group"});
      [this.canvas, this.overlay] = [node("canvas", "", this.area), node("canvas", "", this.area)];
      this.tooltip = Object.assign(node("div", "tooltip", this.area), {hidden: true});
      Object.assign(this, {plot: {left: 50, right: 0, top: 0, bottom: 0}, pointers: new Map()});
      this.listen();
    }
    resize(width, height) { Object.assign(this, {width, height, isStale: true}); this.group.schedule(); }
    prepare(canvas) {
      const ratio = window.devicePixelRatio || 1;
      const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
      if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
      const ctx = canvas.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, this.width, this.height);
      return new CanvasPen(ctx);
    }
    draw() {
      Object.assign(this, {isStale: false, isOverlayStale: true});
      this.paint(this.prepare(this.canvas), this.width, this.height);
    }
    drawOverlay() {
      const isEmpty = this.group.hover === null && this.group.highlight === null && !this.selection, wasEmpty = this.isOverlayEmpty;
      Object.assign(this, {isOverlayStale: false, isOverlayEmpty: isEmpty});
      if (isEmpty && wasEmpty) return;  // a canvas that nobody touches costs nothing
      const pen = this.prepare(this.overlay), {group, x, plot: {left, right, top, bottom}} = this;
      const upright = (at, colour, dash) => {
        const place = Math.round(x.to(at)) + 0.5;
        if (place >= left && place <= right + 1) pen.stroke([[place, top], [place, bottom]], colour, {dash});
      };
      const [low, high] = this.selection ?? [0, 0];
      pen.polygon([[low, top], [high, top], [high, bottom], [low, bottom]], group.colour("train"), 0.14);
      for (const at of group.findings[group.highlight]?.at ?? []) upright(group.toAxis(at), group.colour("highlight"), []);
      if (group.hover !== null) upright(group.hover, group.colour("muted"), [3, 3]);
      this.paintHover(pen);
    }
    buildLegend() {}
    pinAt() {}
    // Words beside the crosshair: a heading, then rows of {name, colour, value, spread}.
    showTooltip(heading, rows, note = "") {
      const {tooltip, group: {hover}} = this;
      if ((tooltip.hidden = !rows.length || Boolean(this.selection))) return;
      tooltip.replaceChildren(node("b", "", null, heading), ...rows.map(({name, colour, value, spread = ""}) => {
        const row = swatch(node("div"), colour, name);
        node("strong", "", row, value);
        node("small", "", row, spread);
        return row;
      }), ...(note ? [node("em", "", null, note)] : []));
      tooltip.style.left = "0";
      const x = this.x.to(hover), wide = tooltip.offsetWidth;
      tooltip.style.left = `${x > this.width / 2 ? Math.max(0, x - 14 - wide) : Math.min(x + 14, this.width - wide)}px`;
    }

    listen() {
      const {area, group, pointers} = this;
      const place = ({clientX, clientY}) => [clientX - area.getBoundingClientRect().left, clientY - area.getBoundingClientRect().top];
      const inside = (x) => Math.min(Math.max(x, this.plot.left), this.plot.right);
      const hoverAt = (x) => group.setHover(this.x ? this.x.from(inside(x)) : null, this);
      const touched = () => [...pointers.values()].map(([x]) => x);
      area.addEventListener("pointerdown", (event) => {
        if (event.button !== 0 || !this.x) return;
        pointers.set(event.pointerId, place(event));
        area.setPointerCapture(event.pointerId);
        this.pressed = event.pointerType === "touch" ? null : place(event)[0];
        if (pointers.size === 2) this.pinched = touched().map((x) => this.x.from(x));
        hoverAt(place(event)[0]);
      });
      area.addEventListener("pointermove", (event) => {
        const [x, y] = (this.pointerAt = place(event));
        if (pointers.has(event.pointerId)) pointers.set(event.pointerId, [x, y]);
        if (this.pinched && pointers.size === 2) return this.pinchTo(touched());
        if (Number.isFinite(this.pressed) && Math.abs(x - this.pressed) > 4) this.selection = [inside(this.pressed), inside(x)];
        area.classList.toggle("on-pin", Boolean(this.pinAt(x, y)));
        return hoverAt(x);
      });
      const lift = (event) => {
        const {selection, pinched} = this;
        pointers.delete(event.pointerId);
        Object.assign(this, {pressed: null, selection: null, pinched: pointers.size < 2 ? null : pinched});
        if (event.type === "pointercancel" || pinched) group.setHover(null);
        else if (selection) group.zoomTo(...selection.map((x) => this.x.from(x)));
        else if (event.button === 0 && this.x) this.pick(...place(event));
        group.refreshOverlays();
      };
      for (const kind of ["pointerup", "pointercancel"]) area.addEventListener(kind, lift);
      area.addEventListener("pointerleave", ({pointerType}) => { this.pointerAt = null; if (!pointers.size && pointerType !== "touch") group.setHover(null); });
      area.addEventListener("blur", () => group.setHover(null));
      area.addEventListener("dblclick", () => group.unzoom());
      area.addEventListener("wheel", (event) => {
        if (!event.ctrlKey || !this.x) return;  // a plain wheel scrolls the page
        event.preventDefault();
        const {left, right} = this.plot;
        group.zoomBy(Math.exp(event.deltaY * 0.01), (inside(place(event)[0]) - left) / (right - left));
      }, {passive: false});
      const step = (sign, event) => {  // zoomed in: the range moves; else, or with shift: the crosshair
        if (group.state.range && !event.shiftKey) return group.pan(sign * 0.2);
        return hoverAt((group.hover === null ? this.plot.left : this.x.to(group.hover)) + (sign * this.width) / 150);
      };
      const keys = {
        ArrowLeft: (event) => step(-1, event), ArrowRight: (event) => step(1, event),
        "+": () => group.zoomBy(0.5), "=": () => group.zoomBy(0.5), "-": () => group.zoomBy(2), 0: () => group.reset(),
        Escape: () => { group.setHover(null); group.reset(); }, Enter: () => group.hover !== null && this.pick(this.x.to(group.hover), null),
        x: () => group.cycleAxis(), l: () => group.toggle("flipped", this.panel?.id ?? "loss"),
        s: () => group.set({smoothing: {0: 2, 2: 5, 5: 10}[group.state.smoothing] ?? 0}),
      };
      area.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || !this.x) return;
        event.preventDefault();
        keys[event.key](event);
      });
    }
    // Two fingers: the points under them stay under them.
    pinchTo(pixels) {
      if (Math.abs(pixels[0] - pixels[1]) < 12) return;
      const scale = new Scale(...this.pinched, ...pixels, this.group.state.logX);
      this.group.zoomTo(scale.from(this.plot.left), scale.from(this.plot.right));
    }
  }

  // ---- a chart of series ----

  class Chart extends Plot {
    constructor(group, panel, host) {
      super(group, host);
      this.traces = new Map();
      this.setPanel(panel);
    }
    setPanel(panel) {
      Object.assign(this, {panel, seriesIds: panel.series.map((one) => one.id), isStale: true});
      this.area.ariaLabel = `${panel.title}. ${panel.caption ?? ""}`;
      this.buildLegend();
      this.group.schedule();
    }
    draws(series) { return this.seriesIds.includes(series); }
    get isLog() { return Boolean(this.panel.y.log) !== this.group.state.flipped.has(this.panel.id); }
    // What can be switched on and off: series, bands, other runs.
    entries() {
      const {panel: {id: panel, series, bands = []}, group: {overlays}} = this;
      const runs = overlays.filter((run) => this.seriesIds.some((id) => run.rows[id]?.length));
      return [
        ...series.map(({id, name, colour, style}) => ({key: id, name, colour, kind: style})),
        ...bands.map(({name, colour, note}, index) => ({key: `${panel}~${index}`, name, colour, kind: "band", note})),
        ...runs.map(({id, name, colour}) => ({key: `run~${id}`, name, colour, kind: "line"})),
      ];
    }
    buildLegend() {
      const {group, legend} = this, entries = this.entries();
      const now = JSON.stringify([entries, [...group.state.hidden]]);
      if (now === this.legendNow) return;
      this.legendNow = now;
      legend.hidden = entries.length < 2;
      legend.replaceChildren(...entries.map(({key, name, colour, kind, note = ""}) => {
        const button = swatch(node("button", `key ${kind}`), colour, name);
        Object.assign(button, {type: "button", title: note, ariaPressed: String(!group.state.hidden.has(key))});
        button.addEventListener("click", () => group.toggle("hidden", key));
        return button;
      }));
    }
    // Series of this run and of the others with x on the current axis, and which of their rows are in sight.
    drawn() {
      const {group, panel} = this, {hidden, axis, smoothing, logX} = group.state, [low, high] = group.domain();
      const width = logX ? Math.log(high / low) : high - low;
      const trace = (key, rows, knots, series, look) => {
        const token = `${group.version} ${axis}`;
        let held = this.traces.get(key);
        if (held?.token !== token || held.rows !== rows) {
          held = {token, rows, xs: Float64Array.from(rows, (row) => group.toAxis(row[0], knots))};
          this.traces.set(key, held);
        }
        const isSmooth = smoothing && series.smooth && rows.length > 4;
        const smooth = isSmooth ? movingMean(held.xs, rows, (width * smoothing) / 100, logX) : null;
        const from = Math.max(logX ? firstNotBelow(held.xs, Number.MIN_VALUE) : 0, firstNotBelow(held.xs, low) - 1);  // log: no 0
        return {...held, ...look, smooth, series, from, to: Math.min(rows.length, firstNotBelow(held.xs, high) + 1)};
      };
      const shown = panel.series.filter(({id}) => !hidden.has(id));
      const others = group.overlays.filter(({id}) => !hidden.has(`run~${id}`)).flatMap((run) =>
        shown.filter(({id, compared}) => compared !== false && run.rows[id]?.length).map((series) => trace(`${run.id} ${series.id}`, run.rows[series.id],
          run.knots, series, {name: `${run.name} · ${series.name}`, colour: run.colour, isOther: true})));
      return [...others, ...shown.map((series) => trace(series.id, group.rowsOf(series.id), group.knots, series, series))];
    }
    bands() { return (this.panel.bands ?? []).filter((_, index) => !this.group.state.hidden.has(`${this.panel.id}~${index}`)); }

    yDomain(traces, log) {
      const {panel: {y, lines = []}, group} = this;
      if (y.range && group.isCropped && !group.state.range && log === Boolean(y.log)) {
        const ranges = [y, ...group.overlays.map((run) => run.panels?.find(({id}) => id === this.panel.id)?.y)].map((one) => one?.range ?? y.range);
        const others = traces.filter(({isOther}) => isOther).flatMap(({rows, from, to}) => rows.slice(from, to).map(([, value]) => value));
        return [Math.min(...others.filter((value) => value !== null), ...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
      }
      const inner = [Infinity, -Infinity], outer = [Infinity, -Infinity];
      const take = (bounds, value) => {  // what is unknown compares as false
        if (value < bounds[0] && (!log || value > 0)) bounds[0] = value;
        if (value > bounds[1]) bounds[1] = value;
      };
      for (const {rows, from, to, smooth, series} of traces) {
        for (let index = from; index < to; index += 1) {
          const [, value, least, most] = rows[index];
          if (value === null) continue;
          take(inner, smooth ? smooth[index] : value);
          for (const one of [value, least, most]) take(series.spread === "error" ? inner : outer, one);
        }
      }
      if (!(inner[0] <= inner[1])) return log ? [0.1, 1] : [0, 1];
      const [from, to] = group.domain(), isBeginning = traces.reduce((seen, one) => seen + one.to - one.from, 0) < 6;
      const expected = this.bands().flatMap(({rows}) => rows).filter(([at]) => group.toAxis(at) >= from && group.toAxis(at) <= to);
      for (const [, ...edges] of expected) edges.forEach((edge) => take(isBeginning ? inner : outer, edge));
      for (const {y: level} of lines) take(outer, level);
      // One spike or a wide band must not flatten the lines: they widen the axis only so far.
      const toLine = log ? Math.log : (value) => value, back = log ? Math.exp : (value) => value;
      let [low, high] = inner.map(toLine);
      const reach = 1.5 * (high - low) || (log ? 1 : 0.1 * Math.abs(high) || 1);
      [low, high] = [Math.min(low, Math.max(toLine(outer[0]), low - reach)), Math.max(high, Math.min(toLine(outer[1]), high + reach))];
      const pad = 0.06 * (high - low) || (log ? 0.5 : 0.1 * Math.abs(high) || 1);
      return [!log && y.from_zero && low >= 0 ? 0 : back(low - pad), back(high + pad)];
    }

    paint(pen, width, height) {
      const {group, panel, plot} = this, traces = this.drawn(), muted = group.colour("muted");
      Object.assign(plot, {top: 22, bottom: height - 36, right: width - 8});
      pen.font = `11px ${group.font}`;
      const y = new Scale(...this.yDomain(traces, this.isLog), plot.bottom, plot.top, this.isLog);
      const ticks = ticksOf(y, Math.max(2, Math.round((plot.bottom - plot.top) / 44)), panel.y.unit);
      plot.left = Math.max(40, Math.ceil(Math.max(0, ...ticks.map(({label}) => pen.measure(label)))) + 12);
      const x = new Scale(...group.domain(), plot.left, plot.right, group.state.logX);
      Object.assign(this, {x, y, traced: traces});
      const level = (at, colour) => pen.stroke([[plot.left, Math.round(at) + 0.5], [plot.right, Math.round(at) + 0.5]], colour);
      for (const {at, label} of ticks) {
        level(y.to(at), group.colour("grid"));
        pen.write(label, plot.left - 8, y.to(at), muted, "right");
      }
      level(plot.bottom, group.colour("line"));
      pen.write(group.axisLabel, plot.right, plot.bottom + 29, muted, "right");
      let free = -Infinity;
      for (const {at, label} of ticksOf(x, Math.max(2, Math.floor((plot.right - plot.left) / 90)), group.axisUnit)) {
        const half = pen.measure(label) / 2, place = Math.min(x.to(at), width - half);
        if (place - half < free) continue;
        free = place + half + 10;
        pen.write(label, place, plot.bottom + 14, muted, "center");
      }
      const clip = (margin) => pen.clip(plot.left - margin, plot.top - 4, plot.right - plot.left + 2 * margin, plot.bottom - plot.top + 5);
      clip(0);
      for (const {rows, colour} of this.bands()) this.paintArea(pen, rows.map((row) => [group.toAxis(row[0]), row[1], row[2]]), colour, 0.15);
      pen.unclip();
      this.paintLines(pen);  // the halo of a label must not hide a curve
      clip(4);  // more than the radius of a point: the first and the last one are whole
      for (const trace of traces) this.paintTrace(pen, trace);
      pen.unclip();
      for (const {kind, at, high, head, finding} of this.marksSeen()) {
        if (kind === "best") { drawStar(pen, at, high, 8, group.colour("best"), group.colour("card")); continue; }
        const colour = group.colour(group.findings[finding]?.severity ?? "warning");
        pen.stroke([[at, high], [at, head]], colour, {width: 1.3});
        pen.disc(at, head, 5, colour, group.colour("card"));
      }
    }
    // Rows of [x, low, high].
    paintArea(pen, rows, colour, alpha) {
      const placed = this.x.log ? rows.filter(([x]) => x > 0) : rows;
      const edge = (index) => placed.map((row) => [this.x.to(row[0]), this.y.to(row[index])]);
      if (placed.length > 1) pen.polygon([...edge(2), ...edge(1).reverse()], this.group.colour(colour), alpha);
    }
    paintTrace(pen, {rows, xs, smooth, from, to, series, colour, isOther}) {
      const {x, y, group, plot} = this, tone = group.colour(colour), hasPoints = series.style !== "line";
      const indices = Array.from({length: to - from}, (_, offset) => from + offset);
      const points = (valueAt) => indices.map((index) => {
        const value = valueAt(index);
        return value === null || Number.isNaN(value) || (y.log && value <= 0) ? null : [x.to(xs[index]), y.to(value)];
      });
      if (series.spread === "range" && !isOther) {
        let piece = [];
        for (const index of [...indices, -1]) {
          const [, value, low, high] = rows[index] ?? [0, null];
          if (value !== null) piece.push([xs[index], low ?? value, high ?? value]);
          else { this.paintArea(pen, piece, colour, smooth ? 0.1 : 0.2); piece = []; }
        }
      }
      const raw = points((index) => rows[index][1]);
      const look = {width: smooth || indices.length > 400 ? 1 : 1.6, alpha: smooth ? 0.28 : 1, dash: isOther && hasPoints ? [5, 3] : []};
      if (series.style !== "points") pen.stroke(raw, tone, look);
      // A point every 3 pixels is enough for a mean, and wide strokes are slow without a GPU.
      const isKept = (point, at) => !point || at % Math.max(1, Math.floor((3 * raw.length) / (plot.right - plot.left))) === 0 || at === raw.length - 1;
      if (smooth) pen.stroke(points((index) => smooth[index]).filter(isKept), tone, {width: 2});
      if (series.spread === "error" && !isOther) {
        const bars = indices.filter((index) => rows[index][1] !== null && Number.isFinite(rows[index][2]));
        const bar = (index) => [[x.to(xs[index]), y.to(rows[index][2])], [x.to(xs[index]), y.to(rows[index][3])], null];
        pen.stroke(bars.flatMap(bar), tone, {width: 1.3, alpha: 0.6});
      }
      const isSparse = series.style === "points" || (hasPoints && indices.length < (plot.right - plot.left) / 9);
      for (const point of isSparse ? raw : []) if (point) pen.disc(...point, 2.6, tone);
    }
    paintLines(pen) {
      const {group, plot, x, y} = this;
      pen.font = `11px ${group.font}`;
      let above = -Infinity;  // the last label: the lines across come from the highest loss down
      for (const {x: at, y: level, label = "", colour = "muted"} of this.panel.lines ?? []) {
        const tone = group.colour(colour), isAcross = Number.isFinite(level);
        const place = Math.round(isAcross ? y.to(level) : x.to(group.toAxis(at))) + 0.5;
        if (isAcross ? place < plot.top - 4 || place > plot.bottom : place < plot.left || place > plot.right) continue;
        pen.stroke(isAcross ? [[plot.left, place], [plot.right, place]] : [[place, plot.top - 14], [place, plot.bottom]], tone, {dash: [4, 4]});
        const isLate = !isAcross && place > plot.right - pen.measure(label) - 12;
        if (isAcross) pen.write(label, plot.right - 2, (above = place - 8 - above < 12 ? place + 8 : Math.max(place - 8, plot.top)), tone, "right", group.colour("card"));
        else pen.write(label, place + (isLate ? -5 : 5), plot.top - 10, tone, isLate ? "right" : "left");
      }
    }
    marksSeen() {
      const {group, plot, x, y} = this;
      return (this.panel.marks ?? []).map((mark) => {
        const at = x.to(group.toAxis(mark.x));
        const high = Number.isFinite(mark.y) ? Math.min(Math.max(y.to(mark.y), plot.top), plot.bottom) : plot.top + 14;
        return {...mark, at, high, head: Math.max(high - 20, plot.top - 6)};
      // A finding stays in sight. A star stands at its loss, or nowhere.
      }).filter(({kind, at, high, y: loss}) => at >= plot.left - 1 && at <= plot.right + 1 && (kind !== "best" || Math.abs(y.to(loss) - high) < 5));
    }
    pinAt(x, y) {
      const near = ({kind, at, head}) => kind === "finding" && Math.abs(at - x) < 11 && (y === null || Math.abs(head - y) < 13);
      return this.x ? this.marksSeen().find(near) : undefined;
    }
    pick(x, y) { const pin = this.pinAt(x, y); if (pin) this.group.onFinding(pin.finding); }
    // A dot on every line under the crosshair; words in the chart that is pointed at.
    paintHover(pen) {
      const {group, panel: {y: {unit}}} = this, {hover} = group, found = [];
      for (const {finding, at, head} of group.highlight ? this.marksSeen() : []) {
        if (finding === group.highlight) pen.disc(at, head, 9, null, group.colour("highlight"));
      }
      const [first, last] = group.domain();
      for (const {rows, xs, smooth, series, name, colour} of hover === null ? [] : this.traced) {
        let index = firstNotBelow(xs, hover);
        if (index > 0 && (index === rows.length || hover - xs[index - 1] < xs[index] - hover)) index -= 1;
        const [, value, low, high] = rows[index] ?? [0, null];
        if (value === null || xs[index] < first || xs[index] > last) continue;
        const shown = smooth ? smooth[index] : value;
        pen.disc(this.x.to(xs[index]), this.y.to(shown), 4, group.colour(colour), group.colour("card"));
        const range = `${formatValue(low, unit)} … ${formatValue(high, unit)}`, error = `± ${formatValue((high - low) / 2, unit)}`;
        const spread = !Number.isFinite(low) || low === high ? "" : series.spread === "error" ? error : range;
        const elsewhere = Math.abs(this.x.to(xs[index]) - this.x.to(hover)) > 12 ? group.formatX(xs[index]) : "";
        found.push({name, colour, value: formatValue(shown, unit), spread: [spread, elsewhere].filter(Boolean).join(" · ")});
      }
      const update = group.state.axis === "update" ? "" : ` · ${group.updateWord} ${grouped(Math.round(group.toUpdate(hover)))}`;
      const pin = this.pointerAt && this.pinAt(...this.pointerAt);
      this.showTooltip(`${group.formatX(hover ?? 0)}${update}`, group.hoverSource === this ? found : [], pin?.label);
    }

    // -- export: the chart as it is on the screen, with title and legend
    legendPlaces(width) {
      const {group: {measure, font, state: {hidden}}} = this;
      measure.font = `12px ${font}`;
      let left = 14, top = 43;
      return this.entries().filter(({key}) => !hidden.has(key)).map((entry) => {
        const wide = 38 + measure.measureText(entry.name).width;
        if (left > 14 && left + wide > width) [left, top] = [14, top + 20];
        return {...entry, left: (left += wide) - wide, top};
      });
    }
    paintSheet(pen, width, height, head) {
      const {group, panel} = this;
      pen.polygon([[0, 0], [width, 0], [width, height + head], [0, height + head]], group.colour("card"));
      pen.font = `600 15px ${group.font}`;
      pen.write([panel.title, group.title].filter(Boolean).join(" · "), 14, 20, group.colour("ink"));
      pen.font = `12px ${group.font}`;
      for (const {name, colour, kind, left, top} of this.legendPlaces(width)) {
        const thick = kind === "band" ? 12 : 4;  // an area is pale, as in the chart
        pen.stroke([[left, top], [left + 14, top]], group.colour(colour), {width: thick, alpha: kind === "band" ? 0.35 : 1});
        pen.write(name, left + 20, top, group.colour("muted"));
      }
      pen.translate(14, head);
      this.paint(pen, width - 28, height - 10);
      this.draw();  // the scales belong to the screen again
    }
    // A Blob of kind "png" or "svg".
    async picture(kind) {
      const [width, height] = [Math.max(this.width, 760), Math.max(this.height, 340)], head = 15 + (this.legendPlaces(width).at(-1)?.top ?? 43);
      const canvas = new OffscreenCanvas(2 * width, 2 * (height + head)), ctx = canvas.getContext("2d");
      ctx.scale(2, 2);
      const pen = kind === "svg" ? new SvgPen(width, height + head, this.group.measure) : new CanvasPen(ctx);
      this.paintSheet(pen, width, height, head);
      return kind === "svg" ? new Blob([pen.toString()], {type: "image/svg+xml"}) : canvas.convertToBlob();
    }
  }

  // ---- the ledger under a chart ----

  // Shares of the time in each bin, stacked, on the x axis of the chart above.
  class Strip extends Plot {
    constructor(group, ledger, host, beside, onPick) {
      super(group, host);
      Object.assign(this, {ledger, beside, onPick});
    }
    setLedger(ledger) { Object.assign(this, {ledger, isStale: true}); this.group.schedule(); }
    draws() { return this.beside.isStale; }
    paint(pen, width, height) {
      const {group, plot, ledger: {bins: {edges, seconds, phases}}} = this;
      Object.assign(plot, {left: this.beside.plot.left, right: width - 8, top: 0, bottom: height});
      const x = (this.x = new Scale(...group.domain(), plot.left, plot.right, group.state.logX));
      const inside = (place) => Math.min(Math.max(place, plot.left), plot.right);
      const bar = (left, right, bottom, top, colour) => pen.polygon([[left, bottom], [right, bottom], [right, top], [left, top]], group.colour(colour));
      bar(plot.left, plot.right, height, 0, "grid");
      for (let bin = 0; bin + 1 < edges.length; bin += 1) {
        const [left, right] = [edges[bin], edges[bin + 1]].map((edge) => inside(x.to(group.toAxis(edge))));
        const total = phases.reduce((sum, {id}) => sum + (seconds[id]?.[bin] ?? 0), 0);
        let bottom = height;
        for (const {id, colour} of total > 0 && right > left ? phases : []) {
          const part = (height * (seconds[id]?.[bin] ?? 0)) / total;
          if (part > 0) bar(left, right - (right - left > 5 ? 1 : 0), bottom, bottom - part, colour);
          bottom -= part;
        }
      }
    }
    binAt(value) {
      const {edges} = this.ledger.bins, update = this.group.toUpdate(value);
      return update < edges[0] || update > edges.at(-1) ? -1 : Math.max(0, firstNotBelow(edges, update) - 1);
    }
    paintHover() {
      const {group, ledger: {bins: {edges, seconds, phases}}} = this;
      const bin = group.hoverSource === this && group.hover !== null ? this.binAt(group.hover) : -1;
      const rows = phases.filter(({id}) => seconds[id]?.[bin] > 0)
        .map(({id, label, colour}) => ({name: label, colour, value: formatDuration(seconds[id][bin])}));
      this.showTooltip(`${group.updateWord} ${grouped(edges[bin] ?? 0)} – ${grouped(edges[bin + 1] ?? 0)}`, rows);
    }
    pick(x) { const {edges} = this.ledger.bins, bin = this.binAt(this.x.from(x)); if (bin >= 0) this.onPick(edges[bin], edges[bin + 1], bin); }
  }

  return {Group, Scale, interpolate, movingMean, ticksOf, stats};
})();
