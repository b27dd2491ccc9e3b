"""`glass explain`, as it meets logs in any wrapping, torn journals and hostile files."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import (
    HOSTILE_TEXT,
    Capture,
    chdir_with_log,
    control_characters,
    error_lines,
    eval_records,
    finished_run,
    glass,
    hostile_run,
    nanogpt_log,
    parse_strict_json,
    record,
    run_record,
    stdout_of,
    write_run,
)

from glassgpt.cli import main
from glassgpt.record import journal
from glassgpt.record.journal import Record


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return chdir_with_log(tmp_path, monkeypatch)


# --- what it reads ---


@pytest.mark.parametrize("packed", ["gzip", "utf-16", "utf-16-le", "crlf", "colours"])
def test_a_log_in_any_wrapping_says_the_same(packed: str, capsys: Capture) -> None:
    log = nanogpt_log()
    content = {
        "gzip": gzip.compress(log.encode()),
        "crlf": log.replace("\n", "\r\n").encode(),
        "colours": re.sub(r"(\d+\.\d+)", "\x1b[32m\\1\x1b[0m", log).encode(),
    }.get(packed) or log.encode(packed)
    Path("packed").write_bytes(content)
    expected = parse_strict_json(stdout_of(capsys, "explain", "n.log", "--json"))
    assert parse_strict_json(stdout_of(capsys, "explain", "packed", "--json")) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(packed: bool, capsys: Capture) -> None:
    log = nanogpt_log().encode()
    done = glass("explain", "-", "--json", stdin=gzip.compress(log) if packed else log)
    assert done.returncode == 0
    assert done.stderr == b""
    assert parse_strict_json(done.stdout.decode()) == parse_strict_json(
        stdout_of(capsys, "explain", "n.log", "--json")
    )


def test_standard_input_without_a_word(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    (problem,) = error_lines(capsys, "explain", "-")
    assert problem.startswith("standard input is not a training log")


@pytest.mark.parametrize("flags", [[], ["--watch"]], ids=str)
def test_no_standard_input(flags: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """`glass explain - <&-`, as some schedulers start programs."""
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input" in error_lines(capsys, "explain", "-", *flags)[0]


def test_a_finished_run_by_its_folder_its_journal_or_a_pipe(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(Path("runs/mine"), finished_run())
    expected = parse_strict_json(stdout_of(capsys, "explain", str(folder), "--json"))
    assert expected["format"] == "glassgpt"
    assert expected["facts"]["ended"] == "finished"
    assert expected["facts"]["last_iteration"] == 100
    assert (
        parse_strict_json(stdout_of(capsys, "explain", str(folder / journal.FILE_NAME), "--json")) == expected
    )
    (folder / journal.FILE_NAME).rename("another-name.txt")
    assert parse_strict_json(stdout_of(capsys, "explain", "another-name.txt", "--json")) == expected
    content = Path("another-name.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert parse_strict_json(stdout_of(capsys, "explain", "-", "--json")) == expected


def test_a_live_run(capsys: Capture) -> None:
    folder = write_run(Path("runs/live"), finished_run()[:8])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = stdout_of(capsys, "explain", str(folder))
        facts = parse_strict_json(stdout_of(capsys, "explain", str(folder), "--json"))["facts"]
        with (folder / journal.FILE_NAME).open("ab") as file:
            file.write(b'{"kind":"step","iter":60,"ti')  # being written just now
        assert parse_strict_json(stdout_of(capsys, "explain", str(folder), "--json"))["facts"] == facts
    assert "at iteration 50 now" in text
    assert facts["ended"] is None
    assert parse_strict_json(stdout_of(capsys, "explain", str(folder), "--json"))["facts"]["ended"] == "cut"


@pytest.mark.parametrize("content", [b"", b"\n", b"torn", b'{"kind":"run"'])
def test_a_journal_without_a_record(content: bytes, capsys: Capture) -> None:
    folder = write_run(Path("runs/mine"), [])
    (folder / journal.FILE_NAME).write_bytes(content)
    (problem,) = error_lines(capsys, "explain", str(folder))
    assert "no records of a run" in problem
    assert error_lines(capsys, "explain", str(folder), "--watch")
    assert error_lines(capsys, "explain", str(folder / journal.FILE_NAME))


@pytest.mark.parametrize(
    "records", [[run_record()], [run_record(), *eval_records(0, 4.2)]], ids=["bare", "evaluated"]
)
@pytest.mark.parametrize("flags", [[], ["--full"], ["--watch"]], ids=str)
def test_a_run_killed_before_its_first_step(records: list[Record], flags: list[str], capsys: Capture) -> None:
    folder = write_run(Path("runs/mine"), records)
    text = stdout_of(capsys, "explain", str(folder), *flags)
    assert "GlassGPT run" in text
    assert "Nothing is wrong" not in text
    assert "without their numbers" not in text


@pytest.mark.parametrize("damage", ["types", "negative", "huge"])
def test_a_journal_that_was_tampered_with(damage: str, capsys: Capture) -> None:
    records = finished_run()
    records.insert(4, record("finding", 10, severity="warning", title="t", evidence="e"))
    records.insert(9, {**record("resume", 50, from_iter=50), "process": 1})
    wrong: Any = {"types": ["x", {}], "negative": -1, "huge": 1e308}[damage]
    once = {(one["kind"], key): number for number, one in enumerate(records) for key in one}
    for (_, key), number in once.items():
        changed = [*records]
        changed[number] = {**records[number], key: wrong}
        folder = write_run(Path("runs/mine"), changed)
        assert main(["explain", str(folder)]) in (0, 2), key


def test_evaluations_that_go_back(capsys: Capture) -> None:
    """A resume from an earlier checkpoint: the distance between two evaluations is not -250."""
    Path("back.log").write_text(nanogpt_log(600, 300) + nanogpt_log(400, 250))
    assert re.search(r"every -\d", stdout_of(capsys, "explain", "back.log")) is None


LINE = "iter {at}: loss {loss}, time {ms}ms, mfu 0.03%\n"
ODD_LOGS = {
    "long": LINE.format(at=10, loss=1.7, ms="1e308") + LINE.format(at=20, loss=1.7, ms=45.95),
    "max_iters": "Overriding: max_iters = 1e400\n" + LINE.format(at=20, loss=3.5, ms=63.59),
    "log_interval": "log_interval = 1e400\nmax_iters = 10000\n" + LINE.format(at=20, loss=3.5, ms=63.59),
    "width": "block_size = 256\nn_layer = 48\nn_embd = 1e308\nfound vocab_size = 65 (inside data/meta.pkl)\n"
    "number of parameters: 2416.25M\n"
    + LINE.format(at=0, loss=4.6, ms=129066.95)
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity "
    "of 39.38 GiB of which 18.12 MiB is free.\n",
    "rate": "step     3 | loss: 10.673607 | lr 3.3566e-06 | norm: 12.9180 | dt: 25808.23ms | tok/sec: inf\n",
    "span": LINE.format(at=20, loss="-1e308", ms=1441.24) + LINE.format(at=340, loss="1e308", ms=1446.62),
    "number": LINE.format(at="9" * 30, loss=1.7, ms=45.95) * 2,
    "nothing": LINE.format(at=0, loss=0, ms=0) + LINE.format(at=1, loss=0, ms=0),
}


@pytest.mark.parametrize("name", ODD_LOGS)
def test_numbers_that_no_run_has(name: str, capsys: Capture) -> None:
    Path("odd.log").write_text(ODD_LOGS[name])
    for arguments in (
        ["explain", "odd.log"],
        ["explain", "odd.log", "--json"],
        ["compare", "odd.log", "n.log"],
    ):
        assert main(arguments) in (0, 2)
    assert main(["report", "odd.log"]) in (0, 2)


# --- hostile text ---


@pytest.mark.parametrize("flags", [[], ["--full"], ["--json"], ["--watch"], ["--lang=hi"]], ids=str)
def test_a_hostile_journal_cannot_harm_a_terminal(flags: list[str], capsys: Capture) -> None:
    folder = write_run(Path("runs/evil"), hostile_run())
    text = stdout_of(capsys, "explain", str(folder), *flags)
    assert not control_characters(text)
    assert "[red]x[/red]" in text  # printed, not obeyed


def test_a_hostile_journal_in_arabic(capsys: Capture) -> None:
    folder = write_run(Path("runs/evil"), hostile_run())
    text = stdout_of(capsys, "explain", str(folder), "--lang=ar")
    isolation_marks = (
        "\N{RIGHT-TO-LEFT MARK}\N{FIRST STRONG ISOLATE}\N{LEFT-TO-RIGHT ISOLATE}\N{POP DIRECTIONAL ISOLATE}"
    )
    assert not control_characters(text, "\n" + isolation_marks)
    assert "\N{FIRST STRONG ISOLATE}" in text


@pytest.mark.parametrize("flags", [[], ["--full"], ["--json"]], ids=str)
def test_a_hostile_log_cannot_harm_a_terminal(flags: list[str], capsys: Capture) -> None:
    lines = nanogpt_log().splitlines()
    lines.insert(
        2, f"device = 'cuda{HOSTILE_TEXT}'\nOverriding: dataset = {HOSTILE_TEXT}\nGPU: RTX 4090{HOSTILE_TEXT}"
    )
    lines.append(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {HOSTILE_TEXT}")
    Path("evil.log").write_text("\n".join(line + HOSTILE_TEXT for line in lines))
    assert not control_characters(stdout_of(capsys, "explain", "evil.log", *flags))


@pytest.mark.parametrize(
    "name", ["we ird.log", f"a{HOSTILE_TEXT.replace('/', '')}.log", "\u202egol.log", "-", "--json"]
)
def test_any_file_name(name: str, capsys: Capture) -> None:
    Path("n.log").rename(name)
    assert not control_characters(stdout_of(capsys, "explain", f"./{name}"))
    (problem,) = error_lines(capsys, "explain", f"./{name}.not")
    assert not control_characters(problem)


def test_a_file_name_is_one_line(capsys: Capture) -> None:
    Path("n.log").rename("a.log\nA nanoGPT run that went very well.\n")
    assert "went very well." not in stdout_of(capsys, "explain", *os.listdir()).splitlines()


def test_a_file_name_that_is_not_utf8() -> None:
    name = b"n\xff.log"
    Path("n.log").rename(os.fsdecode(name))
    done = glass("explain", name)
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\xff" not in done.stdout
    assert glass("explain", name + b"x").returncode == 2
