"""How often forecasts of the final loss hold the truth: logs of finished runs, each cut at a random place.

    python -m bench.forecasts FOLDER [--page=docs/forecasts.md] [--seed=0] [--folds=10]

FOLDER has a subfolder for each source (a repository, an author) with the logs of its runs. Each log is cut
once, at 30% to 80% of its length, and its loss at the end is forecast from what comes before the cut. Every
constant of the law and the width of the band are fitted to the logs of other sources: the sources are dealt
into folds, and each fold is scored with the constants of the others. Last, the constants of all logs are
printed: those belong into glassgpt/estimate/loss_forecast.py. The last line of the output is JSON.

With --as-is nothing is fitted: the constants in the code are scored, on logs that had no part in them.

A run that did not reach its planned end is forecast at its last iteration. A log that does not say where it
was to end is told: its last iteration. Logs that cannot be read are listed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import UserError
from glassgpt.estimate.loss_forecast import (
    LAW,
    ForecastLaw,
    LossFit,
    expect_loss_at_end,
    fit_loss_curve,
    forecast_loss_at_end,
)
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.final_loss import SMOOTHED_SHARE, ForecastInputs, forecast_inputs
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog, Steps
from glassgpt.runs.trajectory import Trajectory, planned_end_iteration

CUT_SHARES = (0.3, 0.8)
FIT_SHARES = (0.35, 0.55, 0.75)  # a run that constants are fitted to is cut at each of these
COVERAGE = 0.8
MAX_SCORED_PER_SOURCE = 3
MIN_END_LOSSES = 3
_FIXED = ("runs", "band_below", "band_above")  # not fitted by likelihood
_OF_THE_FIT = ("alpha", "kappa", "window", "typical_slope", "slope_spread", "unknown_decay")
_STUDENT_DEGREES = 4.0  # of freedom: errors have heavy tails
_PRIOR_WEIGHT = 0.002  # draws constants that the runs say little about to these round figures:
START = ForecastLaw(
    alpha=0.5, kappa=0.5, window=2.0, typical_slope=0.05, slope_spread=0.2, unknown_decay=0.2, val_share=0.25,
    train_share=0.25, unknown_factor=2.0, residual_factor=0.5, fit_factor=1.0, level_share=0.003,
    fine_tuning_factor=1.0, band_below=1.3, band_above=1.3, runs=0,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    source: str
    name: str
    log: RunLog
    planned: int  # where the schedule ends
    target: int  # whose loss is forecast
    is_end_given: bool  # the log does not say where it was to end


@dataclass(frozen=True)
class Cut:
    """A run cut at a share of its length. `inputs`: None where nothing is said."""

    run: Run
    share: float
    inputs: ForecastInputs | None
    truth: float
    carried: float  # the last value before the cut


@dataclass(frozen=True)
class Score:
    cut: Cut
    expected: float
    low: float
    high: float

    @property
    def is_hit(self) -> bool:
        return self.low <= self.cut.truth <= self.high


# --- reading and cutting ---


def read_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """The runs, and the names of the files that could not be used."""
    runs, unread = [], []
    for path in sorted(file for file in folder.glob("*/*") if file.is_file()):
        source, name = path.parent.name, path.stem
        try:
            log = read_run_log(str(path))
        except (UserError, OSError):
            unread.append(f"{source}/{name}")
            continue
        last = Analysis(log).trajectory.last_iteration
        if not last:
            unread.append(f"{source}/{name}")
            continue
        planned = planned_end_iteration(log)
        is_given = planned is None or planned < 0.98 * last
        end = last if planned is None or planned < last else planned
        runs.append(Run(source, name, log, end, last, is_given))
    return runs, unread


def cut_log(log: RunLog, last: float) -> RunLog:
    """The log as it was when `last` was its last iteration."""
    keep = log.steps.iteration <= last
    columns: dict[str, Any] = {field.name: getattr(log.steps, field.name) for field in fields(Steps)}
    kept: dict[str, Any] = {name: None if rows is None else rows[keep] for name, rows in columns.items()}
    return replace(
        log,
        steps=Steps(**kept),
        evals=tuple(one for one in log.evals if one.iteration is None or one.iteration <= last),
        checkpoints=tuple(one for one in log.checkpoints if one.iteration is None or one.iteration <= last),
        events=(),
        ended=None,
    )


def cut_run(run: Run, share: float) -> Cut | None:
    """None: the loss at the end, or that at the cut, cannot be told from the log."""
    at = share * run.target
    before = Analysis(cut_log(run.log, at))
    whole = Analysis(run.log).trajectory
    evals_at, evals = whole.val_curve()
    inputs, target = None, run.target
    if len(evals) and evals_at[-1] >= 0.9 * run.target:
        inputs = forecast_inputs(
            before.log, before.trajectory, before.past_best, run.planned, int(evals_at[-1])
        )
    if inputs is not None and inputs.curve.is_validation:
        return Cut(run, share, inputs, float(evals[-1]), float(before.trajectory.val_curve()[1][-1]))
    truth = _smoothed_loss(whole, run.target, run.target)
    carried = _smoothed_loss(before.trajectory, int(at), run.target)
    if len(before.trajectory.val_curve()[1]) >= 5 and inputs is None:
        seen = before.trajectory.val_curve()[1]
        return Cut(run, share, None, float(evals[-1]), float(seen[-1]))
    if truth is None or carried is None:
        return None
    inputs = forecast_inputs(before.log, before.trajectory, before.past_best, run.planned, target)
    if inputs is not None and inputs.curve.is_validation:
        inputs = None  # it ends without an evaluation to compare with
    return Cut(run, share, inputs, truth, carried)


def _smoothed_loss(trajectory: Trajectory, until: int, length: int) -> float | None:
    at, losses = trajectory.finite_losses()
    late = losses[(at > until - SMOOTHED_SHARE * length) & (at <= until)]
    return float(np.median(late)) if len(late) >= MIN_END_LOSSES else None


# --- fitting ---


def fit_law(cuts: Sequence[Cut], start: ForecastLaw = START, rounds: int = 8) -> ForecastLaw:
    """The likeliest constants (errors as Student's t), then the band that holds 80% of the runs."""
    names = [field.name for field in fields(ForecastLaw) if field.name not in _FIXED]
    weights = _run_weights(cuts)
    origin = np.log([getattr(start, name) for name in names])
    curves = [
        (cut.inputs.curve, cut.truth, weight) for cut, weight in zip(cuts, weights, strict=True) if cut.inputs
    ]

    def law_of(values: np.ndarray) -> ForecastLaw:
        constants = dict(zip(names, np.exp(values).tolist(), strict=True))
        constants["unknown_decay"] = min(constants["unknown_decay"], 1.0)
        return replace(start, **constants)

    @cache  # the other constants are of the error, and need no new fit
    def fits_with(**constants: Any) -> list[LossFit | None]:
        law = replace(start, **constants)
        return [fit_loss_curve(curve, law) for curve, _, _ in curves]

    def cost(values: np.ndarray) -> float:
        law, total, total_weight = law_of(values), 0.0, 0.0
        fits = fits_with(**{name: getattr(law, name) for name in _OF_THE_FIT})
        for fit, (curve, truth, weight) in zip(fits, curves, strict=True):
            estimate = None if fit is None else expect_loss_at_end(curve, law, fit)
            if estimate is None:
                continue
            expected, deviation = estimate
            error = (truth - expected) / (deviation + 1e-6)
            tail = (_STUDENT_DEGREES + 1) / 2 * math.log1p(error**2 / _STUDENT_DEGREES)
            # relative to the loss, so that a loss of 0.01 and one of 10 count alike
            total += weight * (math.log((deviation + 1e-6) / (truth + 0.01)) + tail)
            total_weight += weight
        return total / total_weight + _PRIOR_WEIGHT * float(((values - origin) ** 2).sum())

    law = law_of(_pattern_search(cost, origin, rounds))
    for _ in range(2):  # which runs are spoken of depends on the band
        below, above = _band(cuts, weights, law)
        law = replace(law, band_below=below, band_above=above)
    return replace(law, runs=len({(cut.run.source, cut.run.name) for cut in cuts if cut.inputs}))


def _run_weights(cuts: Sequence[Cut]) -> list[float]:
    counts: dict[tuple[str, str], int] = {}
    for cut in cuts:
        key = (cut.run.source, cut.run.name)
        counts[key] = counts.get(key, 0) + (cut.inputs is not None)
    return [1 / max(1, counts[(cut.run.source, cut.run.name)]) for cut in cuts]


def _pattern_search(cost: Callable[[np.ndarray], float], start: np.ndarray, rounds: int) -> np.ndarray:
    """One coordinate at a time, with steps that grow on success and shrink on failure."""
    best, lowest, steps = start.copy(), cost(start), np.full(len(start), 0.4)
    for _ in range(rounds):
        for i in range(len(best)):
            for sign in (1, -1):
                tried = best.copy()
                tried[i] += sign * steps[i]
                if (value := cost(tried)) < lowest - 1e-6:
                    best, lowest = tried, value
                    steps[i] *= 1.3
                    break
            else:
                steps[i] *= 0.5
    return best


def _band(cuts: Sequence[Cut], weights: Sequence[float], law: ForecastLaw) -> tuple[float, float]:
    """How far truths lie below and above, in estimated standard deviations: a tenth of them lies further.
    Conformal: of n runs, the limit is the error of rank 0.9 (n + 1)."""
    errors = []
    for cut, weight in zip(cuts, weights, strict=True):
        if cut.inputs is None or forecast_loss_at_end(cut.inputs.curve, law) is None:
            continue
        expected, deviation = expect_loss_at_end(cut.inputs.curve, law) or (math.nan, math.nan)
        errors.append(((cut.truth - expected) / deviation, weight))
    total = sum(weight for _, weight in errors)

    def limit(sign: int) -> float:
        reached = 0.0
        ordered = sorted((sign * error, weight) for error, weight in errors)
        for error, weight in ordered:
            reached += weight
            if reached >= (1 + COVERAGE) / 2 * (total + 1):
                return max(0.0, error)
        return max(0.0, ordered[-1][0])

    return limit(-1), limit(1)


# --- scoring ---


def score_with(law: ForecastLaw, cuts: Sequence[Cut]) -> tuple[list[Score], list[Cut]]:
    """The forecasts, and the cuts where nothing is said."""
    scores, silent = [], []
    for cut in cuts:
        forecast = forecast_loss_at_end(cut.inputs.curve, law) if cut.inputs else None
        if forecast is None:
            silent.append(cut)
        else:
            scores.append(Score(cut, forecast.expected, forecast.low, forecast.high))
    return scores, silent


def score_folds(
    scored: Sequence[Cut], fit_cuts: Sequence[Cut], folds: int, seed: int
) -> tuple[list[Score], list[Cut]]:
    """No source is scored by constants that were fitted to it."""
    sources = sorted({cut.run.source for cut in (*scored, *fit_cuts)})
    random.Random(seed).shuffle(sources)
    scores, silent = [], []
    for fold in range(folds):
        held_out = set(sources[fold::folds])
        law = fit_law([cut for cut in fit_cuts if cut.run.source not in held_out])
        some, quiet = score_with(law, [cut for cut in scored if cut.run.source in held_out])
        scores += some
        silent += quiet
    return scores, silent


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of a share."""
    if not count:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return middle - half, middle + half


def summarise(scores: Sequence[Score], silent: int) -> dict[str, object]:
    hits = sum(score.is_hit for score in scores)
    low, high = wilson(hits, len(scores))
    return {
        "runs": len(scores) + silent,
        "nothing_said": silent,
        "forecasts": len(scores),
        "hits": hits,
        "coverage": round(hits / len(scores), 3) if scores else None,
        "coverage_interval": [round(low, 3), round(high, 3)],
        "too_low": sum(score.cut.truth > score.high for score in scores),
        "too_high": sum(score.cut.truth < score.low for score in scores),
        "median_half_width": _median([(score.high - score.low) / 2 for score in scores]),
        "median_error": _median([abs(score.cut.truth - score.expected) for score in scores]),
        "median_error_carried": _median([abs(score.cut.truth - score.cut.carried) for score in scores]),
    }


def _median(values: Sequence[float]) -> float | None:
    return round(float(np.median(values)), 4) if values else None


# --- showing ---


def tables(scores: Sequence[Score], silent: Sequence[Cut]) -> str:
    """Markdown: totals by kind, then one row per run."""
    groups: dict[str, tuple[list[Score], list[Cut]]] = {"all": (list(scores), list(silent))}
    for prefix, key in (("", _metric), ("trainer: ", _trainer), ("schedule: ", _schedule), ("", _end_known)):
        for value in sorted({key(cut) for cut in (*[score.cut for score in scores], *silent)}):
            groups[prefix + value] = (
                [score for score in scores if key(score.cut) == value],
                [cut for cut in silent if key(cut) == value],
            )
    lines = [
        "| runs | cut | nothing said | in the 80% band | interval | median half-width | median error |"
        " of the last value carried on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (some, quiet) in groups.items():
        total = summarise(some, len(quiet))
        low, high = wilson(sum(score.is_hit for score in some), len(some))
        share = f"{total['hits']} of {len(some)}, {total['coverage']:.0%}" if some else "-"
        interval = f"{low:.0%} to {high:.0%}" if some else "-"
        cells = [name, total["runs"], len(quiet), share, interval]
        cells += [
            "-" if total[key] is None else total[key]
            for key in ("median_half_width", "median_error", "median_error_carried")
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "| run | trainer | loss | schedule | cut at | last value | forecast | band | truth | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for score in sorted(scores, key=lambda one: (one.cut.run.source.lower(), one.cut.run.name)):
        cut = score.cut
        lines.append(
            f"| {_label(cut)} | {_trainer(cut)} | {_metric(cut)} | {_schedule(cut)} | {cut.share:.0%} "
            f"| {cut.carried:.4g} | {score.expected:.4g} | {score.low:.4g} to {score.high:.4g} "
            f"| {cut.truth:.4g} | {'in' if score.is_hit else '**out**'} |"
        )
    quiet_names = sorted(_label(cut) for cut in silent)
    lines += ["", f"Nothing was said of {len(silent)}: {', '.join(quiet_names)}."]
    return "\n".join(lines)


def _label(cut: Cut) -> str:
    return f"{cut.run.source.replace('+', '/')}: {cut.run.name}"


def _metric(cut: Cut) -> str:
    is_validation = cut.inputs.curve.is_validation if cut.inputs else bool(cut.run.log.evals)
    return "validation" if is_validation else "training"


def _trainer(cut: Cut) -> str:
    return cut.run.log.trainer.id


def _schedule(cut: Cut) -> str:
    return cut.inputs.course.shape if cut.inputs else "not asked for"


def _end_known(cut: Cut) -> str:
    return "end not in the log, given" if cut.run.is_end_given else "end in the log"


def write_into(page: Path, text: str) -> None:
    """Replace the section of the page that holds the tables."""
    heading = "## The runs\n"
    before, rest = page.read_text("utf-8").split(heading)
    after = rest[rest.index("\n## ") :]
    page.write_text(f"{before}{heading}\n{text}\n{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--as-is", action="store_true", help="fit nothing: logs that the constants never saw")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)

    runs, unread = read_runs(options.folder)
    scored, by_source = [], dict.fromkeys({run.source for run in runs}, 0)
    for run in runs:
        share = random.Random(f"{options.seed}:{run.source}/{run.name}").uniform(*CUT_SHARES)
        cut = cut_run(run, share)
        if cut is not None and by_source[run.source] < MAX_SCORED_PER_SOURCE:
            by_source[run.source] += 1
            scored.append(cut)
    law = LAW
    if options.as_is:
        scores, silent = score_with(law, scored)
    else:
        fit_cuts = [cut for run in runs for share in FIT_SHARES if (cut := cut_run(run, share))]
        scores, silent = score_folds(scored, fit_cuts, options.folds, options.seed)
        law = fit_law(fit_cuts)
    text = tables(scores, silent)
    print(text)
    if unread:
        print(f"\nNot used: {', '.join(unread)}")
    print(f"\n{law}")
    if options.page:
        write_into(options.page, text)
    print(json.dumps({**summarise(scores, len(silent)), "sources": len(by_source), "law": asdict(law)}))


if __name__ == "__main__":
    main()
