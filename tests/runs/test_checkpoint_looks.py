"""Looks into checkpoints: kept as lines, read again, gone with checkpoints that a resume has superseded."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from glassgpt.record import journal
from glassgpt.runs.checkpoint_looks import LOOKS_FILE, CheckpointLook, append_look, read_looks
from glassgpt.runs.following import open_source
from glassgpt.runs.reading import read_run_log

LOOK = CheckpointLook(
    iteration=20,
    start="aa",
    passage_start=7,
    passage_losses=(0.5, 2.0),
    guesses=((("a", 0.5), ("b", 0.25)), (("c", 1.0),)),
    previous_token=((0.1, 0.2), (0.3, 0.4)),
    previous_token_uniform=0.05,
    induction=((0.0, 0.7), (0.1, 0.2)),
    induction_uniform=0.02,
    first_copy_loss=4.0,
    second_copy_loss=1.0,
    known_words=0.25,
)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    assert read_looks(tmp_path) == ()
    later = replace(LOOK, iteration=40, induction=None, induction_uniform=None)
    again = replace(LOOK, known_words=0.5)
    for look in (later, LOOK, again):
        append_look(tmp_path, look)
    assert read_looks(tmp_path) == (again, later)
    assert LOOK.best_induction == (0, 1, 0.7)
    assert later.best_induction is None


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    row = asdict(LOOK)
    damages: list[Any] = [
        [], {}, "x", row | {"iteration": -1}, row | {"iteration": True}, row | {"passage_losses": ["nan"]},
        row | {"guesses": [[1]]}, row | {"previous_token": 3}, row | {"known_words": "half"},
    ]  # fmt: skip
    lines = [json.dumps(damage) for damage in damages] + ["{", "[" * 5000, '{"iteration": 1e999}']
    (tmp_path / LOOKS_FILE).write_text("\n".join(lines) + "\n")
    assert read_looks(tmp_path) == ()
    append_look(tmp_path, LOOK)
    assert read_looks(tmp_path) == (LOOK,)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    records = [
        {"kind": "run", "iter": 0, "start": "aa", "config": {"max_iters": 60}},
        {"kind": "checkpoint", "iter": 20, "start": "aa"},
        {"kind": "checkpoint", "iter": 40, "start": "aa"},
        {"kind": "resume", "iter": 20, "from_iter": 20, "start": "bb"},
        {"kind": "checkpoint", "iter": 40, "start": "bb"},
    ]
    lines = [json.dumps(record | {"time": 1.0, "process": 0}) for record in records]
    (tmp_path / journal.FILE_NAME).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_look_into_a_superseded_checkpoint_does_not_count(run_dir: Path) -> None:
    superseded, valid = replace(LOOK, iteration=40), replace(LOOK, iteration=40, start="bb")
    for look in (LOOK, superseded, valid, replace(LOOK, iteration=60)):
        append_look(run_dir, look)
    assert read_run_log(str(run_dir)).looks == (LOOK, valid)


def test_a_followed_run_sees_a_new_look(run_dir: Path) -> None:
    source = open_source(str(run_dir))
    assert source.poll()
    assert not source.poll()
    append_look(run_dir, LOOK)
    assert source.poll()
    assert source.build(live=False, final=True)[0].looks == (LOOK,)
    assert not source.poll()
