"""Numbers as logs print them, and the limits that every RunLog keeps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_checks import parse_log
from run_logs import make_run_log, make_steps

from glassgpt.runs.log_numbers import MAX_COUNT, MAX_FLOPS, MAX_LOSS, clamped, parse_count, parse_ms
from glassgpt.runs.run_log import LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog

ANYTHING = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e308, 1e-300, math.inf, math.nan]))
SIZES = st.one_of(st.none(), st.integers(-5, 10**40))


@pytest.mark.parametrize(
    ("text", "count"), [("10.65M", 10_650_000), ("124,475,904", 124_475_904), ("1.1B", 1_100_000_000)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_what_is_not_a_count(subtests: pytest.Subtests) -> None:
    for text in ("", "...", "1e400", "-5", "9" * 30, "nan"):
        with subtests.test(text), pytest.raises(ValueError, match=r".*"):
            parse_count(text)


def test_seconds_are_milliseconds() -> None:
    assert (parse_ms("1,234.5", "ms"), parse_ms("1.5", "s")) == (1234.5, 1500.0)


def is_amount(values: object, smallest: float = 1e-9) -> bool:
    numbers = np.asarray(values, dtype=float)
    known = numbers[~np.isnan(numbers)]
    return bool(np.all((known == 0) | ((known >= smallest) & (known <= MAX_COUNT))))


def is_loss(values: object) -> bool:
    size = np.abs(np.asarray(values, dtype=float))
    known = size[np.isfinite(size)]
    return bool(np.all((known == 0) | ((known >= 1e-100) & (known <= MAX_LOSS))))


@given(st.lists(st.tuples(*[ANYTHING] * 6), max_size=5), st.tuples(*[ANYTHING] * 8), st.tuples(*[SIZES] * 6))
def test_what_holds_for_every_value(
    rows: list[tuple[float, ...]], floats: tuple[float, ...], sizes: tuple[int | None, ...]
) -> None:
    """The list in builder.py's docstring."""
    ms, loss, mfu, lr, grad_norm, tokens_per_s = np.array(rows, dtype=float).reshape(-1, 6).T.tolist()
    steps = make_steps(
        range(len(rows)), ms, loss, mfu=mfu, lr=lr, grad_norm=grad_norm, tokens_per_s=tokens_per_s
    )
    setup = LoggedSetup(
        {"n_embd": floats[0], "n_layer": sizes[0] or 0, "seed": 10**18, "device": "cuda"},
        parameters=sizes[1],
        trained_parameters=sizes[2],
        tokens_per_iteration=sizes[0],
        flops_per_token=floats[1],
        peak_flops=floats[2],
        world_size=sizes[3],
        wall_s=floats[3],
        bytes_per_token=floats[4],
    )
    evaluation = LoggedEvaluation(5, 0, floats[5], floats[6], floats[7], floats[0], sizes[4])
    run_log = dataclasses.replace(
        make_run_log(steps),
        setup=setup,
        evals=(evaluation,),
        segments=(LoggedProcess(True, tokens_per_iteration=sizes[5], startup_s=floats[1]),),
        ledger={"train": floats[2]},
        first_update_ms=floats[3],
    )
    run_log = clamped(run_log)
    assert all(is_amount(getattr(run_log.steps, name)) for name in ("ms", "mfu", "tokens_per_s"))
    assert is_amount(run_log.steps.lr, smallest=1e-30)
    assert all(is_loss(values) for values in (run_log.steps.loss, run_log.steps.grad_norm))
    (done,), (segment,), setup = run_log.evals, run_log.segments, run_log.setup
    assert is_loss([done.val_loss, done.train_loss])
    counts = [setup.parameters, setup.trained_parameters, setup.tokens_per_iteration, setup.world_size]
    others = [setup.wall_s, setup.bytes_per_token, done.ms, done.tokens, *(run_log.ledger or {}).values()]
    of_segment = [segment.tokens_per_iteration, segment.startup_s, run_log.first_update_ms]
    assert is_amount([math.nan if value is None else value for value in counts + others + of_segment])
    assert all(value is None or 0 < value <= MAX_FLOPS for value in (setup.flops_per_token, setup.peak_flops))
    assert setup.settings["seed"] == 10**18
    numbers = [value for name, value in setup.settings.items() if name not in ("seed", "device")]
    assert all(isinstance(value, int | float) and abs(value) <= MAX_COUNT for value in numbers)
    assert same(clamped(run_log), run_log)


def same(one: RunLog, other: RunLog) -> bool:
    return repr(dataclasses.replace(one, name="")) == repr(dataclasses.replace(other, name=""))


def test_losses_that_are_not_finite_stay() -> None:
    text = "".join(
        f"iter {at}: loss {loss}, time 5.00ms\n" for at, loss in enumerate(["nan", "inf", "1e300", "-inf"])
    )
    losses = parse_log(text).steps.loss.tolist()
    assert math.isnan(losses[0])
    assert losses[1:] == [math.inf, math.inf, -math.inf]
