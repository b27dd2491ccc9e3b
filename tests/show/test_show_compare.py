"""What `glass compare` prints."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from rich.console import Console

from glassgpt.compare import compare
from glassgpt.i18n import translate
from glassgpt.runs.run_log import LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog, Steps
from glassgpt.runs.trainers import BY_ID
from glassgpt.show.terminal.compare_view import print_comparison

_NANOGPT = BY_ID["nanogpt"]


def history(name: str, ms: float, losses: tuple[tuple[int, float], ...], **settings: int | str) -> RunLog:
    iterations = np.arange(0, 1001, 10)
    nothing = np.full(len(iterations), np.nan)
    steps = Steps(
        iteration=iterations,
        segment=np.zeros(len(iterations), dtype=np.int64),
        line=np.zeros(len(iterations), dtype=np.int64),
        loss=nothing,
        has_loss=np.zeros(len(iterations), dtype=bool),
        ms=np.full(len(iterations), ms),
        mfu=nothing,
        lr=nothing,
        grad_norm=nothing,
        tokens_per_s=nothing,
    )
    evals = tuple(LoggedEvaluation(at, 0, val) for at, val in losses)
    shape = {"n_layer": 6, "n_embd": 384, "block_size": 256, "batch_size": 64, "vocab_size": 65}
    setup = LoggedSetup(settings={**shape, "gradient_accumulation_steps": 1, "dataset": "x", **settings})
    return RunLog(_NANOGPT, name, steps, evals, (), (LoggedProcess(has_startup=True),), setup=setup)


_FALLING = ((0, 4.2), (300, 2.4), (1000, 1.6))
_FALLING_MORE = ((0, 4.2), (450, 1.9), (1000, 1.4))


def printed(*histories: RunLog, width: int = 100) -> str:
    out = io.StringIO()
    comparison = compare(histories)
    print_comparison(comparison, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_the_verdict_comes_first_then_what_it_rests_on() -> None:
    text = printed(history("a.log", 50, _FALLING), history("b.log", 25, _FALLING_MORE, n_layer=8))
    order = ["A: a.log (nanoGPT)", "B is faster than A", "B is better than A", "What differs", "n_layer",
             "Derived", "tokens per second", "MFU of 312 TFLOP/s", "Validation loss",
             "after 1,000 iterations", "Loss over the run", "Tokens per second"]  # fmt: skip
    place = 0
    for part in order:
        place = text.index(part, place)  # raises where it does not come after the one before


def test_the_curves_share_one_scale() -> None:
    text = printed(history("a", 50, ((0, 4.0), (1000, 3.0))), history("b", 50, ((0, 4.0), (1000, 1.0))))
    lines = [line for line in text.splitlines() if "→" in line]
    assert lines == ["A  █▆  4.0000 → 3.0000", "B  █▁  4.0000 → 1.0000"]


def test_three_runs_have_three_columns() -> None:
    runs = [history(name, 50, _FALLING) for name in "abc"]
    (header,) = [line for line in printed(*runs).splitlines() if line.split() == ["A", "B", "C"]][:1]
    assert header


def test_losses_that_do_not_compare_are_not_drawn() -> None:
    text = printed(history("a", 50, _FALLING), history("b", 50, _FALLING, dataset="y"))
    assert "not comparable" in text
    assert "→" not in text


def test_text_from_files_cannot_harm_the_terminal() -> None:
    evil = "\x1b[31m[bold]x"
    text = printed(history(evil, 50, _FALLING, device=evil), history("b", 50, _FALLING, device="cpu"))
    assert "\x1b" not in text
    assert "[bold]x" in text


def test_little_to_show() -> None:
    bare = history("a", float("nan"), ())
    text = printed(bare, replace(bare, name="b"), width=40)
    assert translate("compare_view.differences.none") in text
    assert "Validation loss" not in text
