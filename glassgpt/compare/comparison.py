"""`glass compare A B`: everything that was found out about runs side by side.

    comparison = compare([(history_a, facts_a), (history_b, facts_b)])
    comparison.as_dict()        # the JSON

A NaN in it becomes a word where it is printed, by journal.plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt import format
from glassgpt.compare.alignment import (
    Alignment,
    InterpolatedLoss,
    LowestCommonLoss,
    align_all,
    find_lowest_common_loss,
)
from glassgpt.compare.claim import Claim
from glassgpt.compare.comparable import Comparability, bits_per_byte, check_comparability, perplexity
from glassgpt.compare.compared_run import ComparedRun, LossKind, make_compared_runs
from glassgpt.compare.differences import Difference, find_differences
from glassgpt.compare.loss_curve import AXES, Axis
from glassgpt.compare.quality import compare_losses
from glassgpt.compare.speed_difference import compare_speed
from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card
from glassgpt.i18n import say
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import Ints, RunLog


@dataclass(frozen=True)
class Comparison:
    runs: tuple[ComparedRun, ...]
    loss_kind: LossKind  # what the losses are
    differences: tuple[Difference, ...]
    comparability: tuple[Comparability, ...]  # of each run but the first, with the first
    aligned: dict[Axis, Alignment]
    common_loss: LowestCommonLoss | None
    verdict: tuple[Claim, ...]

    @property
    def losses_are_comparable(self) -> bool:
        return all(one.level in ("same", "assumed") for one in self.comparability)

    def as_dict(self) -> dict[str, object]:
        return {
            "runs": [_run(side) for side in self.runs],
            "differences": [_difference(one) for one in self.differences],
            "derived": _derived_json(self.runs),
            "losses": _losses_json(self),
            "verdict": [conclusion.as_dict() for conclusion in self.verdict],
        }


def compare(runs: Sequence[tuple[RunLog, Facts]], card: Card | None = None) -> Comparison:
    """`card`: what MFU is measured against, for all of them."""
    if len(runs) < 2:
        raise UserError("glass compare needs at least two runs or logs: glass compare A B")
    with np.errstate(all="ignore"):  # logs say times and losses of 1e308; what overflows is left out
        return _build_comparison(*make_compared_runs(runs, card))


def _build_comparison(sides: Sequence[ComparedRun], measure: LossKind) -> Comparison:
    first, *others = sides
    comparability = [check_comparability(first, other) for other in others]
    verdict = [
        one for side in sides for one in (_several_runs(side), _nonfinite_claim(side)) if one is not None
    ]
    for other, how in zip(others, comparability, strict=True):
        pair = find_differences([first.log, other.log])
        verdict += compare_speed(first, other, pair)
        verdict += compare_losses(first, other, pair, how, measure)
    return Comparison(
        runs=tuple(sides),
        loss_kind=measure,
        differences=find_differences([side.log for side in sides]),
        comparability=tuple(comparability),
        aligned=_aligned(sides, comparability),
        common_loss=_reached(sides, comparability),
        # What concerns the first run alone is found once for each pair.
        verdict=tuple(dict.fromkeys(verdict)),
    )


def _several_runs(side: ComparedRun) -> Claim | None:
    if side.runs_in_log < 2:
        return None
    claim = say(
        "The log of {run} holds {runs} runs; {run} is the last of them.",
        run=side.label,
        runs=side.runs_in_log,
    )
    return Claim("several-runs", (side.label,), claim)


def _nonfinite_claim(side: ComparedRun) -> Claim | None:
    """Of the losses that led to the last weights, those that are no numbers."""
    course, steps = side.trajectory, side.log.steps
    said = np.flatnonzero(steps.has_loss[course.rows])
    bad = said[~np.isfinite(course.loss[said])]
    if not len(bad) or not side.log.numbered:
        return None
    if bad[-1] == said[-1]:
        claim = say(
            "The loss of {run} is not a number from iteration {at} on; only what came before counts.",
            run=side.label,
            at=format.format_integer(int(course.iteration[bad[_last_stretch(said, bad)]])),
        )
    else:
        claim = say(
            "The loss of {run} was not a number at iteration {at}; it recovered, and finite losses count.",
            run=side.label,
            at=format.format_integer(int(course.iteration[bad[0]])),
        )
    return Claim("not-finite", (side.label,), claim)


def _last_stretch(said: Ints, bad: Ints) -> int:
    """Where in `bad` the stretch begins that nothing finite interrupts."""
    place = np.searchsorted(said, bad)
    breaks = np.flatnonzero(np.diff(place) > 1)
    return int(breaks[-1]) + 1 if len(breaks) else 0


def _aligned(sides: Sequence[ComparedRun], comparability: Sequence[Comparability]) -> dict[Axis, Alignment]:
    if any(one.level in ("refused", "bytes") for one in comparability):
        reason = say("the losses do not compare")
        return {axis: Alignment(axis, (), reason) for axis in AXES}
    return align_all([side.curve for side in sides])


def _reached(sides: Sequence[ComparedRun], comparability: Sequence[Comparability]) -> LowestCommonLoss | None:
    if any(one.level in ("refused", "bytes") for one in comparability):
        return None
    return find_lowest_common_loss([side.curve for side in sides])


# --- JSON ---


def _run(side: ComparedRun) -> dict[str, object]:
    history = side.log
    return {
        "label": side.label,
        "name": history.name,
        "format": history.trainer.id,
        "device": history.setup.device_name or history.setup.settings.get("device"),
        "facts": side.facts.as_dict(),
        "noise": None if side.noise is None else {"value": side.noise.std, "source": side.noise.source},
    }


def _difference(one: Difference) -> dict[str, object]:
    return {
        "group": one.group,
        "name": one.name,
        "values": list(one.values),
        "decides": one.affects,
        "known": one.is_known,
    }


def _derived_json(sides: Sequence[ComparedRun]) -> dict[str, object]:
    """Each quantity as a list, one value per run."""
    all_derived = [side.metrics for side in sides]
    sizes = [derived.size for derived in all_derived]
    names = ("tokens_per_iteration", "iterations", "tokens_seen", "total_flops", "steady_ms", "tokens_per_s",
             "achieved_tflops", "mfu", "overhead_share", "time_s")  # fmt: skip
    table: dict[str, object] = {
        name: [getattr(size, name) for size in sizes]
        for name in (
            "parameters",
            "parameters_source",
            "parameters_stated",
            "flops_per_token",
            "flops_source",
        )
    }
    table |= {name: [getattr(derived, name) for derived in all_derived] for name in names}
    table["mfu_peak_tflops"] = [one.peak.flops / 1e12 if one.peak else None for one in all_derived]
    table["mfu_peak_source"] = [one.peak.source if one.peak else None for one in all_derived]
    return table


def _losses_json(comparison: Comparison) -> dict[str, object]:
    sides = comparison.runs
    document: dict[str, object] = {
        "measure": comparison.loss_kind,
        "comparable": [{"how": one.level, "reasons": list(one.reasons)} for one in comparison.comparability],
    }
    for axis in AXES:
        alignment = comparison.aligned[axis]
        document[f"equal_{axis}"] = {
            "points": [
                {"at": point.at, "losses": [_reading(reading) for reading in point.losses]}
                for point in alignment.points
            ],
            "reason": alignment.reason or None,
        }
    bests = [side.best for side in sides]
    document["best"] = {
        "losses": [best[0] if best else None for best in bests],
        "iterations": [best[1] if best else None for best in bests],
        "perplexity": [
            perplexity(side, best[0]) if best else None for side, best in zip(sides, bests, strict=True)
        ],
        "bits_per_byte": [
            bits_per_byte(side, best[0]) if best else None for side, best in zip(sides, bests, strict=True)
        ],
    }
    common = comparison.common_loss
    if common is not None:
        at = {axis: list(places) for axis, places in common.at.items()}
        document["reached"] = {"loss": common.loss, "at": at}
    else:
        document["reached"] = None
    return document


def _reading(reading: InterpolatedLoss | None) -> dict[str, object] | None:
    if reading is None:
        return None
    return {
        "loss": reading.loss,
        "interpolated": not reading.is_exact,
        "between": [reading.low, reading.high],
    }
