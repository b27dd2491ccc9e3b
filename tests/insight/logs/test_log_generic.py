"""A trainer that nobody knows: what is plainly there, and nothing more."""

from __future__ import annotations

import math

import pytest
from printed import Course
from printed_more import unknown
from told import check, facts_in, history_of

from glassgpt.errors import UserError


def test_a_whole_log() -> None:
    told = unknown(Course(updates=33))
    check(told.text, told)


@pytest.mark.parametrize(
    ("line", "loss", "ms"),
    [
        ("Step {at}/500, Loss: 2.3456, LR: 3e-4, Time: 0.21s", 2.3456, 210),
        ("epoch 1 iteration {at} train_loss=3.21", 3.21, math.nan),
        ("[{at}] global_step {at} | training loss 3.21 | elapsed 12.5 ms", 3.21, 12.5),
        ("iteration: {at} loss: 3.21 time: 5", 3.21, math.nan),  # of what unit?
    ],
)
def test_forms(line: str, loss: float, ms: float) -> None:
    history = history_of("".join(line.format(at=at) + "\n" for at in range(1, 6)))
    assert history.format.name == "unknown"
    assert history.steps.iteration.tolist() == [1, 2, 3, 4, 5]
    assert history.steps.loss.tolist() == [loss] * 5
    assert history.steps.ms[0] == pytest.approx(ms, nan_ok=True)


def test_two_such_lines_are_not_yet_a_log() -> None:
    line = "Step {at}/500, Loss: 2.3456\n"
    with pytest.raises(UserError):
        history_of(line.format(at=1) + line.format(at=2))


def test_nothing_is_said_about_evaluation_times() -> None:
    facts = facts_in(unknown(Course(updates=33)).text)
    assert facts.eval_overhead_ms is None
    assert facts.overhead_share is None
