"""`glass` in a folder of its own: a small dataset, a small run, and what a refusal must look like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassgpt.cli import main
from glassgpt.record import journal

WORDS = "the quick brown fox jumps over a lazy dog;\n"
TINY_FLAGS = [
    "--n_layer=1",
    "--n_embd=32",
    "--n_head=2",
    "--batch_size=4",
    "--eval_interval=3",
    "--eval_tokens=64",
    "--probe_seconds=0",
]

Capture = pytest.CaptureFixture[str]


def prepare_dataset_mine(capsys: Capture) -> None:
    """A dataset called `mine`, from a text that is elsewhere."""
    prepare_text("mine", WORDS * 60)
    capsys.readouterr()


def prepare_text(name: str, text: str) -> None:
    path = Path("..", f"{name}.txt")
    path.write_text(text)
    assert main(["prepare", str(path)]) == 0


def folder_contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, files with what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def error_lines(capsys: Capture, *arguments: str) -> list[str]:
    """The problems printed, after checking their form and that no file was touched."""
    before = folder_contents(Path.cwd())
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert folder_contents(Path.cwd()) == before
    lines = captured.err.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    assert captured.out == ""
    return [line.removeprefix("error: ") for line in lines]


def glass(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real thing, in a process of its own, in the current folder."""
    return subprocess.run(
        [sys.executable, "-m", "glassgpt", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )


def train(*more: str, max_iters: int = 3, sample_tokens: int = 0) -> int:
    length = ["--block_size=16", f"--max_iters={max_iters}", f"--sample_tokens={sample_tokens}"]
    return main(["train", "quickstart", "--dataset=mine", *TINY_FLAGS, *length, *more])


def records(run_dir: str) -> list[journal.Record]:
    return list(journal.read(Path(run_dir, journal.FILE_NAME)))
