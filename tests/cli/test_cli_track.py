"""glass train --track and glass track, as people call them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import environment, finished_run, glass, record, run_record, step_record, write_run

TRAIN = """\
import sys, time
from glassgpt.record import sink
from glassgpt.track import trackers
sink.TRACKER_TIMEOUT_S = 0.5

class Hanging:
    def begin(self, run):
        import atexit
        atexit.register(time.sleep, 60)  # as trackers do, to send what is left
        time.sleep(60)

trackers.TRACKER_CLASSES = {"wandb": Hanging}
trackers.find_spec = lambda name: object()
from glassgpt.cli import run
run()
"""
TINY = (
    "train", "shakespeare_char_cpu", "--n_layer=1", "--n_head=1", "--n_embd=8", "--block_size=8",
    "--batch_size=2", "--max_iters=3", "--eval_interval=100", "--probe_seconds=0", "--compile=off",
    "--device=cpu",
)  # fmt: skip


@pytest.fixture
def here(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_tracker_that_hangs_holds_up_no_process(here: Path, tiny_data: Path) -> None:
    begin = time.monotonic()
    words = [*TINY, f"--data_dir={tiny_data}", "--out_dir=run", "--track=wandb"]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *words], capture_output=True, text=True, timeout=55, env=environment()
    )
    assert time.monotonic() - begin < 50
    assert done.returncode == 0, done.stderr
    assert "end           finished after 3 updates" in done.stdout
    assert "warning: wandb did not finish in 0 s" in done.stderr


def test_a_tracker_that_is_not_installed(here: Path, tiny_data: Path) -> None:
    code = "from glassgpt.track import trackers; trackers.find_spec = lambda name: None;"
    code += "from glassgpt.cli import run; run()"
    words = [*TINY, f"--data_dir={tiny_data}", "--out_dir=run", "--wandb_log=True"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=55, env=environment()
    )
    assert done.returncode == 2
    assert done.stderr == 'error: wandb is not installed: pip install "glassgpt[track]"\n'
    assert done.stdout == ""
    assert list(here.iterdir()) == []


def test_a_finished_run_is_sent_to_csv_files(here: Path) -> None:
    resumed = [
        {**run_record(), "process": 1},
        {**record("resume", 60, from_iter=60, complaints=[]), "process": 1},
        {**step_record(70, 9.75), "process": 1},
    ]
    write_run(here / "runs/mine", [*finished_run()[:-1], *resumed])
    done = glass("track", "runs/mine", "--to=csv")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"csv           11 records sent\n"
    with (here / "runs/mine/steps.csv").open(newline="") as file:
        rows = [(row["iter"], float(row["loss"])) for row in csv.DictReader(file)]
    assert [at for at, _ in rows] == ["10", "20", "30", "40", "50", "60", "70"]
    assert rows[-1] == ("70", 9.75)  # not what it was before the resume


TRACK = """\
import sys
from glassgpt.errors import UserError
from glassgpt.track import trackers

class Failing:
    def begin(self, run):
        raise ValueError("Run 'mine' does not exist\\nand more")

class Refusing:
    def begin(self, run):
        raise UserError("wandb has no key here")

trackers.TRACKER_CLASSES = {**trackers.TRACKER_CLASSES, "trackio": Failing, "wandb": Refusing}
trackers.find_spec = lambda name: object()
from glassgpt.cli import run
run()
"""


def test_a_failing_tracker_is_named_and_the_others_get_the_run(here: Path) -> None:
    write_run(here / "runs/mine", finished_run())
    words = ["track", "runs/mine", "--to=trackio,wandb,csv"]
    done = subprocess.run(
        [sys.executable, "-c", TRACK, *words], capture_output=True, text=True, timeout=55, env=environment()
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: trackio failed: ValueError: Run 'mine' does not exist\nerror: wandb has no key here\n"
    )
    assert done.stdout.startswith("csv ")


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (
            (),
            [
                b"say which run to send",
                b"say which trackers to send it to: --to=csv,tensorboard,trackio,wandb",
            ],
        ),
        (("runs/mine", "--to=csv,mlflow"), [b"--to=mlflow is not one of csv, tensorboard, trackio, wandb"]),
        (("runs/other", "--to=csv"), [b"runs/other holds no run"]),
        (("runs/empty", "--to=csv"), [b"has no run record"]),
        (("runs/mine", "--two=csv"), [b"unknown setting --two; did you mean --to?"]),
    ],
)
def test_track_errors(here: Path, words: tuple[str, ...], problems: list[bytes]) -> None:
    write_run(here / "runs/mine", finished_run())
    write_run(here / "runs/empty", [])
    done = glass("track", *words)
    assert done.returncode == 2
    assert done.stdout == b""
    for problem in problems:
        assert problem in done.stderr
    assert not list(here.rglob("*.csv"))


def test_a_pipe_in_the_place_of_a_table(here: Path) -> None:
    """Opening it would wait for a reader for ever."""
    write_run(here / "runs/mine", finished_run())
    os.mkfifo(here / "runs/mine/steps.csv")
    done = glass("track", "runs/mine", "--to=csv")
    assert done.returncode == 2
    assert done.stderr == b"error: runs/mine/steps.csv is a pipe, not a file: move it away\n"
