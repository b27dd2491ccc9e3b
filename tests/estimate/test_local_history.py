"""The history of finished runs: a file that survives anything, and what it says about the next run."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_history import CONFIG, WORK, make_row

from glassgpt.estimate import flops, local_history
from glassgpt.estimate.local_history import append_row, history_path, read_rows, speed_from_history
from glassgpt.estimate.measured_speed import work_key
from glassgpt.estimate.speed import estimate_throughput

FLOPS = flops.model_flops_per_token(CONFIG, WORK.vocab_size)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSGPT_CACHE_DIR", str(tmp_path))
    return tmp_path / "history.jsonl"


# --- the file ---


def test_the_tests_have_no_history() -> None:
    assert os.environ["GLASSGPT_CACHE_DIR"] == os.devnull
    assert not append_row(make_row())
    assert read_rows() == ()


def test_what_was_written_is_read(cache: Path) -> None:
    rows = (make_row(), make_row(tokens_per_s=123.5))
    assert all(append_row(row) for row in rows)
    assert read_rows() == rows


def test_it_lies_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSGPT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "glassgpt" / "history.jsonl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert history_path() == tmp_path / ".cache" / "glassgpt" / "history.jsonl"
    monkeypatch.setattr("sys.platform", "darwin")
    assert history_path() == tmp_path / "Library" / "Caches" / "glassgpt" / "history.jsonl"


def test_a_torn_line_spoils_neither_neighbour(cache: Path) -> None:
    append_row(make_row())
    with cache.open("ab") as file:
        file.write(b'{"format": 1, "machine": "a CP')
    append_row(make_row(tokens_per_s=5.0))
    assert [row.tokens_per_s for row in read_rows()] == [make_row().tokens_per_s, 5.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens_per_s", -1.0), ("tokens_per_s", "fast"), ("tokens_per_s", None), ("seconds", 1e300),
        ("flops_per_token", 0), ("ranks", 0), ("busy_cores", -1), ("peak_bytes", -5), ("machine", 7),
        ("work", {}), ("work", []), ("work", {**work_key(WORK), "n_layer": 0}),
        ("work", {**work_key(WORK), "n_layer": "2"}), ("work", {**work_key(WORK), "more": 1}), ("format", 2),
    ],
)  # fmt: skip
def test_a_damaged_row_is_skipped(cache: Path, name: str, value: Any) -> None:
    document = {"format": 1, **dataclasses.asdict(make_row()), name: value}
    cache.write_text(json.dumps(document) + "\n")
    assert read_rows() == ()
    append_row(make_row())
    assert read_rows() == (make_row(),)


@given(st.binary(max_size=300))
def test_any_bytes_are_read(content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_history, "read_small_file", lambda *arguments: content)
        assert read_rows() == ()


def test_it_is_cut_to_its_newest_half(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps({"format": 1, **dataclasses.asdict(make_row(updates=100))})) + 1
    monkeypatch.setattr(local_history, "_MAX_BYTES", 10 * size)
    for number in range(100, 125):
        assert append_row(make_row(updates=number))
        assert cache.stat().st_size <= 10 * size
    updates = [row.updates for row in read_rows()]
    assert updates == list(range(125 - len(updates), 125))
    assert len(updates) >= 4


def test_runs_that_end_together_lose_no_row(cache: Path) -> None:
    threads = [
        threading.Thread(target=lambda n=n: [append_row(make_row(updates=100 * n + k)) for k in range(1, 11)])
        for n in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.updates for row in read_rows()) == sorted(
        100 * n + k for n in range(1, 5) for k in range(1, 11)
    )


def test_what_cannot_be_written_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GLASSGPT_CACHE_DIR", str(tmp_path / "file" / "under"))
    assert not append_row(make_row())
    monkeypatch.setenv("GLASSGPT_CACHE_DIR", str(tmp_path))
    (tmp_path / "history.jsonl").symlink_to(tmp_path / "file")
    assert not append_row(make_row())
    assert (tmp_path / "file").read_text() == ""
    (tmp_path / "history.jsonl").unlink()
    os.mkfifo(tmp_path / "history.jsonl")
    assert not append_row(make_row())
    assert read_rows() == ()


def test_a_row_names_no_data_and_no_place(cache: Path) -> None:
    append_row(make_row())
    text = cache.read_text()
    assert "a_secret_diary" in str(CONFIG)
    for secret in ("a_secret_diary", str(Path.home()), os.sep):
        assert secret not in text


# --- what it says ---


def speed(rows: list[Any], **changes: Any) -> Any:
    work = replace(WORK, **changes)
    per_token = flops.model_flops_per_token(work.config, work.vocab_size)
    return speed_from_history(rows, "a CPU, 2 cores", work, per_token, None)


def test_the_same_work_is_as_fast_as_before() -> None:
    found = speed([make_row(tokens_per_s=rate) for rate in (900.0, 1000.0, 1100.0)])
    assert found.tokens_per_s[1] == 1000
    assert found.tokens_per_s[0] < 900 < 1100 < found.tokens_per_s[2]
    assert found.why.startswith("3 finished runs of this very work")
    assert (found.peak_bytes, found.start_s) == (make_row().peak_bytes, 4.0)


def test_similar_work_is_scaled_by_the_estimate() -> None:
    estimated = estimate_throughput(WORK, FLOPS, 2e11, None).mid
    wider = replace(CONFIG, n_embd=48)
    of_wider = estimate_throughput(
        replace(WORK, config=wider), flops.model_flops_per_token(wider, WORK.vocab_size), 2e11, None
    ).mid
    found = speed([make_row(tokens_per_s=1.5 * estimated)], config=wider)
    assert found.tokens_per_s[1] == pytest.approx(1.5 * of_wider)
    assert found.peak_bytes is None
    near = speed([make_row(tokens_per_s=1.5 * estimated)])
    width = [band[2] / band[0] for band in (near.tokens_per_s, found.tokens_per_s)]
    assert width[0] < width[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "another CPU, 2 cores"}, {"seconds": 4.0}, {"busy_cores": 1.0},
        {"work": {**work_key(WORK), "dtype": "bfloat16"}}, {"work": {**work_key(WORK), "arch": "modern"}},
    ],
)  # fmt: skip
def test_other_machines_other_kernels_and_busy_hours_say_nothing(changes: dict[str, Any]) -> None:
    assert speed([make_row(**changes)]) is None


def test_work_that_is_not_similar_says_nothing() -> None:
    assert speed([make_row()], config=replace(CONFIG, n_embd=512, n_layer=12)) is None
    assert speed([make_row()], batch_size=32 * WORK.batch_size) is None
    assert speed([]) is None
