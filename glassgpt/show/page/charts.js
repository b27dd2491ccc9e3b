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
  const {formatDuration, formatPlace, formatSpread, formatTick, formatValue, grouped, niceStep, tickUnit} =
    GlassNumbers;
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

  // About `count` round values between the ends of a scale, with their labels.
  function ticksOf(scale, count, unit = "") {
    const [factor, suffix] = tickUnit(unit, scale.high), [low, high] = [scale.low / factor, scale.high / factor];
    const decades = scale.log ? Math.log10(high / low) : 0, values = [], slack = 1e-9 * (high - low);
    if (!(high > low)) return [];
    const step = decades > 0.9 ? 0 : niceStep(high - low, count, unit);
    if (step) {
      const first = Math.ceil(low / step - 1e-9), last = Math.min(high / step + 1e-9, first + 60);
      for (let index = first; index <= last; index += 1) values.push(index * step);
    } else {
      const stride = Math.max(1, Math.ceil(decades / Math.max(count, 1)));
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        const between = power % stride ? [] : decades * 3 <= count ? [1, 2, 5] : [1];
        values.push(...between.map((one) => one * 10 ** power));
      }
    }
    return values.filter((value) => value >= low - slack && value <= high + slack)
      .map((value) => ({at: value * factor, label: formatTick(value, step, unit) + suffix}));
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

  const sharp = (pixel) => Math.round(pixel) + 0.5;  // the middle of a pixel: a thin line fills one
  const nextOf = (values, value) => values[(values.indexOf(value) + 1) % values.length];

  // Piecewise linear, going on with the slope of its first and last piece.
  function interpolate(from, to, value) {
    if (from.length < 2) return from.length ? to[0] + value - from[0] : value;
    const high = Math.min(Math.max(firstNotBelow(from, value), 1), from.length - 1), low = high - 1;
    const width = from[high] - from[low];
    return width ? to[low] + ((value - from[low]) / width) * (to[high] - to[low]) : to[low];
  }

  // The mean of the rows around each, as many as exponential smoothing of this weight takes together, but on both
  // sides, so that the line does not lag. Nothing is averaged over a gap. Near an end the window shrinks on both
  // sides, to a quarter, so that a falling line is hardly bent there and one last row is no spike.
  function movingMean(xs, rows, weight) {
    const count = rows.length, means = new Float64Array(count).fill(NaN), sums = new Float64Array(count + 1);
    const half = (((1 + weight) / (1 - weight)) * (xs.at(-1) - xs[0])) / (2 * (count - 1));
    for (let index = 0; index < count; index += 1) sums[index + 1] = sums[index] + (rows[index][1] ?? 0);
    for (let start = 0, end = 0; start < count; start = end + 1) {
      for (end = start; end < count && rows[end][1] !== null; ) end += 1;
      for (let index = start, left = start, right = start; index < end; index += 1) {
        while (xs[left] < xs[index] - half) left += 1;
        while (right < end && xs[right] <= xs[index] + half) right += 1;
        const isAtEnd = left === start || right === end, nearer = Math.min(index - left, right - 1 - index);
        const reach = isAtEnd ? Math.max(nearer, (right - left) >> 2) : count;
        const [from, to] = [Math.max(left, index - reach), Math.min(right, index + reach + 1)];
        means[index] = (sums[to] - sums[from]) / (to - from);
      }
    }
    return means;
  }

  // ---- pens: the same few strokes on a canvas and as SVG ----

  // `trace` and `write` are each pen's own. Points are [x, y], and null lifts the pen.
  class Pen {
    measure(text) { this.measuring.font = this.font; return this.measuring.measureText(text).width; }
    stroke(points, colour, look = {}) { this.trace(points, {stroke: colour, ...look}); }
    polygon(points, colour, alpha = 1) { this.trace(points, {fill: colour, alpha}); }
    line(x, y, otherX, otherY, colour, look) { this.stroke([[x, y], [otherX, otherY]], colour, look); }
    box(left, top, right, bottom, colour, alpha) {
      this.polygon([[left, bottom], [right, bottom], [right, top], [left, top]], colour, alpha);
    }
    // A closed line around a point: through a corner for each radius, the last on the first.
    ring(x, y, radii, fill, stroke, width) {
      const corners = radii.map((radius, corner) => {
        const angle = (2 * Math.PI * corner) / (radii.length - 1);
        return [x + radius * Math.sin(angle), y - radius * Math.cos(angle)];
      });
      this.trace(corners, {fill, stroke, width});
    }
    disc(x, y, radius, fill, edge = null) { this.ring(x, y, Array(17).fill(radius), fill, edge, fill ? 1.5 : 3); }
    star(x, y, radius, fill, edge) {
      this.ring(x, y, Array.from({length: 11}, (_, corner) => radius * (corner % 2 ? 0.45 : 1)), fill, edge, 1);
    }
  }

  class CanvasPen extends Pen {
    constructor(ctx) { Object.assign(super(), {ctx, measuring: ctx, font: ""}); }
    translate(x, y) { this.ctx.translate(x, y); }
    clip(...box) { this.ctx.save(); this.ctx.beginPath(); this.ctx.rect(...box); this.ctx.clip(); }
    unclip() { this.ctx.restore(); }
    trace(points, {fill = null, stroke = null, width = 1, dash = [], alpha = 1}) {
      const {ctx} = this, look = {lineWidth: width, lineJoin: "round", globalAlpha: alpha};
      let isDown = false;
      ctx.beginPath();
      for (const point of points) {
        if (point) ctx[isDown ? "lineTo" : "moveTo"](point[0], point[1]);
        isDown = point !== null;
      }
      Object.assign(ctx, look, {fillStyle: fill ?? "", strokeStyle: stroke ?? ""}).setLineDash(dash);
      if (fill) ctx.fill();
      if (stroke) ctx.stroke();
    }
    // `halo`: the colour of an edge that keeps the text readable on lines.
    write(text, x, y, colour, textAlign = "left", halo = "") {
      const look = {fillStyle: colour, strokeStyle: halo, lineWidth: 4, globalAlpha: 1};
      Object.assign(this.ctx, look, {font: this.font, textAlign, textBaseline: "middle"});
      if (halo) this.ctx.strokeText(directed(text), x, y);
      this.ctx.fillText(directed(text), x, y);
    }
  }

  const escapeXml = (text) =>
    String(text).replace(/[\u0000-\u001f\ufffe\uffff]/g, " ").replace(/[<>&"]/g, (one) => `&#${one.charCodeAt(0)};`);

  class SvgPen extends Pen {
    constructor(width, height, measuring) {
      Object.assign(super(), {width, height, measuring, parts: [], font: "", left: 0, top: 0});
    }
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
    trace(points, {fill = null, stroke = null, width = 1, dash = [], alpha = 1}) {
      const place = ([x, y]) => `${(x + this.left).toFixed(2)} ${(y + this.top).toFixed(2)}`;
      const step = (point, index) => (point ? `${index && points[index - 1] ? "L" : "M"}${place(point)}` : "");
      const line = {stroke, "stroke-width": width, "stroke-linejoin": "round", "stroke-dasharray": dash.join(" ")};
      const d = points.map(step).join("") + (fill ? "Z" : "");
      this.add("path", {d, fill: fill ?? "none", ...(stroke ? line : {}), opacity: alpha});
    }
    write(text, x, y, colour, textAlign = "left", halo = "none") {
      const [, weight = 400, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font);
      const place = {x: x + this.left, y: y + this.top + 0.35 * size};
      const look = {fill: colour, stroke: halo, "stroke-width": 4, "paint-order": "stroke"};
      const font = {"font-size": size, "font-weight": weight, "font-family": family};
      const anchor = {left: "start", center: "middle", right: "end"}[textAlign];
      this.add("text", {...place, ...look, ...font, "text-anchor": anchor}, directed(text));
    }
    toString() {
      const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
      return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${this.parts.join("")}</svg>`;
    }
  }

  // ---- a group of charts ----

  const SMOOTHING = [0, 0.6, 0.8, 0.9, 0.99];  // weights, for the key
  const stats = {lastFrameMs: 0};  // for measurements
  class Group {
    constructor(options = {}) {
      const usual = {axes: [{id: "update", label: "update"}], knots: {update: [0, 1]}, planned: null, title: ""};
      Object.assign(this, usual, {onChange: () => {}, onFinding: () => {}}, options);
      // Series -> rows, of the whole run; `detail`: {first, last, rows}, finer rows of the range zoomed to;
      // `overlays`: other runs, {id, name, colour, knots, rows, panels}.
      Object.assign(this, {plots: [], rows: {}, detail: null, overlays: []});
      // x on the current axis, the id of a finding, and all of them: id -> {at: [updates], severity}.
      Object.assign(this, {hover: null, highlight: null, findings: {}});
      Object.assign(this, {colours: new Map(), version: 0, frame: 0, isCropped: true});
      this.state = {axis: "update", logX: false, smoothing: 0, range: null, toPlan: false};
      Object.assign(this.state, {hidden: new Set(), flipped: new Set()});
      this.intersections = new IntersectionObserver((entries) => {
        for (const {target, isIntersecting} of entries) target.plot.isVisible = isIntersecting;
        this.schedule();
      }, {rootMargin: "120px"});
      this.sizes = new ResizeObserver((entries) => {
        for (const {target, contentRect: {width, height}} of entries) target.plot.resize(width, height);
      });
      this.probe = Object.assign(node("span", "", document.body), {hidden: true});
      this.measure = document.createElement("canvas").getContext("2d");
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    }
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
      for (const part of [this.rows, this.detail?.rows ?? {}]) {
        for (const [name, rows] of Object.entries(part)) part[name] = rows.filter(([at]) => at <= update);
      }
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
    toggle(name, key) { this.set({[name]: this.state[name].symmetricDifference(new Set([key]))}); }
    toAxis(update, knots = this.knots) { return this.convert(update, knots.update, knots[this.state.axis]); }
    toUpdate(value) { return this.convert(value, this.knots[this.state.axis], this.knots.update); }
    convert(value, from, to) { return from && to && from !== to ? interpolate(from, to, value) : value; }
    get axisUnit() { return this.state.axis === "seconds" ? "s" : this.state.axis; }
    get updateWord() { return this.axes.find(({id}) => id === "update")?.label ?? ""; }
    get axisLabel() { return this.axes.find((axis) => axis.id === this.state.axis)?.label ?? ""; }
    formatX(value) {
      const {axis} = this.state, text = formatPlace(value, axis);
      return axis === "seconds" ? text : `${this.axisLabel} ${text}`;
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
      const range = [first, last].map((value) => this.toUpdate(value));
      if (first <= from && last >= to) this.set({range: null});
      else if (range[1] - range[0] >= 1) this.set({range});
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
    cycleAxis() { this.set({axis: nextOf(this.axes.map(({id}) => id), this.state.axis)}); }
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
      host.plot = this.area.plot = this;
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
      const {group, x, plot: {left, right, top, bottom}, isOverlayEmpty: wasEmpty} = this;
      const isEmpty = group.hover === null && group.highlight === null && !this.selection;
      Object.assign(this, {isOverlayStale: false, isOverlayEmpty: isEmpty});
      if (isEmpty && wasEmpty) return;  // a canvas that nobody touches costs nothing
      const pen = this.prepare(this.overlay), [low, high] = this.selection ?? [0, 0];
      const upright = (at, colour, dash) => {
        const place = sharp(x.to(at));
        if (place >= left && place <= right + 1) pen.line(place, top, place, bottom, group.colour(colour), {dash});
      };
      pen.box(low, top, high, bottom, group.colour("train"), 0.14);
      for (const at of group.findings[group.highlight]?.at ?? []) upright(group.toAxis(at), "highlight", []);
      if (group.hover !== null) upright(group.hover, "muted", [3, 3]);
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
      const place = ({clientX, clientY}) => {
        const {left, top} = area.getBoundingClientRect();
        return [clientX - left, clientY - top];
      };
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
        const isDragged = Number.isFinite(this.pressed) && Math.abs(x - this.pressed) > 4;
        if (isDragged) this.selection = [this.pressed, x].map(inside);
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
      area.addEventListener("pointerleave", ({pointerType}) => {
        this.pointerAt = null;
        if (!pointers.size && pointerType !== "touch") group.setHover(null);
      });
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
        Escape: () => { group.setHover(null); group.reset(); },
        Enter: () => group.hover !== null && this.pick(this.x.to(group.hover), null),
        x: () => group.cycleAxis(), l: () => group.toggle("flipped", this.panel?.id ?? "loss"),
        s: () => group.set({smoothing: nextOf(SMOOTHING, group.state.smoothing)}),
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
      const trace = (key, rows, knots, series, look) => {
        const token = `${group.version} ${axis}`;
        let held = this.traces.get(key);
        if (held?.token !== token || held.rows !== rows) {
          held = {token, rows, xs: Float64Array.from(rows, (row) => group.toAxis(row[0], knots))};
          this.traces.set(key, held);
        }
        const {xs} = held, isSmooth = smoothing && series.smooth && rows.length > 4;
        const smooth = isSmooth ? movingMean(xs, rows, smoothing) : null;
        const first = logX ? firstNotBelow(xs, Number.MIN_VALUE) : 0;  // a logarithmic axis has no 0
        const from = Math.max(first, firstNotBelow(xs, low) - 1);
        return {...held, ...look, smooth, series, from, to: Math.min(rows.length, firstNotBelow(xs, high) + 1)};
      };
      const shown = panel.series.filter(({id}) => !hidden.has(id));
      const compared = shown.filter((one) => one.compared !== false);
      const ofOther = ({id, name, colour, rows, knots}) => compared.filter((one) => rows[one.id]?.length).map((one) =>
        trace(`${id} ${one.id}`, rows[one.id], knots, one, {name: `${name} · ${one.name}`, colour, isOther: true}));
      const others = group.overlays.filter(({id}) => !hidden.has(`run~${id}`)).flatMap(ofOther);
      return [...others, ...shown.map((one) => trace(one.id, group.rowsOf(one.id), group.knots, one, one))];
    }
    bands() {
      const {panel: {id, bands = []}, group: {state: {hidden}}} = this;
      return bands.filter((_, index) => !hidden.has(`${id}~${index}`));
    }

    yDomain(traces, log) {
      const {panel: {id, y, lines = []}, group} = this;
      const inner = [Infinity, -Infinity], outer = [Infinity, -Infinity];
      const take = (bounds, value) => {  // what is unknown compares as false
        if (value < bounds[0] && (!log || value > 0)) bounds[0] = value;
        if (value > bounds[1]) bounds[1] = value;
      };
      if (y.range && group.isCropped && !group.state.range && log === Boolean(y.log)) {
        const ranges = group.overlays.map(({panels = []}) => panels.find((panel) => panel.id === id)?.y.range);
        for (const range of [y.range, ...ranges]) range?.forEach((edge) => take(inner, edge));
        const others = traces.filter(({isOther}) => isOther).flatMap(({rows, from, to}) => rows.slice(from, to));
        return [Math.min(inner[0], ...others.map(([, value]) => value ?? Infinity)), inner[1]];
      }
      for (const {rows, from, to, smooth, series} of traces) {
        for (let index = from; index < to; index += 1) {
          const [, value, least, most] = rows[index];
          if (value === null) continue;
          take(inner, smooth ? smooth[index] : value);
          for (const one of [value, least, most]) take(series.spread === "error" ? inner : outer, one);
        }
      }
      if (!(inner[0] <= inner[1])) return log ? [0.1, 1] : [0, 1];
      const isBeginning = traces.reduce((seen, one) => seen + one.to - one.from, 0) < 6, [from, to] = group.domain();
      for (const [at, ...edges] of this.bands().flatMap(({rows}) => rows)) {
        if (group.toAxis(at) < from || group.toAxis(at) > to) continue;
        edges.forEach((edge) => take(isBeginning ? inner : outer, edge));
      }
      for (const {y: level} of lines) take(outer, level);
      // One spike or a wide band must not flatten the lines: they widen the axis only so far.
      const toLine = log ? Math.log : (value) => value, back = log ? Math.exp : (value) => value;
      let [low, high] = inner.map(toLine);
      const reach = 1.5 * (high - low) || (log ? 1 : 0.1 * Math.abs(high) || 1);
      low = Math.min(low, Math.max(toLine(outer[0]), low - reach));
      high = Math.max(high, Math.min(toLine(outer[1]), high + reach));
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
      const level = (at, colour) => pen.line(plot.left, sharp(at), plot.right, sharp(at), group.colour(colour));
      for (const {at, label} of ticks) {
        level(y.to(at), "grid");
        pen.write(label, plot.left - 8, y.to(at), muted, "right");
      }
      level(plot.bottom, "line");
      pen.write(group.axisLabel, plot.right, plot.bottom + 29, muted, "right");
      let free = -Infinity;
      for (const {at, label} of ticksOf(x, Math.max(2, Math.floor((plot.right - plot.left) / 90)), group.axisUnit)) {
        const half = pen.measure(label) / 2, place = Math.min(x.to(at), width - half);
        if (place - half < free) continue;
        free = place + half + 10;
        pen.write(label, place, plot.bottom + 14, muted, "center");
      }
      const [wide, tall] = [plot.right - plot.left, plot.bottom - plot.top];
      const clip = (margin) => pen.clip(plot.left - margin, plot.top - 4, wide + 2 * margin, tall + 5);
      clip(0);
      for (const {rows, colour} of this.bands()) {
        this.paintArea(pen, rows.map(([at, ...edges]) => [group.toAxis(at), ...edges]), colour, 0.15);
      }
      pen.unclip();
      this.paintLines(pen);  // the halo of a label must not hide a curve
      clip(4);  // more than the radius of a point: the first and the last one are whole
      for (const trace of traces) this.paintTrace(pen, trace);
      pen.unclip();
      for (const {kind, at, high, head, finding} of this.marksSeen()) {
        const edge = group.colour("card"), colour = group.colour(group.findings[finding]?.severity ?? "warning");
        if (kind === "best") { pen.star(at, high, 8, group.colour("best"), edge); continue; }
        pen.line(at, high, at, head, colour, {width: 1.3});
        pen.disc(at, head, 5, colour, edge);
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
      const look = {width: smooth || raw.length > 400 ? 1 : 1.6, alpha: smooth ? 0.28 : 1};
      if (series.style !== "points") pen.stroke(raw, tone, {...look, dash: isOther && hasPoints ? [5, 3] : []});
      // A point every 3 pixels is enough for a mean, and wide strokes are slow without a GPU.
      const wide = plot.right - plot.left, stride = Math.max(1, Math.floor((3 * raw.length) / wide));
      const isKept = (point, at) => !point || at % stride === 0 || at === raw.length - 1;
      if (smooth) pen.stroke(points((index) => smooth[index]).filter(isKept), tone, {width: 2});
      for (const index of series.spread === "error" && !isOther ? indices : []) {
        const [, value, low, high] = rows[index], at = x.to(xs[index]), look = {width: 1.3, alpha: 0.6};
        if (value !== null && Number.isFinite(low)) pen.line(at, y.to(low), at, y.to(high), tone, look);
      }
      const isSparse = series.style === "points" || (hasPoints && raw.length < wide / 9);
      for (const point of isSparse ? raw : []) if (point) pen.disc(...point, 2.6, tone);
    }
    paintLines(pen) {
      const {group, plot, x, y} = this;
      let above = -Infinity;  // the last label: the lines across come from the highest loss down
      for (const {x: at, y: level, label = "", colour = "muted"} of this.panel.lines ?? []) {
        const tone = group.colour(colour), isAcross = Number.isFinite(level), {left, right, top, bottom} = plot;
        const place = sharp(isAcross ? y.to(level) : x.to(group.toAxis(at)));
        if (isAcross ? place < top - 4 || place > bottom : place < left || place > right) continue;
        const ends = isAcross ? [left, place, right, place] : [place, top - 14, place, bottom];
        pen.line(...ends, tone, {dash: [4, 4]});
        if (isAcross) {
          above = place - 8 - above < 12 ? place + 8 : Math.max(place - 8, top);
          pen.write(label, right - 2, above, tone, "right", group.colour("card"));
        } else {
          const isLate = place > right - pen.measure(label) - 12;
          pen.write(label, place + (isLate ? -5 : 5), top - 10, tone, isLate ? "right" : "left");
        }
      }
    }
    marksSeen() {
      const {group, plot: {left, right, top, bottom}, x, y} = this;
      return (this.panel.marks ?? []).map((mark) => {
        const at = x.to(group.toAxis(mark.x)), place = y.to(mark.y);
        const high = Number.isFinite(mark.y) ? Math.min(Math.max(place, top), bottom) : top + 14;
        // A finding stays in sight. A star stands at its loss, or nowhere.
        const isInside = at >= left - 1 && at <= right + 1 && (mark.kind !== "best" || Math.abs(place - high) < 5);
        return {...mark, at, high, head: Math.max(high - 20, top - 6), isInside};
      }).filter(({isInside}) => isInside);
    }
    pinAt(x, y) {
      const isNear = ({at, head}) => Math.abs(at - x) < 11 && (y === null || Math.abs(head - y) < 13);
      return this.x ? this.marksSeen().find((mark) => mark.kind === "finding" && isNear(mark)) : undefined;
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
        const elsewhere = Math.abs(this.x.to(xs[index]) - this.x.to(hover)) > 12 ? group.formatX(xs[index]) : "";
        const notes = [formatSpread(low, high, unit, series.spread === "error"), elsewhere].filter(Boolean);
        found.push({name, colour, value: formatValue(shown, unit), spread: notes.join(" · ")});
      }
      const isUpdate = group.state.axis === "update", at = grouped(Math.round(group.toUpdate(hover ?? 0)));
      const update = isUpdate ? "" : ` · ${group.updateWord} ${at}`;
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
      pen.box(0, 0, width, height + head, group.colour("card"));
      pen.font = `600 15px ${group.font}`;
      pen.write([panel.title, group.title].filter(Boolean).join(" · "), 14, 20, group.colour("ink"));
      pen.font = `12px ${group.font}`;
      for (const {name, colour, kind, left, top} of this.legendPlaces(width)) {
        const look = kind === "band" ? {width: 12, alpha: 0.35} : {width: 4};  // an area is pale, as in the chart
        pen.line(left, top, left + 14, top, group.colour(colour), look);
        pen.write(name, left + 20, top, group.colour("muted"));
      }
      pen.translate(14, head);
      this.paint(pen, width - 28, height - 10);
      this.draw();  // the scales belong to the screen again
    }
    // A Blob of kind "png" or "svg".
    async picture(kind) {
      const [width, height] = [Math.max(this.width, 760), Math.max(this.height, 340)];
      const head = 15 + (this.legendPlaces(width).at(-1)?.top ?? 43);
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
      pen.box(plot.left, 0, plot.right, height, group.colour("grid"));
      for (let bin = 0; bin + 1 < edges.length; bin += 1) {
        const [left, right] = [edges[bin], edges[bin + 1]].map((edge) => inside(x.to(group.toAxis(edge))));
        const total = phases.reduce((sum, {id}) => sum + (seconds[id]?.[bin] ?? 0), 0);
        let bottom = height;
        for (const {id, colour} of total > 0 && right > left ? phases : []) {
          const part = (height * (seconds[id]?.[bin] ?? 0)) / total;
          const end = right - (right - left > 5 ? 1 : 0);
          if (part > 0) pen.box(left, bottom - part, end, bottom, group.colour(colour));
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
    pick(x) {
      const {edges} = this.ledger.bins, bin = this.binAt(this.x.from(x));
      if (bin >= 0) this.onPick(edges[bin], edges[bin + 1], bin);
    }
  }

  return {Group, Scale, interpolate, movingMean, ticksOf, stats};
})();
