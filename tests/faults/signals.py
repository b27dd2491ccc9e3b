"""Ctrl-C, SIGTERM and SIGHUP at every kind of moment, and a second process in the same folder.

    python tests/faults/signals.py

For each signal and moment a real process is sent the real signal while it is at it. The exit code, the line
that says how to go on, and the run that then goes on are checked: it has to end, bit by bit, as an untouched
one.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import campaign
import torch
from campaign import differences, make_data, run_outcome, run_to_the_end
from children import CHILD_PHASES, Child

from glassgpt import cli
from glassgpt.config import TrainConfig
from glassgpt.recipe import to_toml
from glassgpt.record.run_dir import is_run_dir
from glassgpt.training.checkpoint.checkpoints import committed_paths
from glassgpt.training.checkpoint.saver import Saver

settings = partial(campaign.settings, max_iters=45)
# SIGTERM goes the way of SIGINT once the run has begun.
MOMENTS = {signal.SIGINT: CHILD_PHASES, signal.SIGTERM: CHILD_PHASES[:2], signal.SIGHUP: CHILD_PHASES}


def command(config: TrainConfig) -> list[str]:
    """The run as a command line: begins it, or goes on with it."""
    if is_run_dir(Path(config.out_dir)):
        return ["train", "--init_from=resume", f"--out_dir={config.out_dir}"]
    path = Path(f"{config.out_dir}.toml")
    path.write_text(to_toml(config))
    return ["train", str(path)]


def run_command(config: TrainConfig, output: Path) -> Child:
    words = command(config)

    def work() -> int:
        sys.argv = ["glass", *words]
        cli.run()  # ends the process itself
        return 0

    return Child(work, output)


def stop_and_resume(folder: Path, number: signal.Signals, moment: str, expected: dict[str, Any]) -> list[str]:
    """What went wrong, in words."""
    config = settings(folder, f"{number.name}-{moment}")
    child = run_command(config, folder / "output.txt")
    child.wait_until(moment)
    child.send(number)
    code, said = child.wait(), child.output.read_text()
    wanted = 0 if number == signal.SIGHUP else 128 + number
    problems = [] if code == wanted else [f"exit code {code}, not {wanted}: {said[-500:]}"]
    if number == signal.SIGHUP:
        return problems + differences(expected, run_outcome(config))
    has_run = is_run_dir(Path(config.out_dir))
    line = f"glass train --init_from=resume --out_dir={config.out_dir}" if has_run else "stopped at once"
    if said.count(line) != 1:
        problems.append(f"it does not say how to go on, once: {said[-500:]}")
    if has_run and not committed_paths(Path(config.out_dir)):
        problems.append("nothing was saved")
    last = run_command(config, folder / "output.txt")
    if last.wait() != 0:
        problems.append(f"could not go on: {last.output.read_text()[-500:]}")
    else:
        problems += differences(expected, _without_cut_interval(expected, run_outcome(config)))
    return problems


def _without_cut_interval(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """An interval of updates that a stop cut in two is logged in two parts; the first is one too many."""
    kept = {iteration: loss for iteration, loss in found["losses"].items() if iteration in expected["losses"]}
    return found | {"losses": kept}


def second_signal_quits_at_once(folder: Path, number: signal.Signals) -> list[str]:
    """While a checkpoint is being written that takes forever; the one before it is whole."""
    config = settings(folder, f"twice-{number.name}")
    write = Saver._write

    def slow(saver: Saver, tensors: Any, state: dict[str, Any], record: Any) -> Any:
        if state["iter"] >= 15:
            time.sleep(60)
        return write(saver, tensors, state, record)

    Saver._write = slow  # type: ignore[method-assign, assignment]
    child = run_command(config, folder / "output.txt")
    Saver._write = write  # type: ignore[method-assign]
    while not (done := committed_paths(Path(config.out_dir))) or done[-1].name != "00000014":
        time.sleep(0.001)
    child.wait_until("save")
    child.send(number)
    time.sleep(0.3)
    alive = child.exit_code() is None
    child.send(number)
    started = time.monotonic()
    code = child.wait()
    took = time.monotonic() - started
    problems = [] if alive else ["the first signal did not wait for the checkpoint"]
    if code != 128 + number or took > 2:
        problems.append(f"the second signal: exit code {code} after {took:.1f} s")
    if committed_paths(Path(config.out_dir))[-1].name != "00000014":
        problems.append("the last committed checkpoint is gone")
    if run_command(config, folder / "output.txt").wait() != 0:
        problems.append("could not go on")
    return problems


def second_process_is_refused(folder: Path) -> list[str]:
    config = campaign.settings(folder, "two", max_iters=400)
    first = run_command(config, folder / "output.txt")
    first.wait_until("train")
    second = run_command(config, folder / "second.txt")
    code, said = second.wait(), second.output.read_text()
    problems = [] if code == 2 and "another process is training" in said else [f"second: {code} {said}"]
    return problems + ([] if first.wait() == 0 else ["the first one was disturbed"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.parse_args()
    torch.set_num_threads(1)
    problems: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        untouched = settings(folder, "untouched")
        run_to_the_end(untouched, folder / "output.txt")
        expected = run_outcome(untouched)
        for number, moments in MOMENTS.items():
            for moment in moments:
                problems[f"{number.name} at {moment}"] = stop_and_resume(folder, number, moment, expected)
        for number in (signal.SIGINT, signal.SIGTERM):
            problems[f"{number.name} twice"] = second_signal_quits_at_once(folder, number)
        problems["two processes"] = second_process_is_refused(folder)
    print(json.dumps(problems))
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
