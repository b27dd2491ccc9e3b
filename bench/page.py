"""The page with a million steps, and with 200 runs; beside it TensorBoard and trackio on the same data.

    python -m bench.page --steps 1000000 --runs 200 --tools glassgpt tensorboard trackio

For each tool, in real Chromium: how long until the first curve is on the screen (the server runs and has read
the data before), what a tick costs (ten new steps a second): browser and server time, bytes; memory of
the server. A tick of TensorBoard is a reload, which its button makes: by default it makes none by itself.
The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

TICKS = 15
_LIMIT_S = 120.0  # until a page has drawn something
STEPS_PER_TICK = 10
_CHROMIUM = shutil.which("chromium") or "chromium"
_CHROMIUM_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_HAS_CURVE = """[...document.querySelectorAll("canvas")].some(c => c.width > 100 && c.getContext("2d")
  .getImageData(0, 0, c.width, c.height).data.some(value => value))"""


@dataclass
class Measured:
    tool: str
    ready_s: float | None = None  # from the start of the server until it answers with the data
    first_paint_s: float | None = None  # from opening the page until a curve is drawn
    tick_browser_ms: float | None = None
    tick_server_ms: float | None = None
    tick_bytes: float | None = None
    server_mib: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


# --- data ---


def loss_at(step: int, rng: random.Random) -> float:
    return 1.5 + 3.0 / math.sqrt(1 + step / 500) + rng.gauss(0, 0.05)


def step_line(step: int, rng: random.Random) -> str:
    loss = loss_at(step, rng)
    return (
        f'{{"kind":"step","time":{1.79e9 + 0.1 * step:.3f},"process":0,"start":"00000001","iter":{step},'
        f'"loss":{loss:.6f},"loss_mean":{loss:.6f},"lr":{1e-3 * math.exp(-step / 1e6):.8f},'
        f'"grad_norm":{0.5 + 0.1 * rng.random():.5f},"clipped":0.0,"tokens":{step * 16384},"updates":1,'
        f'"step_ms":{100 + rng.random():.3f},"first_update_ms":null,"phases":{{"data":0.5,"train":99.5}},'
        f'"tokens_per_s":{163000 + 500 * rng.random():.1f},"flops_per_s":1e13,"mfu":{40 + rng.random():.3f},'
        f'"memory":{{"rss":398934016}},"eta_s":10.0}}\n'
    )


def write_run(run_dir: Path, steps: int) -> None:
    rng = random.Random(steps)
    run_dir.mkdir(parents=True)
    run = {
        "kind": "run", "time": 1.79e9, "process": 0, "start": "00000001", "iter": 0, "journal_version": 1,
        "out_dir": str(run_dir), "choices": [], "machine": {}, "peak": {},
        "config": {"max_iters": 2 * steps, "eval_interval": max(1, steps // 100), "learning_rate": 1e-3},
        "model": {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "parameters": 10_700_000},
        "batch": {"tokens": 16384}, "data": {"name": "bench", "tokens": {"train": 10**6, "val": 10**5}},
    }  # fmt: skip
    with (run_dir / "journal.jsonl").open("w") as file:
        file.write(json.dumps(run) + "\n")
        for step in range(1, steps + 1):
            file.write(step_line(step, rng))
            if step % max(1, steps // 100) == 0:
                evaluation = {
                    "kind": "eval", "time": 1.79e9 + 0.1 * step, "process": 0, "start": "00000001",
                    "iter": step, "split": "val", "loss": loss_at(step, rng), "stderr": 0.01,
                    "tokens": 10**5, "ms": 900.0,
                    "whole_split": True, "closing": False, "best": False, "perplexity": 5.0,
                    "bits_per_byte": 2.0, "compile_ms": 0.0,
                }  # fmt: skip
                file.write(json.dumps(evaluation) + "\n")


# --- the browser ---


@contextmanager
def chromium_page(width: int = 1280, height: int = 900) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=list(_CHROMIUM_FLAGS))
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(1000 * _LIMIT_S)
        try:
            yield page
        finally:
            browser.close()


class BrowserMeter:
    """Main-thread time and received bytes of a page, by Chromium's own counters."""

    def __init__(self, page: Any) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")
        self._session.send("Network.enable")
        self.received_bytes = 0
        self._session.on("Network.dataReceived", self._count)

    def _count(self, event: dict[str, Any]) -> None:
        self.received_bytes += event["encodedDataLength"] or event["dataLength"]

    def task_s(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def server_cpu_s(process: psutil.Process) -> float:
    family = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in family)


def measure_ticks(
    measured: Measured, page: Any, process: psutil.Process, tick: Callable[[int], None], ticks: int = TICKS
) -> None:
    """`tick` adds steps to the data, and asks for a reload where a tool needs that."""
    meter = BrowserMeter(page)
    page.wait_for_timeout(3000)  # what the first paint left to do
    task_s, cpu_s, received = meter.task_s(), server_cpu_s(process), meter.received_bytes
    for number in range(ticks):
        tick(number)
        page.wait_for_timeout(1000)
    measured.tick_browser_ms = 1000 * (meter.task_s() - task_s) / ticks
    measured.tick_server_ms = 1000 * (server_cpu_s(process) - cpu_s) / ticks
    measured.tick_bytes = (meter.received_bytes - received) / ticks
    family = [process, *process.children(recursive=True)]
    measured.server_mib = sum(one.memory_info().rss for one in family) / 2**20


@contextmanager
def serving(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> Iterator[Any]:
    """Yields the process and the first http address that it prints."""
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if address := re.search(r"http://[\w.:\[\]-]+/?\S*", line):
                yield psutil.Process(process.pid), address[0]
                return
        raise RuntimeError(f"{command[0]} ended without an address")
    finally:
        for one in psutil.Process(process.pid).children(recursive=True):
            one.kill()
        process.kill()
        process.wait()


def open_page(page: Any, url: str, is_drawn: str) -> float:
    """Seconds until the script `is_drawn` is true."""
    started = time.perf_counter()
    page.goto(url)
    while not page.evaluate(is_drawn):  # not wait_for_function, which some pages forbid
        if time.perf_counter() - started > _LIMIT_S:
            raise RuntimeError(f"nothing was drawn in {_LIMIT_S:.0f} s")
        page.wait_for_timeout(20)
    return time.perf_counter() - started


# --- the tools ---


def measure_glassgpt(folder: Path, steps: int, runs: int) -> Measured:
    from glassgpt.record.run_dir import lock_run_dir

    measured = Measured("glassgpt")
    run_dir = folder / "long"
    write_run(run_dir, steps)
    command = [sys.executable, "-m", "glassgpt"]
    started = time.perf_counter()
    subprocess.run(
        [*command, "explain", str(run_dir)], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )  # builds the index
    measured.details["index_s"] = time.perf_counter() - started
    rng = random.Random(0)
    with ExitStack() as stack:
        lock = lock_run_dir(run_dir)  # it is running
        assert lock is not None
        stack.callback(lock.close)
        page = stack.enter_context(chromium_page())
        started = time.perf_counter()
        process, url = stack.enter_context(serving([*command, "page", str(run_dir), "--open=no"], folder))
        open_page(page, url, _HAS_CURVE)  # with imports and the reading of the index
        measured.ready_s = time.perf_counter() - started
        page.goto("about:blank")
        measured.first_paint_s = open_page(page, url, _HAS_CURVE)

        def tick(number: int) -> None:
            with (run_dir / "journal.jsonl").open("a") as file:
                for step in range(STEPS_PER_TICK):
                    file.write(step_line(steps + 1 + STEPS_PER_TICK * number + step, rng))

        measure_ticks(measured, page, process, tick)
    for number in range(runs):
        write_run(folder / "many" / f"run-{number:03}", 500)
    listed = f'document.body.textContent.includes("run-{runs - 1:03}")'
    many = [*command, "page", str(folder / "many"), "--open=no"]
    with chromium_page() as page, serving(many, folder) as (_, url):
        measured.details["list_of_runs_cold_s"] = open_page(page, url, listed)
        page.goto("about:blank")
        measured.details["list_of_runs_s"] = open_page(page, url, listed)
    return measured


def measure_tensorboard(folder: Path, steps: int) -> Measured:
    from torch.utils.tensorboard import SummaryWriter

    measured = Measured("tensorboard")
    rng = random.Random(0)
    logdir = folder / "tensorboard"
    writer = SummaryWriter(str(logdir / "long"), flush_secs=1)

    def add(step: int) -> None:
        for name, value in (("loss", loss_at(step, rng)), ("lr", 1e-3), ("tokens_per_s", 163e3)):
            writer.add_scalar(name, value, step)

    for step in range(1, steps + 1):
        add(step)
    writer.flush()
    program = shutil.which("tensorboard", path=str(Path(sys.executable).parent)) or "tensorboard"
    command = [
        program,
        "--logdir",
        str(logdir),
        *["--port", "0", "--host", "127.0.0.1", "--reload_interval", "1"],
    ]
    with ExitStack() as stack:
        started = time.perf_counter()
        process, url = stack.enter_context(serving(command, folder))
        page = stack.enter_context(chromium_page())
        has_data = "fetch('data/plugin/scalars/tags').then(r => r.json()).then(tags => !!tags.long)"
        open_page(page, url, has_data)
        measured.ready_s = time.perf_counter() - started
        measured.first_paint_s = open_page(page, url, '!!document.querySelector("line-chart canvas")')

        def tick(number: int) -> None:
            for step in range(STEPS_PER_TICK):
                add(steps + 1 + STEPS_PER_TICK * number + step)
            writer.flush()
            page.click("button.reload-button")

        measure_ticks(measured, page, process, tick, ticks=5)
    return measured


def measure_trackio(folder: Path, steps: int) -> Measured:
    measured = Measured("trackio")
    home = folder / "trackio"
    os.environ["TRACKIO_DIR"] = str(home)
    from trackio.sqlite_storage import SQLiteStorage

    rng = random.Random(0)

    def add(first: int, count: int) -> None:
        rows = [
            {"loss": loss_at(step, rng), "lr": 1e-3, "tokens_per_s": 163e3}
            for step in range(first, first + count)
        ]
        SQLiteStorage.bulk_log("bench", "long", rows, steps=list(range(first, first + count)))

    for first in range(1, steps + 1, 10_000):
        add(first, min(10_000, steps + 1 - first))
    program = shutil.which("trackio", path=str(Path(sys.executable).parent)) or "trackio"
    with ExitStack() as stack:
        started = time.perf_counter()
        command = [program, "show", "--project", "bench"]
        process, url = stack.enter_context(
            serving(command, folder, {"TRACKIO_DIR": str(home), "BROWSER": "true"})
        )
        measured.ready_s = time.perf_counter() - started
        page = stack.enter_context(chromium_page())
        drawn = '!!document.querySelector("svg.main-svg path.js-line, canvas, .plot svg path, svg path.line")'
        measured.first_paint_s = open_page(page, url, drawn)
        measure_ticks(measured, page, process, lambda number: add(steps + 1 + 10 * number, 10))
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--tools", nargs="+", default=["glassgpt", "tensorboard", "trackio"])
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for tool in arguments.tools:
            path = Path(folder)
            if tool == "glassgpt":
                measured = measure_glassgpt(path, arguments.steps, arguments.runs)
            else:
                measure = {"tensorboard": measure_tensorboard, "trackio": measure_trackio}[tool]
                measured = measure(path, arguments.steps)
            measured.details["load_average"] = os.getloadavg()[0]
            print(json.dumps(asdict(measured)), file=sys.stderr)
            results.append(asdict(measured))
    print(json.dumps({"steps": arguments.steps, "runs": arguments.runs, "tools": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
