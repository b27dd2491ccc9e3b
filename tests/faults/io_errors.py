"""Every file system call fails in turn: once, and for good. As SQLite tests itself.

    python tests/faults/io_errors.py --sample=40      (or all of them: --sample=all)

The calls of an untouched command on the files of a run and of its dataset are counted. Then the command runs
again and again, and each time another call fails. It has to end with 0 or 2, quickly and without a traceback,
and with 2 it says why in one line. Then the disk is well again: every checkpoint that was committed must be
there and whole, the run has to go on, and to end bit by bit as the untouched one. Commands that only read
must end with 0 or 2 too. The last line printed is the report as JSON.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before anything else is loaded
    import shim

    shim.restart_with_shim()

import campaign
import torch
from campaign import CampaignReport, check_folder, differences, make_data, run_outcome
from children import Child
from shim import ALWAYS, COUNT, ONCE, Fault, with_fault
from signals import command

from glassgpt import cli
from glassgpt.config import TrainConfig
from glassgpt.record.run_dir import is_run_dir
from glassgpt.show.page import (
    html,  # noqa: F401
    report_listener,  # noqa: F401
)
from glassgpt.show.terminal import (
    nanogpt_console,  # noqa: F401 - loaded once, not by every process
    run_console,  # noqa: F401 - loaded once, not by every process
)
from glassgpt.training.checkpoint.checkpoints import committed_paths
from glassgpt.training.learner import Learner

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EMFILE, errno.EFBIG, errno.EACCES)
UPDATES = 6
LIMIT_S = 60.0


def settings(folder: Path, name: str) -> TrainConfig:
    """A run of a tenth of a second that does everything that a run does."""
    small: dict[str, Any] = {
        "n_layer": 1,
        "n_head": 1,
        "n_embd": 8,
        "block_size": 8,
        "eval_interval": 3,
        "log_interval": 2,
    }
    more: dict[str, Any] = {
        "checkpoint_interval": 2,
        "keep_checkpoints": 1,
        "eval_tokens": 64,
        "sample_tokens": 4,
    }
    more |= {"learning_rate": 0.3, "warmup_iters": 0, "decay_lr": False}  # its best is not its last
    base = campaign.settings(folder, name, max_iters=UPDATES)
    return TrainConfig(**vars(base) | small | more)


@dataclass
class Sweep:
    """What was tried, and what went wrong."""

    folder: Path
    expected: dict[str, Any]
    tried: Counter[str] = field(default_factory=Counter)  # by command
    survived: int = 0  # faults that a command came to its end with
    calls: Counter[str] = field(default_factory=Counter)  # that failed, by name
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        counts = {
            "tried": dict(self.tried),
            "survived": self.survived,
            "calls": dict(self.calls.most_common()),
        }
        return json.dumps(counts | {"problems": self.problems})


def glass(words: list[str], output: Path, fault: Fault | None = None) -> Child:
    def work() -> int:
        sys.argv = ["glass", *words]
        cli.run()  # ends the process itself
        return 0

    return Child(with_fault(work, fault) if fault else work, output)


def die_before(number: int) -> None:
    """The process that calls this is killed before update `number`, its checkpoints being written."""
    update = Learner.update

    def doomed(learner: Learner, at: int, first_sequence: int) -> None:
        if at == number:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        update(learner, at, first_sequence)

    Learner.update = doomed  # type: ignore[method-assign, assignment]


# --- commands that are disturbed ---


def command_words(what: str, config: TrainConfig) -> list[str]:
    run = config.out_dir
    if what in ("train", "resume"):
        return command(config)
    if what == "prepare":
        return ["prepare", f"{config.data_dir}/text.txt", f"--out_dir={run}"]
    return {
        "show": ["show", run],
        "runs": ["runs", str(Path(run).parent)],
        "explain": ["explain", run],
        "report": ["report", run, f"--out={run}/page.html"],
        "sample": ["sample", run, "--num_samples=1", "--max_new_tokens=4"],
        "export": ["export", run, "--to=glass", f"--out={run}-out"],
    }[what]


COMMANDS = ("train", "resume", "prepare", "show", "runs", "explain", "report", "sample", "export")


def prepare_folder(what: str, sweep: Sweep, name: str) -> TrainConfig:
    """A folder in the state that the command begins with."""
    parent = sweep.folder / name
    parent.mkdir()
    shutil.copytree(sweep.folder / "data", parent / "data")
    config = settings(parent, "run")
    if what not in ("train", "prepare"):
        shutil.copytree(
            sweep.folder / ("killed" if what == "resume" else "untouched") / "run", config.out_dir
        )
    if what == "prepare":
        shutil.copy(sweep.folder / "text.txt", parent / "data")
    return config


def inject_fault(what: str, sweep: Sweep, at: int, mode: int, error: int) -> Iterator[Child]:
    name = f"{what}-{at}-{mode}"
    config = prepare_folder(what, sweep, name)
    run_dir, output = Path(config.out_dir), sweep.folder / f"{name}.txt"
    fault = Fault((run_dir, Path(config.data_dir)), at, mode, error)
    before = [path.name for path in committed_paths(run_dir)]
    child = glass(command_words(what, config), output, fault)
    yield child
    code, said = child.wait(), output.read_text(errors="replace")
    problems = []
    if code not in (0, 2):
        problems.append(f"exit code {code}")
    if "Traceback" in said or "Exception ignored" in said:
        problems.append("a traceback")
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 2 and not any("/" in line for line in lines):
        problems.append("no line says why, and of which file")
    if what in ("train", "resume"):
        report = CampaignReport()
        check_folder(config, report)
        problems += report.failures
        if code != 0:
            again = glass(command(config), output.with_suffix(".again"))
            yield again
            if again.wait() != 0:
                problems.append(f"cannot go on: {again.output.read_text()[-600:]}")
        if not problems:
            problems += differences(sweep.expected, run_outcome(config))
        if what == "resume" and code != 0 and not before:
            problems.append("the test has no checkpoint to begin with")
    elif what == "prepare" and code != 0:
        again = glass(command_words(what, config), output.with_suffix(".again"))
        yield again
        if again.wait() != 0:
            problems.append(f"cannot be done again: {again.output.read_text()[-600:]}")
        left = [path.name for path in run_dir.parent.iterdir() if path.name not in ("run", "data")]
        problems += [f"left behind: {left}"] if left else []
    sweep.tried[what] += 1
    sweep.survived += code == 0
    sweep.calls[fault.where.partition(" ")[0]] += 1
    kind = "once" if mode == ONCE else "from then on"
    where = f"{what}: call {at}, {fault.where}, {errno.errorcode[error]} {kind}"
    if problems:
        sweep.problems.append(f"{where}: {'; '.join(problems)}\n{said[-2500:]}")
        print(f"PROBLEM: {sweep.problems[-1]}\n", file=sys.stderr, flush=True)
    shutil.rmtree(sweep.folder / name)


# --- all of them ---


def count_calls(what: str, sweep: Sweep) -> int:
    config = prepare_folder(what, sweep, f"{what}-untouched")
    fault = Fault((Path(config.out_dir), Path(config.data_dir)), 0, COUNT)
    child = glass(command_words(what, config), sweep.folder / "output.txt", fault)
    if child.wait() != 0:
        raise RuntimeError(child.output.read_text())
    return fault.calls


def make_baseline(folder: Path) -> Sweep:
    """The dataset, a run that nobody touched, and one that was killed halfway."""
    make_data(folder)
    for name in ("untouched", "killed"):
        (folder / name).mkdir()
        shutil.copytree(folder / "data", folder / name / "data")
        config = settings(folder / name, "run")
        words = command(config)

        def work(words: list[str] = words, name: str = name) -> int:
            if name == "killed":
                die_before(UPDATES - 1)
            sys.argv = ["glass", *words]
            cli.run()
            return 0

        child = Child(work, folder / "output.txt")
        if child.wait() != (0 if name == "untouched" else -signal.SIGKILL):
            raise RuntimeError(child.output.read_text())
        if not is_run_dir(Path(config.out_dir)):
            raise RuntimeError(f"no run: {child.output.read_text()}")
    return Sweep(folder, run_outcome(settings(folder / "untouched", "run")))


def sweep(folder: Path, sample: int | None, seed: int, commands: tuple[str, ...], jobs: int) -> Sweep:
    """`sample`: how many of all faults are tried, None: all."""
    done, draw = make_baseline(folder), random.Random(seed)
    cases = []
    for what in commands:
        calls = count_calls(what, done)
        print(f"{what}: {calls} calls", file=sys.stderr, flush=True)
        for at in range(1, calls + 1):
            for mode in (ONCE, ALWAYS):
                cases.append((what, at, mode, ERRORS[(2 * at + mode) % len(ERRORS)]))
    if sample is not None:
        cases = draw.sample(cases, min(sample, len(cases)))
    waiting = [inject_fault(what, done, at, mode, error) for what, at, mode, error in reversed(cases)]
    running: dict[Iterator[Child], Child] = {}
    started = time.monotonic()
    while waiting or running:
        while waiting and len(running) < jobs:
            case = waiting.pop()
            running[case] = next(case)
        for case, child in list(running.items()):
            if child.exit_code() is not None or time.monotonic() - child.started > LIMIT_S:
                try:
                    running[case] = next(case)
                except StopIteration:
                    del running[case]
                    if (number := sum(done.tried.values())) % 100 == 0:
                        spent = time.monotonic() - started
                        print(
                            f"{number} of {len(cases)} faults, {len(done.problems)} problems, {spent:.0f} s",
                            file=sys.stderr,
                            flush=True,
                        )
        time.sleep(0.002)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", default="40")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)  # forked processes cannot share a pool of threads
    sample = None if options.sample == "all" else int(options.sample)
    with tempfile.TemporaryDirectory() as folder:
        done = sweep(Path(folder), sample, options.seed, tuple(options.commands.split(",")), options.jobs)
    print(done.as_json())
    return 1 if done.problems else 0


if __name__ == "__main__":
    sys.exit(main())
