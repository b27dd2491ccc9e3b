"""Fills the output blocks of the pages in this folder with what the program prints now.

    python docs/build.py [PAGE.md ...]        ../README.md is a page too

A block is a comment with a shell command, and a fence that holds the command and its output:

    <!-- output: glass --version -->
    ```text
    ```

tests/test_docs.py compares every `output` block. An `example` block holds timings, which differ each time: it
is filled here but not compared. The commands of a page run in order in one temporary folder; pictures that
they make are copied back here. At hand are tiny.toml and these logs of nanoGPT:

    cpu.log, gpu.log        its README's two runs, measured
    slow.log                rebuilt with the figures of note 000
    small.log, large.log    rebuilt with those of note 004
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

DOCS = Path(__file__).resolve().parent
GOLDEN = DOCS.parent / "tests/golden"
MEASURED_LOGS = {"cpu.log": "nanogpt-cpu-readme.log", "gpu.log": "nanogpt-h200-shakespeare.log"}
REBUILT_LOGS = {
    "slow.log": ("note_000.py", "console_log"),
    "small.log": ("note_004.py", "small_log"),
    "large.log": ("note_004.py", "large_log"),
}
BLOCK = re.compile(
    r"^<!-- (?P<kind>output|example): (?P<command>[^\n]+) -->\n```text\n(?P<content>.*?)^```$", re.S | re.M
)


def write_inputs(folder: Path) -> None:
    """Puts there what the commands of a page read."""
    shutil.copy(DOCS / "tiny.toml", folder)
    for name, log in MEASURED_LOGS.items():
        shutil.copyfile(GOLDEN / log, folder / name)
    for name, (module, function) in REBUILT_LOGS.items():
        text = runpy.run_path(str(GOLDEN / module))[function]()
        (folder / name).write_text(text, encoding="utf-8")


def run_command(command: str, folder: Path) -> str:
    """The command and what it prints, as a page shows it. One thread: the models here gain nothing by two."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    fixed = {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    fixed |= {"LANGUAGE": "", "LC_ALL": "C.UTF-8"}  # else explanations come in the language of whoever builds
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, **fixed, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        encoding="utf-8",
    )
    if done.returncode not in (0, 2, 3):  # 2 and 3: pages show mistakes and bad losses on purpose
        raise SystemExit(f"`{command}` ended with {done.returncode}:\n{done.stdout}")
    lines = [f"$ {command}", *(line.rstrip() for line in done.stdout.splitlines())]
    return "\n".join(lines) + "\n"


def fill_blocks(page: str, fill: Callable[[str], str]) -> str:
    """The page with the content of every block made anew."""

    def renew(block: re.Match[str]) -> str:
        head = f"<!-- {block['kind']}: {block['command']} -->"
        return f"{head}\n```text\n{fill(block['command'])}```"

    return BLOCK.sub(renew, page)


def main(names: list[str]) -> None:
    for page in [DOCS / name for name in names] or [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_inputs(folder)
            text = fill_blocks(page.read_text(encoding="utf-8"), partial(run_command, folder=folder))
            page.write_text(text, encoding="utf-8")
            for picture in folder.glob("*.svg"):
                shutil.copy(picture, DOCS)
        print(f"{page.name} is up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
