"""kill -9, again and again: at random instants of training, evaluating and saving, and at system calls.

    python tests/faults/campaign.py --kills=1000 --seed=1 --io-errors=all      (or: make faults)

Real processes train in a real folder and are really killed: half of them at random instants, half right
before or after a system call that changes a file (shim.c; where it cannot be loaded, all at random instants).
After every kill, each committed checkpoint is read through and compared with its checksums, and none that the
journal has on record may be missing. Then the run goes on, is killed again, and when it finally ends, its
weights, optimizer, losses and evaluations have to be, bit by bit, those of a run that nobody touched.
--io-errors=N|all: then io_errors.py fails calls instead. The last line printed is the report as JSON.

The processes are forked from one that has imported everything and computed nothing, which saves three seconds
of imports per kill and changes nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shim

if __name__ == "__main__" and shim.shim_problem() is None:  # before anything else is loaded
    shim.restart_with_shim()

import numpy as np
import torch
from children import CHILD_PHASES, Child
from shim import COUNT_CHANGES, KILL_AFTER, KILL_BEFORE, Fault, with_fault

from glassgpt.config import TrainConfig
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.record import journal
from glassgpt.record.run_dir import CHECKPOINTS_DIR, is_run_dir
from glassgpt.training import session
from glassgpt.training.checkpoint import checkpoints
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_tensors, read_checkpoint
from glassgpt.training.checkpoint.saver import Saver


@dataclass
class CampaignReport:
    kills: Counter[str] = field(default_factory=Counter)  # by what the process was doing
    calls: Counter[str] = field(default_factory=Counter)  # those among them at a system call, by its name
    resumes: int = 0
    restarted: int = 0  # killed before the first checkpoint
    runs_finished: int = 0
    checkpoints_read: int = 0
    failures: list[str] = field(default_factory=list)  # everything that went wrong, in words

    def as_json(self) -> str:
        return json.dumps(
            {
                "kills": sum(self.kills.values()),
                "by_moment": {moment: self.kills[moment] for moment in CHILD_PHASES},
                "by_call": dict(self.calls.most_common()),
                "resumes": self.resumes,
                "begun_again": self.restarted,
                "runs_finished_bit_exact": self.runs_finished,
                "checkpoints_read": self.checkpoints_read,
                "lost": self.failures,
            }
        )

    def table(self) -> str:
        rows = [
            *((f"killed while: {moment}", self.kills[moment]) for moment in CHILD_PHASES),
            ("kills", sum(self.kills.values())),
            ("of them right before or after a file system call", sum(self.calls.values())),
            ("resumed from a checkpoint", self.resumes),
            ("begun again: killed before the first checkpoint", self.restarted),
            ("checkpoints read through after a kill", self.checkpoints_read),
            ("runs finished, bit by bit those of the untouched run", self.runs_finished),
            (
                "losses: checkpoints missing, damaged or different, runs that could not go on",
                len(self.failures),
            ),
        ]
        return "\n".join(
            ["| what | number |", "|---|---:|", *(f"| {what} | {count} |" for what, count in rows)]
        )


def settings(folder: Path, name: str, max_iters: int = 120) -> TrainConfig:
    """A run of a second or less that evaluates and saves all the time."""
    return TrainConfig(
        out_dir=str(folder / name),
        data_dir=str(folder / "data"),
        n_layer=2,
        n_head=2,
        n_embd=64,
        block_size=16,
        batch_size=4,
        gradient_accumulation_steps=2,
        dropout=0.1,
        learning_rate=3e-3,
        warmup_iters=3,
        max_iters=max_iters,
        eval_interval=15,
        checkpoint_interval=7,
        keep_checkpoints=2,
        log_interval=4,
        patience=100,
        device="cpu",
        compile="off",
        probe_seconds=0.0,
    )


def make_data(folder: Path) -> None:
    draw = random.Random(7)
    words = ("glass", "house", "room", "door", "a", "sees", "the", "light", "through", "wall")
    text = "\n".join(" ".join(draw.choices(words, k=6)) for _ in range(400))
    (folder / "text.txt").write_text(text + "\n")
    options = PrepareOptions(str(folder / "text.txt"), out_dir=str(folder / "data"))
    prepare(options, print_line=lambda line: None, progress=False)


# --- one life ---


def train_or_resume(config: TrainConfig) -> int:
    """Begins the run, or goes on with it."""
    if is_run_dir(Path(config.out_dir)):
        return session.resume(config.out_dir).exit_code
    return session.train(config).exit_code


def kill_somewhere(child: Child, draw: random.Random) -> str | None:
    """Waits for a moment of the kind drawn, and a little longer; None if the process ended before."""
    wanted, delay = draw.choice(CHILD_PHASES), draw.random() * 0.01
    skip = draw.randrange(
        {"startup": 1, "compile": 1, "eval": 6}.get(wanted, 12)
    )  # as many such moments pass by first
    inside = False
    while child.exit_code() is None:
        now_inside = child.current_phase() == wanted
        if now_inside and not inside:
            if skip == 0:
                time.sleep(delay if wanted != "save" else delay / 5)
                doing = child.current_phase() or wanted
                if child.exit_code() is not None:
                    return None
                child.kill()
                return doing
            skip -= 1
        inside = now_inside
        time.sleep(0.0001)
    return None


def kill_at_call(config: TrainConfig, most: int, draw: random.Random, output: Path) -> tuple[Child, str, str]:
    """A process that is killed right before or after a call that changes its files; the moment and the call
    are empty if it ended before."""
    fault = Fault(folders(config), draw.randint(1, most // 2), draw.choice((KILL_BEFORE, KILL_AFTER)))
    child = Child(with_fault(lambda: train_or_resume(config), fault), output)
    was_killed = child.wait() == -signal.SIGKILL
    return child, (child.current_phase() or "startup") if was_killed else "", fault.where.partition(" ")[0]


def folders(config: TrainConfig) -> tuple[Path, Path]:
    return Path(config.out_dir), Path(config.data_dir)


# --- what must hold ---


def check_folder(config: TrainConfig, report: CampaignReport) -> None:
    """Every committed checkpoint is whole, and none that the journal knows to be the last is missing."""
    run_dir = Path(config.out_dir)
    points = committed_paths(run_dir)
    for path in points:
        try:
            load_tensors(read_checkpoint(path))
            report.checkpoints_read += 1
        except Exception as error:  # noqa: BLE001 - every failure counts
            report.failures.append(f"{path}: {error!r}")
    path = run_dir / journal.FILE_NAME
    records = list(journal.read(path)) if path.exists() else []
    saved = [
        record["iter"] for record in journal.effective_records(records) if record["kind"] == "checkpoint"
    ]
    have = [int(point.name.partition(".")[0]) for point in points]
    if saved and (not have or max(have) < saved[-1]):
        report.failures.append(f"the journal has a checkpoint of update {saved[-1]}, the folder has {have}")


def run_outcome(config: TrainConfig) -> dict[str, Any]:
    """What a finished run has to show, down to the bits."""
    run_dir = Path(config.out_dir)
    point = read_checkpoint(committed_paths(run_dir)[-1])
    tensors = {
        f"{file}/{name}": np.ascontiguousarray(tensor.numpy()).tobytes()
        for file, part in load_tensors(point).items()
        for name, tensor in part.items()
    }
    records = journal.effective_records(journal.read(run_dir / journal.FILE_NAME))
    losses = {record["iter"]: record["loss"] for record in records if record["kind"] == "step"}
    evals = {(r["iter"], r["split"], r["closing"]): r["loss"] for r in records if r["kind"] == "eval"}
    return {
        "tensors": tensors,
        "losses": losses,
        "evals": evals,
        "end": records[-1]["reason"],
        "best": checkpoints.list_checkpoints(run_dir).best.iter,  # type: ignore[union-attr]
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [f"{name} differ" for name in one if one[name] != other[name]]


def run_to_the_end(config: TrainConfig, output: Path) -> None:
    check_end(Child(lambda: train_or_resume(config), output))


def check_end(child: Child) -> None:
    if child.wait():
        raise RuntimeError(child.output.read_text())


# --- the campaign ---


def campaign(kills: int, seed: int, folder: Path) -> CampaignReport:
    report, draw = CampaignReport(), random.Random(seed)
    make_data(folder)
    untouched = settings(folder, "untouched")
    counted = Fault(folders(untouched), 0, COUNT_CHANGES)
    work = (
        with_fault(lambda: train_or_resume(untouched), counted)
        if shim.is_loaded()
        else lambda: train_or_resume(untouched)
    )
    check_end(Child(work, folder / "output.txt"))
    expected = run_outcome(untouched)
    number = 0
    while sum(report.kills.values()) < kills:
        number += 1
        config = settings(folder, f"run-{number}")
        _kill_until_it_ends(config, kills, report, draw, folder / "output.txt", counted.calls)
        wrong = differences(expected, run_outcome(config))
        report.failures += [f"run {number}: {what}" for what in wrong]
        report.runs_finished += not wrong
        print(
            f"{sum(report.kills.values()):>4} kills, {len(report.failures)} losses",
            file=sys.stderr,
            flush=True,
        )
    return report


def _kill_until_it_ends(
    config: TrainConfig, kills: int, report: CampaignReport, draw: random.Random, output: Path, calls: int
) -> None:
    """`calls`: on files, of a whole run; 0: they are not seen."""
    run_dir = Path(config.out_dir)
    first = True
    while True:
        if not first:
            report.resumes += bool(committed_paths(run_dir))
            report.restarted += not committed_paths(run_dir)
        first = False
        if sum(report.kills.values()) >= kills:
            return run_to_the_end(config, output)
        if 2 * sum(report.calls.values()) < sum(report.kills.values()) and calls:
            child, moment, call = kill_at_call(config, calls, draw, output)
            report.calls.update([call] if moment else [])
        else:
            child = Child(lambda: train_or_resume(config), output)
            moment = kill_somewhere(child, draw) or ""
        if not moment:  # it came to its end
            return check_end(child)
        report.kills[moment] += 1
        check_folder(config, report)


def break_atomic_save() -> None:
    """Checkpoints are written under their final name from the start: what a kill interrupts looks whole."""
    write = Saver._write

    def careless(saver: Saver, tensors: Any, state: dict[str, Any], record: Any) -> Any:
        place = saver._run_dir / CHECKPOINTS_DIR / f"{state['iter']:08d}"
        place.mkdir(parents=True, exist_ok=True)
        target = checkpoints.next_free_path(place.parent, place.name)
        record = write(saver, tensors, state, record)
        place.rmdir()
        target.rename(place)
        return record

    Saver._write = careless  # type: ignore[method-assign, assignment]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="campaigns at once, each with its share of kills")
    parser.add_argument("--io-errors", default="0", help="how many of all calls fail afterwards, or all")
    parser.add_argument("--sabotage", action="store_true", help="save carelessly, to see that it is noticed")
    options = parser.parse_args()
    if options.jobs > 1:
        report = _side_by_side(options.kills, options.seed, options.jobs)
    else:
        report = _alone(options.kills, options.seed, options.sabotage)
    print(report.table())
    for what in report.failures:
        print(f"LOST: {what}")
    failed = shim.is_loaded() and options.io_errors != "0" and _fail_calls(options.io_errors)
    print(report.as_json())
    return 1 if report.failures or failed else 0


def _alone(kills: int, seed: int, is_careless: bool) -> CampaignReport:
    torch.set_num_threads(1)  # forked processes cannot share a pool of threads
    if is_careless:
        break_atomic_save()
    with tempfile.TemporaryDirectory() as folder:
        return campaign(kills, seed, Path(folder))


def _side_by_side(kills: int, seed: int, jobs: int) -> CampaignReport:
    """Several campaigns, put together."""
    each = [f"--kills={len(range(number, kills, jobs))}" for number in range(jobs)]
    words = [[sys.executable, __file__, some, f"--seed={seed + number}"] for number, some in enumerate(each)]
    running = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True, env=_unloaded()) for one in words]
    whole = CampaignReport()
    for process in running:
        found = json.loads(process.communicate()[0].splitlines()[-1])
        whole.kills.update(found["by_moment"])
        whole.calls.update(found["by_call"])
        whole.resumes += found["resumes"]
        whole.restarted += found["begun_again"]
        whole.runs_finished += found["runs_finished_bit_exact"]
        whole.checkpoints_read += found["checkpoints_read"]
        whole.failures += found["lost"]
    return whole


def _unloaded() -> dict[str, str]:
    """The environment for a script that loads the shim itself."""
    return {name: value for name, value in os.environ.items() if name != shim.SHIM_VARIABLE}


def _fail_calls(sample: str) -> bool:
    """In a process of its own. Whether something went wrong."""
    words = [sys.executable, str(Path(__file__).with_name("io_errors.py")), f"--sample={sample}"]
    return subprocess.run(words, env=_unloaded()).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
