"""What the page costs a run: tokens/s with the server and one stream reader, over tokens/s without.

    python -m bench.page_overhead --rounds 7 --updates 200

Each round trains the same model twice, in alternating order, and takes the median tokens/s of its log lines.
The last line is one JSON document: the ratios, their median, their range, which for seven rounds holds the
true median with 98% (a sign test); how much of one core the page's process took, which does not depend on
what else the machine does; and the load average.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import psutil  # type: ignore[import-untyped]

import glassgpt

_RUN = [
    "train",
    "quickstart",
    "--eval_interval=1000000",
    "--log_interval=10",
    "--sample_tokens=0",
    "--history=off",
]


def train_tokens_per_s(
    folder: Path, name: str, updates: int, page: str, preset: list[str]
) -> tuple[float, float]:
    """And the share of a core that the page's process took, 0.0 without one."""
    command = [sys.executable, "-u", "-m", "glassgpt", *_RUN, *preset, f"--max_iters={updates}"]
    command += [f"--out_dir={folder / name}", f"--page={page}"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    output, started, page_cpu_s = "", time.perf_counter(), 0.0
    for line in process.stdout:
        output += line
        page_cpu_s, wall_s = max(page_cpu_s, page_process_cpu_s(process.pid)), time.perf_counter() - started
        if address := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line):
            threading.Thread(target=read_stream, args=(address[0],), daemon=True).start()
    if process.wait() != 0:
        raise RuntimeError(output)
    if page == "on" and "http://" not in output:
        raise RuntimeError("the run printed no address of its page")
    records = glassgpt.read_journal(folder / name)
    steps = [record["tokens_per_s"] for record in records if record["kind"] == "step"]
    return float(statistics.median(steps)), page_cpu_s / wall_s


def page_process_cpu_s(pid: int) -> float:
    spent_s = 0.0
    with contextlib.suppress(psutil.Error):  # it has just ended
        for child in psutil.Process(pid).children():
            if "glassgpt.show.page.launch" in child.cmdline():
                spent_s += sum(child.cpu_times()[:2])
    return spent_s


def read_stream(url: str) -> None:
    """A tab: its cookie, the list, the view, then events until the server ends."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    base = url.partition("?")[0]
    try:
        opener.open(url).read()
        run = json.load(opener.open(f"{base}api/runs"))["runs"][0]["id"]
        with opener.open(f"{base}api/runs/{run}/events?cursor=") as events:
            while events.read1(65536):
                pass
    except OSError:  # the server has ended
        return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page_overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=200)
    arguments, preset = parser.parse_known_args()
    ratios, page_shares = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train_tokens_per_s(folder, "warm-up", 20, "off", preset)
        for number in range(arguments.rounds):
            order = ("on", "off") if number % 2 else ("off", "on")
            speed = {
                page: train_tokens_per_s(folder, f"{number}-{page}", arguments.updates, page, preset)
                for page in order
            }
            (on, page_share), (off, _) = speed["on"], speed["off"]
            ratios.append(on / off)
            page_shares.append(page_share)
            print(f"round {number}: {on:,.0f} against {off:,.0f} tokens/s", file=sys.stderr)
    ordered = sorted(ratios)
    extremes = [ordered[0], ordered[-1]]
    result = {"ratios": ratios, "median": statistics.median(ratios), "range": extremes}
    result |= {"page_core_share": statistics.median(page_shares), "load_average": os.getloadavg()[0]}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
