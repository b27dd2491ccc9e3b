// How numbers are written for people, in charts and around them, as format.py does:
//
//   GlassNumbers.formatValue(5985.2, "ms")      // 5985 ms
"use strict";

const GlassNumbers = (() => {
  const trimZeros = (text) => (text.includes(".") ? text.replace(/\.?0+($|e)/, "$1") : text);
  const exponential = (value, digits) => trimZeros(value.toExponential(digits)).replace("e+", "e");
  const grouped = (value, digits = 0) =>
    value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const byteScale = (size) =>
    size >= 2 ** 30 ? [2 ** 30, " GiB"] : size >= 2 ** 20 ? [2 ** 20, " MiB"] : [1024, " KiB"];

  function formatDuration(seconds) {
    if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const total = Math.round(seconds);
    if (total < 60) return `${total} s`;
    const [step, large, small] = total < 3600 ? [1, "m", "s"] : total < 86400 ? [60, "h", "m"] : [3600, "d", "h"];
    const count = Math.floor(total / step), base = step === 3600 ? 24 : 60;
    return `${Math.floor(count / base)}${large} ${String(count % base).padStart(2, "0")}${small}`;
  }

  function formatCount(value, digits = 3) {
    const size = Math.abs(value);
    if (size >= 1e15) return exponential(value, digits - 1);
    for (const [scale, suffix] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= scale && size >= 1e4) return trimZeros((value / scale).toPrecision(digits)) + suffix;
    }
    return size >= 1000 ? grouped(value) : trimZeros(value.toPrecision(Math.max(digits, 3)));
  }

  // A value in words of its unit, as precise as a reader can use.
  function formatValue(value, unit = "") {
    if (!Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (unit === "s" || (unit === "ms" && size >= 59_950)) return formatDuration(unit === "s" ? value : value / 1000);
    if (unit === "ms" && size >= 1e4) return `${(value / 1000).toFixed(1)} s`;
    if (unit === "ms") return `${value.toFixed(size < 9.995 ? 2 : size < 999.95 ? 1 : 0)} ms`;
    if (unit === "%") return `${value.toFixed(size < 9.995 ? 2 : size < 59.95 ? 1 : 0)}%`;
    if (unit === "bytes") return `${(value / byteScale(size)[0]).toFixed(2)}${byteScale(size)[1]}`;
    if (unit === "count") return formatCount(value, 4);
    if (value && (unit === "lr" || size < 1e-3 || size >= 1e7)) return exponential(value, 3);
    return size >= 1000 ? grouped(value, 1) : value.toFixed(size >= 100 ? 2 : 4);
  }

  // ---- on axes ----

  const DURATION_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  // What the labels of an axis that ends at `high` are counted in, and what is written after each.
  const tickUnit = (unit, high) => {
    if (unit === "bytes") return byteScale(high);
    return unit === "ms" && high >= 1e4 ? [1000, " s"] : [1, {ms: " ms", "%": "%"}[unit] ?? ""];
  };

  // A round distance between about `count` ticks.
  function niceStep(span, count, unit = "") {
    const rough = span / Math.max(count, 1), magnitude = 10 ** Math.floor(Math.log10(rough));
    const isNear = (step) => rough < 1.5 * step;
    if (unit !== "s" || rough <= 0.5) return magnitude * [1, 2, 5, 10].find((one) => isNear(one * magnitude));
    return DURATION_STEPS.find(isNear) ?? 86_400 * niceStep(span / 86_400, count);
  }

  // `step`: between two ticks; 0 on a logarithmic axis.
  function formatTick(value, step, unit) {
    const digitsOf = (number) => Math.floor(Math.log10(Math.abs(number)) + 1e-9), size = Math.abs(value);
    if (value === 0) return "0";
    if (unit === "s") return formatDuration(value).replace(/ 00[smh]$/, "");
    if (["count", "update", "tokens"].includes(unit)) return formatCount(value, unit === "update" ? 6 : 3);
    if (!["lr", "flops"].includes(unit) && size >= 1e-4 && size < 1e6) {
      return grouped(value, Math.max(0, -digitsOf(step || value)));
    }
    return exponential(value, step ? Math.max(0, digitsOf(value) - digitsOf(step)) : 0);
  }

  // A place on an x axis.
  function formatPlace(value, axis) {
    if (axis === "seconds") return formatDuration(value);
    if (axis === "update") return grouped(Math.round(value));
    if (axis === "flops") return exponential(value, 2);
    return axis === "epochs" ? value.toFixed(2) : formatCount(value, 4);
  }

  // What is around a value: an error, or the lowest and the highest.
  function formatSpread(low, high, unit, isError) {
    if (!Number.isFinite(low) || low === high) return "";
    if (isError) return `± ${formatValue((high - low) / 2, unit)}`;
    return `${formatValue(low, unit)} … ${formatValue(high, unit)}`;
  }

  return {
    formatCount, formatDuration, formatPlace, formatSpread, formatTick, formatValue, grouped, niceStep, tickUnit,
  };
})();
