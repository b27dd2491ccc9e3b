"""The bench of forecasts: logs are cut, nothing after the cut is used, and the shares are counted right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.forecasts import FIT_SHARES, cut_run, fit_law, read_runs, score_folds, summarise, tables, wilson


def write_log(path: Path, floor: float, seed: int) -> None:
    """A run in the manner of build-nanogpt's dicts: a linear schedule, and the loss that follows it."""
    rng = np.random.default_rng(seed)
    at = np.arange(10, 1001, 10)
    progress = at - at**2 / 2000
    losses = floor + 3 * (progress / 50) ** -0.5 + 0.3 * (1 - at / 1000) + rng.normal(0, 0.01, len(at))
    lines = ["***** Running training *****", "  Total optimization steps = 1,000"]
    lines += [
        f"{{'loss': {loss:.4f}, 'learning_rate': {1e-7 * (1000 - i):.3e}, 'epoch': {i / 1000}, 'step': {i}}}"
        for i, loss in zip(at.tolist(), losses, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def test_wilson_interval() -> None:
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=0.001)
    assert wilson(0, 0) == (0.0, 1.0)


def test_runs_are_cut_fitted_and_scored(tmp_path: Path) -> None:
    for seed in range(8):
        write_log(tmp_path / f"author-{seed}" / "train.log", 1.0 + 0.3 * seed, seed)
    (tmp_path / "author-9").mkdir()
    (tmp_path / "author-9" / "notes.txt").write_text("nothing here\n", "utf-8")
    runs, unread = read_runs(tmp_path)
    assert (len(runs), unread) == (8, ["author-9/notes"])
    assert {(run.planned, run.target, run.is_end_given) for run in runs} == {(1000, 1000, False)}

    cut = cut_run(runs[0], 0.5)
    assert cut is not None
    assert cut.inputs is not None
    at, losses = runs[0].log.steps.iteration, runs[0].log.steps.loss
    assert cut.truth == pytest.approx(float(np.median(losses[at > 950])))
    assert cut.carried == pytest.approx(float(np.median(losses[(at > 450) & (at <= 500)])))
    assert cut.inputs.curve.end_progress == pytest.approx(
        (975 - 975**2 / 2000) / (500 - 500**2 / 2000), rel=0.05
    )

    fit_cuts = [one for run in runs for share in FIT_SHARES if (one := cut_run(run, share))]
    scored = [one for run in runs if (one := cut_run(run, 0.6))]
    scores, silent = score_folds(scored, fit_cuts, folds=2, seed=0)
    assert len(scores) + len(silent) == 8
    total = summarise(scores, len(silent))
    assert total["hits"] == sum(score.low <= score.cut.truth <= score.high for score in scores)
    assert total["median_error"] < total["median_error_carried"]  # type: ignore[operator]
    assert f"{total['hits']} of {len(scores)}" in tables(scores, silent)
    assert fit_law(fit_cuts, rounds=1).runs == 8
