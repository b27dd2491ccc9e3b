"""Ten charts of 1,500 rows in Chromium, drawn by our charts.js, by plotly and by bokeh.

    pip install --target /tmp/libraries plotly bokeh
    PYTHONPATH=/tmp/libraries python -m bench.chart_libraries

For each: bytes of script; first paint, from the start of the navigation of an offline file; and a tick: one
row more in each chart, as time of the browser's main thread (layout and paint included). Medians of 5 starts,
of 10 ticks each. The last line is one JSON document. A library that is not installed is left out.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from bench.page import BrowserMeter, chromium_page
from glassgpt.show.page.html import asset

STARTS, TICKS = 5, 10
DATA = """
const COUNT = 10, xs = Array.from({length: 1500}, (_, at) => 2 * at);
const ys = (chart) => xs.map((_, at) => 3 + Math.exp(-at / 200) + 0.3 * Math.sin(12.9898 * at + chart));
const hosts = Array.from({length: COUNT}, (_, chart) => document.getElementById(`chart${chart}`));
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
"""
OURS = """
const style = document.createElement("style");
style.textContent = ".plot {position: relative; height: 200px} .plot canvas {position: absolute; inset: 0;" +
  "width: 100%; height: 100%} :root {--train: #2563b8; --muted: #555; --grid: #eee; --line: #ddd}";
document.head.append(style);
const group = new GlassCharts.Group();
const look = {name: "n", colour: "train", style: "line", spread: "none", smooth: false};
hosts.forEach((host, chart) => {
  const values = ys(chart);
  group.rows[`s${chart}`] = xs.map((x, at) => [x, values[at]]);
  const series = [{id: `s${chart}`, ...look}];
  group.addChart({id: `p${chart}`, title: "t", y: {label: "", unit: ""}, series}, host);
});
await frame();
window.tick = (x) => hosts.forEach((_, chart) => group.append(`s${chart}`, [[x, 3]]));
"""
PLOTLY = """
for (const [chart, host] of hosts.entries()) {
  const layout = {margin: {l: 40, r: 10, t: 10, b: 30}};
  const trace = {type: "scatter", mode: "lines", x: [...xs], y: ys(chart)};
  await Plotly.newPlot(host, [trace], layout, {displayModeBar: false});
}
window.tick = (x) => Promise.all(hosts.map((host) => Plotly.extendTraces(host, {x: [[x]], y: [[3]]}, [0])));
"""
BOKEH = """
const sources = [];
for (const [chart, host] of hosts.entries()) {
  const source = new Bokeh.ColumnDataSource({data: {x: [...xs], y: ys(chart)}});
  const ranges = {x_range: new Bokeh.DataRange1d(), y_range: new Bokeh.DataRange1d()};
  const plot = new Bokeh.Plot({width: 620, height: 220, ...ranges});
  plot.add_layout(new Bokeh.LinearAxis(), "below");
  plot.add_layout(new Bokeh.LinearAxis(), "left");
  plot.add_glyph(new Bokeh.Line({x: {field: "x"}, y: {field: "y"}}), source);
  const made = new Bokeh.Document();
  made.add_root(plot);
  await Bokeh.embed.add_document_standalone(made, host);
  sources.push(source);
}
window.tick = (x) => sources.forEach((source) => source.stream({x: [x], y: [3]}));
"""


def libraries() -> dict[str, tuple[list[str], str]]:
    """Scripts and what draws with them, by name."""
    found = {"ours": ([asset(name) for name in ("numbers.js", "elements.js", "charts.js")], OURS)}
    places = {
        "plotly": (["package_data/plotly.min.js"], PLOTLY),
        "bokeh": (["server/static/js/bokeh.min.js", "server/static/js/bokeh-api.min.js"], BOKEH),
    }
    for name, (files, drawing) in places.items():
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            print(f"{name} is not installed")
            continue
        folder = Path(spec.origin).parent
        found[name] = [(folder / file).read_text(encoding="utf-8") for file in files], drawing
    return found


def measure(scripts: list[str], drawing: str, folder: Path) -> dict[str, float]:
    style = "<style>.host { width: 620px; height: 220px; display: inline-block }</style>"
    hosts = "".join(f'<div class="host" id="chart{chart}"></div>' for chart in range(10))
    blocks = "".join(f"<script>{script}</script>" for script in scripts)
    main = f"(async () => {{ {DATA} {drawing} await frame(); window.painted = performance.now(); }})()"
    path = folder / "charts.html"
    path.write_text(
        f"<!DOCTYPE html><meta charset=utf-8>{style}{hosts}{blocks}<script>{main}</script>", "utf-8"
    )
    run = "async ([from, to]) => { for (let at = from; at < to; at += 1) { await tick(3000 + 2 * at); "
    run += "await new Promise((done) => setTimeout(done, 100)); } }"
    firsts, ticks = [], []
    for _ in range(STARTS):
        with chromium_page(1400, 1300) as page:
            page.goto(path.as_uri())
            page.wait_for_function("window.painted > 0")
            firsts.append(page.evaluate("window.painted"))
            meter = BrowserMeter(page)
            page.evaluate(run, [0, 3])
            before, started = meter.task_s(), time.monotonic()
            page.wait_for_timeout(500)
            idle_share = (meter.task_s() - before) / (time.monotonic() - started)
            before, started = meter.task_s(), time.monotonic()
            page.evaluate(run, [3, 3 + TICKS])
            page.wait_for_timeout(200)
            busy_s = meter.task_s() - before - idle_share * (time.monotonic() - started)
            ticks.append(1000 * busy_s / TICKS)
    size = sum(len(script.encode()) for script in scripts)
    return {"bytes": size, "first_ms": statistics.median(firsts), "tick_ms": statistics.median(ticks)}


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (scripts, drawing) in libraries().items():
            results[name] = measure(scripts, drawing, Path(folder))
            print(name, {key: round(value, 1) for key, value in results[name].items()})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
