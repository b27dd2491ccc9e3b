"""The README is executed: every command in it, in its order, in one folder with the files of a fresh clone.

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
from collections.abc import Callable
from pathlib import Path

import pytest

from glassgpt.cli import COMMAND_MODULES, main
from glassgpt.record import journal

ROOT = Path(__file__).parent.parent
SMALL = ["--max_iters=3", "--eval_interval=2", "--eval_tokens=256", "--n_layer=1", "--batch_size=2"]
QUICK = ["--probe_seconds=0", "--sample_tokens=8"]
TINY = ["--n_layer=1", "--n_embd=64", "--block_size=32"]
# What the commands of the table get, so that each takes seconds.
SHORTER = {
    "train": [*SMALL, *QUICK],
    "sample": ["--num_samples=1", "--max_new_tokens=20"],
    # One setting to try: the search is tested elsewhere.
    "tune": [*TINY, "--batch_tokens=32", "--compile=off", "--threads=1", "--attention=sdpa"],
    "doctor": ["--quick"],
    "page": ["--open=no", "--idle=1s"],
}


def readme(name: str = "README.md") -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: str) -> list[str]:
    """Commands of the shell blocks."""
    found = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines() if line.strip()]


def table(page: str) -> list[str]:
    """Commands of the table of all commands."""
    return re.findall(r"^\| `(glass [^`]+)` \|", page, re.MULTILINE)


Glass = Callable[..., str]


@pytest.fixture
def glass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Glass:
    """Runs a command in an empty folder and returns its output. In this process, or each would load torch."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        code = main(arguments)
        output, errors = capsys.readouterr()
        assert code == 0, errors
        return output

    return run


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

    assert blocks(readme()) == ["make train", "make test"]
    assert recipe("train").splitlines()[-1] == ".venv/bin/glass train quickstart"
    assert recipe("test").splitlines()[-1].startswith(".venv/bin/python -m pytest -n ")


def test_the_table_has_all_commands_in_the_order_of_help(glass: Glass) -> None:
    names = re.findall(r"^  ([a-z]+) ", glass("--help"), re.MULTILINE)
    assert len(names) == len(COMMAND_MODULES)
    assert [command.split()[1] for command in table(readme())] == names
    assert len(readme().splitlines()) <= 132


def test_every_command_of_the_table(glass: Glass, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    # The state the README's reader is in after `make train`, with a folder of nanoGPT's.
    glass("train", "quickstart", *SMALL, *QUICK)
    assert updates(tmp_path / "runs/quickstart") == 3
    gpt2 = ["--arch=gpt2", "--tie_embeddings=True", "--out_dir=runs/theirs"]
    glass("train", "quickstart", *gpt2, *SMALL, *QUICK)
    glass("export", "runs/theirs", "--to=nanogpt", "--out=OUT_DIR")
    for command in table(readme()):
        _, name, *words = shlex.split(command)
        assert glass(name, *words, *SHORTER.get(name, [])).strip(), command
    assert updates(tmp_path / "runs/docs") == 3
    for made in ("tuned.toml", "exports/quickstart-hf", "runs/OUT_DIR", "runs/quickstart/steps.csv"):
        assert (tmp_path / made).exists(), made
    assert "<html" in (tmp_path / "nanogpt-h200-shakespeare.html").read_text(encoding="utf-8")


def test_the_readmes_in_other_languages_have_the_same_commands() -> None:
    english = readme()
    for name in ("README.hi.md", "README.ar.md"):
        page = readme(name)
        assert blocks(page) == blocks(english), name
        assert table(page) == table(english), name
        inline = re.findall(r"(?:`|<code dir=\"ltr\">)((?:glass|make|python) [^`<]+)(?:`|</code>)", page)
        assert [command for command in inline if command not in " ".join(english.split())] == [], name
        ratios = re.findall(r"[\d.]+x \|", page)
        assert ratios == re.findall(r"[\d.]+x \|", english), name
