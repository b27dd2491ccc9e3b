"""What the page costs a run: tokens/s with the server and one stream reader, over tokens/s without.

    python -m bench.page_overhead --rounds 7 --window 4
    python -m bench.page_overhead --device cuda --preset gpt2_124m --data DIR --log-interval 1 --batch_size=16

One run trains all the time, without a page of its own. Beside it the page is started, as `glass train` does,
and ended: off, on, on, off, off, on, … Speeds are from the first log line of a window to the last, so what a
page does while it starts is not in them. A round is one window of each. Unknown flags are those of
`glass train`. It needs no browser: the reader asks for what a tab asks for, and reads its events.

The last line is one JSON document: the ratios, their median, and their interval: from the lowest to the
highest, which for seven rounds holds the true median with 98% (a sign test); how much of one core the page's
process took, which does not depend on what else the machine does; and the load average.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import glassgpt
from glassgpt.show.page.launch import page_problems, start_beside_run

LIMIT_S = 120.0  # until the run logs, or the page answers
MIN_LINES = 5  # of a window
SETTLE_S = 0.5  # after the page was started or ended
_RUN = [
    *("--page=off", "--sample_tokens=0", "--history=off"),
    *("--max_iters=100000000", "--eval_interval=100000000"),
]


@contextmanager
def training_run(folder: Path, preset: str, flags: list[str]) -> Iterator[Path]:
    """Its folder, once it logs at a steady speed."""
    run_dir = folder / "run"
    command = [sys.executable, "-m", "glassgpt", "train", preset, *_RUN, *flags, f"--out_dir={run_dir}"]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(steps_of(run_dir)) < MIN_LINES:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the run logs nothing:\n{(folder / 'output').read_text()}")
                time.sleep(0.5)
            yield run_dir
        finally:
            process.kill()
            process.wait()


def steps_of(run_dir: Path, since: float = 0.0) -> list[dict[str, Any]]:
    if not (run_dir / "journal.jsonl").exists():
        return []
    records = glassgpt.read_journal(run_dir)
    return [record for record in records if record["kind"] == "step" and record["time"] >= since]


def speed_of_window(run_dir: Path, window_s: float) -> float:
    """Tokens per second, from the first log line of a window to its last. It is longer if lines are rare."""
    started, deadline = time.time(), time.monotonic() + LIMIT_S
    time.sleep(window_s)
    while len(steps := steps_of(run_dir, started)) < MIN_LINES:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(steps)} log lines in {LIMIT_S:g} s: lower --log-interval")
        time.sleep(0.2)
    first, last = steps[0], steps[-1]
    return float((last["tokens"] - first["tokens"]) / (last["time"] - first["time"]))


class Page:
    """The process beside the run, with one reader."""

    def __init__(self, run_dir: Path) -> None:
        url, reads = start_beside_run(run_dir), threading.Event()
        children = psutil.Process().children()
        (self.process,) = (one for one in children if "glassgpt.show.page.launch" in one.cmdline())
        threading.Thread(target=read_stream, args=(url, reads), daemon=True).start()
        if not reads.wait(LIMIT_S):
            raise RuntimeError("the page sends no events")

    def cpu_s(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def read_stream(url: str, reads: threading.Event) -> None:
    """A tab: its cookie, the list, the view, then events until the server ends."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    base = url.partition("?")[0]
    try:
        opener.open(url).read()
        run = json.load(opener.open(f"{base}api/runs"))["runs"][0]["id"]
        while "view" not in (view := json.load(opener.open(f"{base}api/runs/{run}/view"))):
            time.sleep(0.1)
        with opener.open(f"{base}api/runs/{run}/events?cursor={view['cursor']}") as events:
            while events.read1(65536):
                reads.set()
    except (OSError, HTTPException):  # the server has ended
        return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page_overhead", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="", metavar="DIR", help="a prepared dataset; default: the preset's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each measurement, at least")
    parser.add_argument("--log-interval", type=int, default=10)
    arguments, flags = parser.parse_known_args()
    if problems := page_problems():
        parser.error(problems[0])
    flags += [f"--device={arguments.device}", f"--log_interval={arguments.log_interval}"]
    flags += [f"--data_dir={Path(arguments.data).resolve()}"] if arguments.data else []
    speeds: dict[bool, list[float]] = {True: [], False: []}
    shares, page = [], None
    with (
        tempfile.TemporaryDirectory() as temporary,
        training_run(Path(temporary), arguments.preset, flags) as run_dir,
    ):
        speed_of_window(run_dir, arguments.window)  # the machine warms up
        for window in range(2 * arguments.rounds):
            has_page = window % 4 in (1, 2)
            if has_page and page is None:
                page = Page(run_dir)
            elif page is not None and not has_page:
                page.end()
                page = None
            time.sleep(SETTLE_S)
            before_s, started = page.cpu_s() if page else 0.0, time.monotonic()
            speed = speed_of_window(run_dir, arguments.window)
            if page:
                shares.append((page.cpu_s() - before_s) / (time.monotonic() - started))
            speeds[has_page].append(speed)
            print(f"page {'on ' if has_page else 'off'} {speed:,.0f} tokens/s", file=sys.stderr)
        if page is not None:
            page.end()
    ratios = [on / off for on, off in zip(speeds[True], speeds[False], strict=True)]
    result = {"preset": arguments.preset, "device": arguments.device, "flags": flags, "ratios": ratios}
    result |= {"median": statistics.median(ratios), "interval": [min(ratios), max(ratios)]}
    result |= {"on": statistics.median(speeds[True]), "off": statistics.median(speeds[False])}
    result |= {"page_core_share": statistics.median(shares), "load_average": os.getloadavg()[0]}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
