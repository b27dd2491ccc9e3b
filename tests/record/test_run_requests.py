"""Requests to a run, written as files and taken once."""

from __future__ import annotations

import json
from pathlib import Path

from glassgpt.record.run_requests import REQUESTS_DIR, RequestWatch, write_request


def test_a_request_is_taken_once_and_its_file_removed(tmp_path: Path) -> None:
    now = [0.0]
    watch = RequestWatch(started_at=0.0, clock=lambda: now[0])
    first = write_request(tmp_path, "save", "page")
    second = write_request(tmp_path, "stop", "a script")
    taken = watch.take(tmp_path)
    assert [(one.id, one.action, one.by) for one in taken] == [
        (first, "save", "page"),
        (second, "stop", "a script"),
    ]
    assert list((tmp_path / REQUESTS_DIR).iterdir()) == []
    now[0] = 2.0
    assert watch.take(tmp_path) == []


def test_it_looks_at_most_once_a_second(tmp_path: Path) -> None:
    now = [10.0]
    watch = RequestWatch(started_at=0.0, clock=lambda: now[0])
    assert watch.take(tmp_path) == []
    write_request(tmp_path, "stop", "page")
    now[0] = 10.9
    assert watch.take(tmp_path) == []
    now[0] = 11.0
    assert len(watch.take(tmp_path)) == 1


def test_a_request_to_an_earlier_process_is_dropped(tmp_path: Path) -> None:
    write_request(tmp_path, "stop", "page")
    assert RequestWatch(clock=lambda: 0.0).take(tmp_path) == []
    assert list((tmp_path / REQUESTS_DIR).iterdir()) == []


def test_what_is_no_request_is_removed_and_ignored(tmp_path: Path) -> None:
    folder = tmp_path / REQUESTS_DIR
    folder.mkdir()
    for number, content in enumerate(
        (b"", b"{", b"[]", b'{"action": "rm", "time": 1}', b'{"action": "stop"}', b"[" * 5000, b"x" * 9000)
    ):
        (folder / f"{number}.json").write_bytes(content)
    harmful = {"action": "save", "by": "\x1b[2J" + "y" * 500, "time": 5.0}
    (folder / "named.json").write_text(json.dumps(harmful))
    (taken,) = RequestWatch(started_at=0.0, clock=lambda: 0.0).take(tmp_path)
    assert taken.id == "named"
    assert taken.by.isprintable()
    assert len(taken.by) == 80
    assert list(folder.iterdir()) == []
