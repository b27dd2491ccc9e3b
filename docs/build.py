"""Fills the blocks of the pages in this folder with what the program prints now, and writes settings.md.

    python docs/build.py [PAGE.md ...]        ../README.md is a page too, and its translations

A block is a comment with a shell command, and a fence that holds the command and its output:

    <!-- output: glass --version -->
    ```text
    ```

tests/test_docs.py compares every `output` block. An `example` block holds timings, which differ each time. So
it says what its output must match (`^` and `$` are those of a line, `.` matches newlines too), and its exit
code unless that is 0. Both are checked here; the test checks the text in the page:

    <!-- example: glass train tiny.toml | grep ^end
    expect: ^end +finished after 30 updates -->
    ```text
    ```

    <!-- example: ...
    expect exit 3: ^end +not finite -->

The commands of a page run in order in one temporary folder; pictures that they make are copied back here. At
hand are tiny.toml and these logs of nanoGPT, beside demo:cpu and demo:gpu:

    slow.log                rebuilt with the figures of note 000
    small.log, large.log    rebuilt with those of note 004

settings.md is made of the comments in glassgpt/config.py.
"""

from __future__ import annotations

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from functools import partial
from pathlib import Path

from glassgpt.config import TrainConfig
from glassgpt.flags import SYNONYMS

DOCS = Path(__file__).resolve().parent
GOLDEN = DOCS.parent / "tests/golden"
REBUILT_LOGS = {
    "slow.log": ("note_000.py", "console_log"),
    "small.log": ("note_004.py", "small_log"),
    "large.log": ("note_004.py", "large_log"),
}
BLOCK = re.compile(
    r"^<!-- (?P<kind>output|example): (?P<command>[^\n]+?)"
    r"(?P<expect>\nexpect(?: exit (?P<exit_code>\d+))?: (?P<pattern>[^\n]+))? -->\n"
    r"```text\n(?P<content>.*?)^```$",
    re.S | re.M,
)


def write_inputs(folder: Path) -> None:
    """Puts there what the commands of a page read."""
    shutil.copy(DOCS / "tiny.toml", folder)
    for name, (module, function) in REBUILT_LOGS.items():
        text = runpy.run_path(str(GOLDEN / module))[function]()
        (folder / name).write_text(text, encoding="utf-8")


def run_command(command: str, folder: Path, exit_codes: Collection[int]) -> str:
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
    if done.returncode not in exit_codes:
        raise SystemExit(f"`{command}` ended with {done.returncode}:\n{done.stdout}")
    lines = [f"$ {command}", *(line.rstrip() for line in done.stdout.splitlines())]
    return "\n".join(lines) + "\n"


def is_as_expected(block: re.Match[str], content: str) -> bool:
    """Whether the output of an example, without its command, matches what the page expects of it."""
    output = content.partition("\n")[2]
    return block["pattern"] is not None and bool(re.search(block["pattern"], output, re.S | re.M))


def fill_block(block: re.Match[str], folder: Path) -> str:
    """The block with its output made anew."""
    if block["kind"] == "output":
        content = run_command(
            block["command"], folder, exit_codes=(0, 2, 3)
        )  # pages show mistakes on purpose
    else:
        content = run_command(block["command"], folder, exit_codes=(int(block["exit_code"] or 0),))
        if not is_as_expected(block, content):
            raise SystemExit(f"expected {block['pattern']!r}, not:\n{content}")
    return f"<!-- {block['kind']}: {block['command']}{block['expect'] or ''} -->\n```text\n{content}```"


# --- settings.md ---

TYPE_NAMES = {
    "str": "text",
    "bool": "`True`, `False`",
    "int": "integer",
    "float": "number",
    "int | None": "integer, `none`",
    "float | None": "number, `none`",
}

SETTINGS_INTRO = """# Every setting of glass train

Made of the comments in [config.py](../glassgpt/config.py) by `python docs/build.py settings.md`; a test
compares them. `glass train --help` prints the same. [The guide](train.md) says how settings work together.

Each can be given as `--key=value`, as `key = value` in a file, and as `TrainConfig(key=value)`. `none`
means: derived from other settings, and the run says how. Two more flags belong to the command, not to the
run: [`--nproc`](multi-gpu.md) and [`--tune`](tune.md)."""


def settings_page() -> str:
    lines = [SETTINGS_INTRO]
    comment: list[str] = []
    for line in inspect.getsource(TrainConfig).splitlines():
        if group := re.fullmatch(r"    # --- (.+) ---", line):
            lines += [
                f"\n## {group[1].capitalize()}\n",
                "| setting | values | default | meaning |",
                "|---|---|---|---|",
            ]
        elif line.startswith("    # "):
            comment.append(line.strip().removeprefix("# "))
        elif field := re.fullmatch(r"    (\w+): (.+) = (.+)", line):
            name, kind, default = field.groups()
            words = re.findall(r'"(\w+)"', kind)
            values = ", ".join(f"`{word}`" for word in words) if words else TYPE_NAMES[kind]
            also = f", also `{SYNONYMS[name]}`" if name in SYNONYMS else ""
            about = " ".join(comment).replace("|", "\\|")
            shown = {'""': "", "None": "none"}.get(default, default.strip('"').replace("_", ""))
            lines.append(f"| `{name}`{also} | {values} | {shown and f'`{shown}`'} | {about} |")
            comment = []
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    for page in [DOCS / name for name in names] or [
        *sorted(DOCS.glob("*.md")),
        *sorted(DOCS.parent.glob("README*.md")),
    ]:
        if page.name == "settings.md":
            page.write_text(settings_page(), encoding="utf-8")
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_inputs(folder)
            text = page.read_text(encoding="utf-8")
            page.write_text(BLOCK.sub(partial(fill_block, folder=folder), text), encoding="utf-8")
            for picture in folder.glob("*.svg"):
                shutil.copy(picture, DOCS)
        print(f"{page.name} is up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
