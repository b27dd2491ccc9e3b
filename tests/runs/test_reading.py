"""Anything that records a run: files, folders, pipes; recognised by their content, never by their names."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest
from journals import whole_run

from glassgpt.errors import UserError
from glassgpt.record.journal import FILE_NAME, encode_line
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import looks_like_journal, read_run_log

LOG = "".join(f"iter {at}: loss 3.0, time 33.00ms, mfu 5.00%\n" for at in range(12)).encode()
JOURNAL = b"".join(encode_line(record) for record in whole_run())


@pytest.mark.parametrize(
    "name", ["run.log", "picture.png", "journal.jsonl", "x.gz", "-x", "a b\u0627.txt", "no_ending"]
)
def test_the_name_of_a_file_says_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(LOG)
    run_log = read_run_log(str(tmp_path / name))
    assert (run_log.trainer.id, len(run_log.steps)) == ("nanogpt", 12)
    (tmp_path / name).write_bytes(JOURNAL)
    assert read_run_log(str(tmp_path / name)).trainer.id == "glassgpt"
    (tmp_path / name).write_bytes(gzip.compress(LOG))
    assert len(read_run_log(str(tmp_path / name)).steps) == 12


class Piped:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BufferedReader(io.BytesIO(data))


@pytest.mark.parametrize(
    "data",
    [LOG, JOURNAL, gzip.compress(LOG), LOG.decode().encode("utf-16")],
    ids=["log", "journal", "gzip", "utf-16"],  # packed, it holds the time: every process would have its own
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(data))
    run_log = read_run_log("-")
    assert run_log.name == "standard input"
    assert len(run_log.steps) in (11, 12)


def test_a_file_and_a_pipe_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.log").write_bytes(LOG)
    monkeypatch.setattr(sys, "stdin", Piped(LOG))
    assert Analysis(read_run_log("-")).facts == Analysis(read_run_log(str(tmp_path / "run.log"))).facts


def test_a_folder_needs_a_journal(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=FILE_NAME):
        read_run_log(str(tmp_path))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file or folder"):
        read_run_log(str(tmp_path / "nothing.log"))


@pytest.mark.parametrize("data", [b"", b"\n", b"hello\n", b"\x00" * 100, b'{"a": 1}\n', b"kind,iter\n1,2\n"])
def test_what_is_no_log(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_run_log(str(tmp_path / "x"))
    assert "nanoGPT" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_name_with_escapes_is_not_repeated_raw(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[31m.log"
    path.write_bytes(b"hello\n")
    with pytest.raises(UserError):
        read_run_log(str(path))


def test_a_file_that_may_not_be_read_is_an_error_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(LOG)

    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"run\.log"):
        read_run_log(str(path))


def test_journals_are_known_by_their_first_line() -> None:
    cases: list[tuple[bytes, bool]] = [
        (JOURNAL, True),
        (b"\n\n" + JOURNAL, True),
        (b"", False),
        (LOG, False),
        (b"{'loss': 2.9, 'epoch': 0.03}\n", False),
        (b'{"loss": 2.9}\n', False),
        (JOURNAL[:200], True),
    ]
    wrong = [(start, is_one) for start, is_one in cases if looks_like_journal(start) is not is_one]
    assert wrong == []


def test_reading_never_imports_torch() -> None:
    code = "import sys, glassgpt.runs.reading, glassgpt.runs.facts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_demo_logs_are_read_anywhere_and_a_wrong_name_lists_them() -> None:
    assert read_run_log("demo:cpu").evals[-1].val_loss == 1.8857
    run_log = read_run_log("demo:gpu")
    assert (run_log.name, run_log.trainer.id, run_log.evals[-1].val_loss) == ("demo:gpu", "nanogpt", 1.7096)
    with pytest.raises(UserError, match="there are demo:cpu and demo:gpu"):
        read_run_log("demo:tpu")
