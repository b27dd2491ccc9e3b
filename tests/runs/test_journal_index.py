"""The index beside a long journal: the same RunLog with it and without, however it was damaged."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassgpt.record import journal
from glassgpt.runs import journal_index, step_rows
from glassgpt.runs.from_journal import JournalReader, read_run_journal, run_log_from_records
from glassgpt.runs.run_log import RunLog, Steps

Record = dict[str, Any]


def record(kind: str, at: int, process: int = 0, **values: object) -> Record:
    head = {"kind": kind, "time": float(at), "process": process, "start": f"s{process}", "iter": at}
    return head | values


def step(at: int, process: int = 0) -> Record:
    values = {"loss": "nan" if at == 77 else 2.0 + at % 7, "step_ms": 10.0 + at % 3, "tokens": at * 16}
    return record("step", at, process, phases={"train": 10.0, "data": 1}, memory={"rss": 5}, **values)


def story() -> list[Record]:
    """A run with evaluations, a finding and checkpoints, resumed once from an earlier iteration."""
    records = [record("run", 0, config={"max_iters": 900}, batch={"tokens": 16})]
    for at in range(1, 601):
        records.append(step(at))
        if at % 50 == 0:
            records += [record("eval", at, split=split, loss=3.0, ms=5.0) for split in ("train", "val")]
            records.append(record("checkpoint", at, blocking_ms=1.0, best=at == 50))
    records.append(record("finding", 600, id="x", title="t"))
    records.append(record("resume", 500, 1, from_iter=500))
    records += [step(at, 1) for at in range(501, 901)]
    return [*records, record("end", 900, 1, reason="finished", ledger={"train": 9.0})]


def write(folder: Path, records: list[Record], tail: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / journal.FILE_NAME
    path.write_bytes(b"".join(map(journal.encode_line, records)) + tail)
    return path


def assert_same(one: RunLog, other: RunLog) -> None:
    for column in fields(Steps):
        np.testing.assert_array_equal(getattr(one.steps, column.name), getattr(other.steps, column.name))
    for name in {field.name for field in fields(RunLog)} - {"steps", "name"}:
        assert getattr(one, name) == getattr(other, name), name


@pytest.fixture(autouse=True)
def always_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_index, "MIN_BYTES", 1)


@pytest.mark.parametrize("rows", [1 << 20, 256])
def test_a_journal_that_grows_is_read_as_if_there_were_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Cut anywhere: before, in and after the resume, inside a line; also where rows are thinned."""
    monkeypatch.setattr(step_rows, "MAX_ROWS", rows)
    monkeypatch.setattr(step_rows, "STRETCH", 8)
    records = story()
    for count in (1, 78, 640, 641, 700, len(records)):
        torn = journal.encode_line(records[count])[:30] if count < len(records) else b""
        path = write(tmp_path / "run", records[:count], torn)
        assert_same(read_run_journal(path.parent), run_log_from_records(journal.read(path), "x"))
        assert journal_index.index_path(path).exists()


def test_only_what_came_later_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = story()
    path = write(tmp_path / "run", records[:300])
    read_run_journal(path)
    write(tmp_path / "run", records[:310])
    fed: list[Record] = []
    monkeypatch.setattr(JournalReader, "feed", lambda _, one: fed.append(one))
    read_run_journal(path)
    assert fed == list(journal.parse_records(map(journal.encode_line, records[300:310])))


def test_an_index_that_does_not_fit_is_not_used(tmp_path: Path) -> None:
    records = story()
    path = write(tmp_path / "run", records[:400])
    read_run_journal(path)
    index = journal_index.index_path(path)
    whole, status = index.read_bytes(), path.stat()
    assert journal_index.load(path) is not None

    for position in range(0, len(whole), max(1, len(whole) // 40)):  # damaged, or cut
        flipped = bytes([whole[position] ^ 1])
        for content in (whole[:position] + flipped + whole[position + 1 :], whole[:position]):
            index.write_bytes(content)
            read = read_run_journal(path)
            assert_same(read, run_log_from_records(journal.read(path), "x"))

    head, rest = whole.split(b"\n", 1)
    for absurd in (b"Infinity", b"1" + b"0" * 400, b"-1", b"null"):
        index.write_bytes(re.sub(rb'"end": \d+', b'"end": ' + absurd, head) + b"\n" + rest)
        assert journal_index.load(path) is None

    index.write_bytes(whole)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))  # edited in place
    assert journal_index.load(path) is None
    write(tmp_path / "run", records[:399])  # shorter
    assert journal_index.load(path) is None
    write(tmp_path / "run", [record("run", 0, config={}), *records[1:]])  # another run
    assert journal_index.load(path) is None


def test_no_index_where_none_can_be_written_or_none_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "run", story())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert read_run_journal(path).ended == "finished"
    monkeypatch.setattr(journal_index, "MIN_BYTES", path.stat().st_size + 1)
    read_run_journal(path)
    assert [one.name for one in path.parent.iterdir()] == [journal.FILE_NAME]
