"""The README is executed: every command in it, in its order, in one folder.

Training commands get a few flags appended that make them small; that is what flags are for. Each must really
have done updates. `make train` and `make test` cannot run inside the tests they start, so what they would run
is read from make itself, and `glass train quickstart` is run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassgpt.record import journal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = ["--max_iters=3", "--eval_interval=2", "--eval_tokens=256", "--n_layer=1", "--batch_size=2"]
QUICK = ["--probe_seconds=0", "--sample_tokens=8"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def glass(arguments: list[str], folder: Path) -> str:
    command = [sys.executable, "-m", "glassgpt", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def updates(run_dir: Path) -> int:
    return int(max(record["iter"] for record in journal.read(run_dir / journal.FILE_NAME)))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_two_commands_run_what_they_say() -> None:
    # Without what a make around these tests would pass on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    def recipe(target: str) -> str:
        command = ["make", "--no-print-directory", "--dry-run", "--assume-old=.venv/ready", target]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert commands()[:2] == ["make train", "make test"]
    assert recipe("train").splitlines()[-1] == ".venv/bin/glass train quickstart"
    assert recipe("test").splitlines()[-1].startswith(".venv/bin/python -m pytest -n auto ")


def test_every_glass_command(tmp_path: Path) -> None:
    text = "It was a bright cold day in April, and the clocks were striking thirteen.\n"
    (tmp_path / "my.txt").write_text(text * 200)
    (tmp_path / "tinyshakespeare.txt").write_text(text * 400)
    for name, log in (("cpu.log", "nanogpt-cpu-readme.log"), ("gpu.log", "nanogpt-h200-shakespeare.log")):
        shutil.copyfile(ROOT / "tests/golden" / log, tmp_path / name)
    # The state the README's reader is in after `make train`.
    glass(["train", "quickstart", *SMALL, *QUICK], tmp_path)
    assert updates(tmp_path / "runs/quickstart") == 3
    seen = []
    for command in commands():
        words = shlex.split(command)
        if words[0] == "make":
            continue
        assert words[0] == "glass", f"do not know how to test {command!r}"
        seen.append(words[1])
        if words[1] == "train" and "--help" not in words:
            train(words[1:], tmp_path)
        else:
            assert glass(words[1:], tmp_path).strip()
    looks = {"runs", "show", "explain", "compare", "report", "plan"}
    assert set(seen) == {"train", "prepare", "sample", "export", "track"} | looks
    assert "<html" in (tmp_path / "gpu.html").read_text(encoding="utf-8")
    assert (tmp_path / "runs/quickstart/report.html").is_file()


def train(words: list[str], folder: Path) -> None:
    """Runs it small, and sees to it that it trained where it should."""
    before = set(folder.rglob(journal.FILE_NAME))
    kept = [word for word in words if not word.startswith("--max_iters")]
    if "--init_from=resume" in words:
        glass([*kept, "--max_iters=5", *QUICK], folder)
        (run_dir,) = (word.removeprefix("--out_dir=") for word in words if word.startswith("--out_dir="))
        assert updates(folder / run_dir) == 5
    else:
        glass([*kept, *SMALL, *QUICK], folder)
        (new,) = set(folder.rglob(journal.FILE_NAME)) - before
        assert updates(new.parent) == 3


def test_the_python_block(tmp_path: Path) -> None:
    (block,) = blocks("python")
    small = block.replace("max_iters=50", "max_iters=2, eval_tokens=256, probe_seconds=0")
    assert small != block
    glass(["prepare", "pylib"], tmp_path)
    command = [sys.executable, "-c", small]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"runs/run \d\.\d+\n", done.stdout)
    assert updates(tmp_path / "runs/run") == 2
