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

  return {byteScale, exponential, formatCount, formatDuration, formatValue, grouped};
})();
