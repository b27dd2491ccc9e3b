"""`glass`, as a person or a script meets it: what it prints, what it makes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from workplace import TINY_FLAGS, WORDS, Capture, error_lines, folder_contents, records

from glassgpt.__main__ import run
from glassgpt.cli import COMMAND_MODULES, main
from glassgpt.data import prepare_bulk
from glassgpt.record import journal
from glassgpt.version import VERSION

# --- stopped


def test_stopped_before_it_has_loaded(here: Path) -> None:
    """Loading takes some tenths of a second, and an impatient person is faster."""
    code = """
import os, runpy, signal, sys
class Impatient:
    def find_spec(self, name, *_):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
runpy.run_module("glassgpt", run_name="__main__")
"""
    for module in ("glassgpt.cli", "glassgpt.config", "dataclasses", "glassgpt.cli.explain_commands"):
        words = [sys.executable, "-c", code.replace("MODULE", repr(module)), "explain", "no.log"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert (module, done.returncode, done.stderr.strip()) == (module, 130, "stopped at once")


def test_python_processes_that_it_starts_import_nothing_from_the_current_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`glass prepare` starts workers, and torch's compiler asks `python -c` what the processor can do."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr("glassgpt.cli.run", lambda: None)
    (here / "json.py").write_text("print('planted')")
    run()
    done = subprocess.run(
        [sys.executable, "-c", "import json; print(json.__name__)"], capture_output=True, text=True
    )
    assert done.stdout == "json\n"


# --- answers at once


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["runs"],
        ["show", "runs/mine"],
        ["train", "--help"],
        ["prepare", "--help"],
        ["sample", "--help"],
        ["eval", "--help"],
        ["train", "quickstrat"],
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_does_not_import_it(here: Path, arguments: list[str]) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / journal.FILE_NAME).write_bytes(
        journal.encode_line({"kind": "log", "iter": 1, "time": 1})
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = (
        "import runpy, sys\n"
        "sys.argv = ['glass', *sys.argv[1:]]\n"
        "try:\n"
        "    runpy.run_module('glassgpt', run_name='__main__')\n"
        "finally:\n"
        "    print(bool({'torch', 'pynvml'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == (2 if "quickstrat" in arguments else 0), done.stderr
    assert done.stderr.splitlines()[-1] == "False"
    # Importing torch alone takes more than this; seconds of the processor, so other work does not count.
    assert after.ru_utime - before.ru_utime < 1.5


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(capsys: Capture, arguments: list[str]) -> None:
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert set(re.findall(r"(?m)^  (\w+)", output)) == set(COMMAND_MODULES)


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (2, "\nstopped at once; the same command resumes after the last full shard\n"),
        (0, "\nstopped at once\n"),  # nothing to resume from
    ],
)
def test_ctrl_c_while_much_is_prepared(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, shards: int, expected: str
) -> None:
    lines = [json.dumps({"text": f"{at} {WORDS * 60}"}) for at in range(1600)]  # 4 MB, four parcels
    Path("many.jsonl").write_text("\n".join(lines) + "\n")
    words = ["prepare", "many.jsonl", "--tokenizer=byte", "--shard_tokens=100000", "--workers=1"]
    saved = 0
    original = prepare_bulk._save_state

    def save(*arguments: Any) -> None:
        nonlocal saved
        if saved == shards:
            raise KeyboardInterrupt
        original(*arguments)
        saved += 1

    with monkeypatch.context() as patch:
        patch.setattr(prepare_bulk, "_save_state", save)
        assert main(words) == 130
    assert capsys.readouterr().err == expected
    assert main(words) == 0
    assert ("resuming where it was stopped" in capsys.readouterr().out) == (shards > 0)


def test_the_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"glassgpt {VERSION}\n"


def test_help_fits_the_terminal(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        for words in ([], *([command] for command in COMMAND_MODULES)):
            assert main([*words, "--help"]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert lines[0].startswith("usage: glass")
            assert [line for line in lines if len(line) > columns] == []
    assert folder_contents(here) == {}


def test_help_of_train_lists_the_presets(capsys: Capture) -> None:
    assert main(["train", "quickstart", "-h"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"shakespeare_char_cpu\s+nanoGPT's README run", output)


def test_a_pipe_that_closes_early_is_no_error(here: Path) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / journal.FILE_NAME).write_text("")
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "glassgpt", "runs"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_train_takes_a_text_and_prepares_it_once(here: Path, capsys: Capture) -> None:
    Path("my.txt").write_text(WORDS * 60)
    short = [*TINY_FLAGS, "--block_size=16", "--max_iters=1", "--sample_tokens=0"]
    assert main(["train", "my.txt", *short]) == 0
    output = capsys.readouterr().out
    assert "data/my: " in output
    (run,) = [record for record in records("runs/my") if record["kind"] == "run"]
    assert (run["config"]["dataset"], run["config"]["arch"]) == ("my", "modern")
    manifest = Path("data/my/manifest.json").read_bytes()
    assert main(["train", "my.txt", *short]) == 0
    assert Path("data/my/manifest.json").read_bytes() == manifest
    assert Path("runs/my-2").is_dir()
    assert "--dataset" in error_lines(capsys, "train", "my.txt", "--dataset=mine")[0]
    Path("my.txt").write_text(WORDS * 61)
    assert "--overwrite" in error_lines(capsys, "train", "my.txt", *short)[0]
    Path("my.jsonl").write_text('{"text": "a document"}\n')
    assert "glass prepare my.jsonl" in error_lines(capsys, "train", "my.jsonl")[0]
