"""`glass compare A B`: runs side by side.

comparison = compare([log_a, log_b])
comparison.verdict          # claims: which is faster, which is better, why
comparison.as_dict()        # the JSON document; journal.nonfinite_to_words makes it strict
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.compare.compared_run import Claim, ComparedRun, make_compared_runs
from glassgpt.compare.differences import (
    Comparability,
    Difference,
    bits_per_byte,
    check_comparability,
    find_differences,
    run_perplexity,
)
from glassgpt.compare.known_runs import known_run_claims
from glassgpt.compare.loss_curve import (
    AXES,
    Alignment,
    Axis,
    LossKind,
    LowestCommonLoss,
    align_all,
    find_lowest_common_loss,
)
from glassgpt.compare.loss_verdict import compare_losses
from glassgpt.compare.speed_verdict import compare_speed
from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card
from glassgpt.i18n import say, translate
from glassgpt.runs.note_words import GPT2_VOCAB_SIZE
from glassgpt.runs.run_log import RunLog

SCHEMA_VERSION = 1  # of the JSON document; new keys do not raise it


@dataclass(frozen=True)
class Comparison:
    runs: tuple[ComparedRun, ...]
    loss_kind: LossKind
    differences: tuple[Difference, ...]
    comparability: tuple[Comparability, ...]  # of each run but the first, with the first
    aligned: dict[Axis, Alignment]
    common_loss: LowestCommonLoss | None
    verdict: tuple[Claim, ...]

    @property
    def losses_are_comparable(self) -> bool:
        return all(pair.level in ("same", "assumed") for pair in self.comparability)

    def as_dict(self) -> dict[str, object]:
        return {
            "schema_version": SCHEMA_VERSION,
            "runs": [
                {
                    "label": run.label,
                    "name": run.log.name,
                    "format": run.log.trainer.id,
                    "device": run.log.setup.device_name or run.log.setup.settings.get("device"),
                    "facts": run.analysis.facts.as_dict(),
                    "noise": run.noise and {"value": run.noise.std, "source": run.noise.source},
                }
                for run in self.runs
            ],
            "differences": [
                {
                    "group": difference.group,
                    "name": difference.name,
                    "values": list(difference.values),
                    "decides": difference.affects,
                    "known": difference.is_known,
                }
                for difference in self.differences
            ],
            "derived": _metrics_json(self.runs),
            "losses": _losses_json(self),
            "verdict": [claim.as_dict() for claim in self.verdict],
        }


def compare(runs: Sequence[RunLog], card: Card | None = None) -> Comparison:
    """Each run with the first one. `card`: MFU of all runs is measured against its peak."""
    if len(runs) < 2:
        raise UserError("glass compare needs at least two runs or logs: glass compare A B")
    compared, loss_kind = make_compared_runs(runs, card)
    first, *others = compared
    verdict = []
    for run in compared:
        if run.runs_in_log > 1:
            sentence = say("compare.several-runs", run=run.label, runs=run.runs_in_log)
            verdict.append(Claim("several-runs", (run.label,), sentence))
        if left_out := run.log.left_out.lines:
            sentence = say(
                "compare.thinned-log",
                run=run.label,
                rows=run.analysis.facts.iterations_logged - left_out,
                lines=run.analysis.facts.iterations_logged,
            )
            verdict.append(Claim("thinned-log", (run.label,), sentence))
        verdict += [*_nonfinite_claims(run), *_exploded_claims(run)]
    verdict += known_run_claims(compared)
    comparability = [check_comparability(first, other) for other in others]
    for other, level in zip(others, comparability, strict=True):
        pair_differences = find_differences([first.log, other.log])
        verdict += compare_speed(first, other, pair_differences)
        verdict += compare_losses(first, other, pair_differences, level, loss_kind)
    verdict += _perplexity_claims(compared)
    curves = [run.curve for run in compared]
    if any(pair.level in ("refused", "bytes") for pair in comparability):
        aligned = {axis: Alignment(axis, (), translate("compare.alignment.not_comparable")) for axis in AXES}
        common_loss = None
    else:
        aligned = align_all(curves, [run.batches for run in compared], loss_kind)
        common_loss = find_lowest_common_loss(curves)
    return Comparison(
        runs=tuple(compared),
        loss_kind=loss_kind,
        differences=find_differences([run.log for run in compared]),
        comparability=tuple(comparability),
        aligned=aligned,
        common_loss=common_loss,
        verdict=tuple(dict.fromkeys(verdict)),  # each pair repeats the claims about the first run alone
    )


def _perplexity_claims(runs: Sequence[ComparedRun]) -> list[Claim]:
    """A "loss" in a text that can only be a perplexity. The event is of the text, not of one run."""
    events = {event for run in runs for event in run.log.events if event.kind == "perplexity-as-loss"}
    return [
        Claim(
            "perplexity-not-loss",
            (),
            say(
                "compare.perplexity-not-loss",
                stated=event.text,
                line=event.line,
                loss=math.log(float(event.text)),
                guess=math.log(GPT2_VOCAB_SIZE),
            ),
        )
        for event in sorted(events, key=lambda event: event.line)
    ]


def _nonfinite_claims(run: ComparedRun) -> list[Claim]:
    """Losses of the final trajectory that are NaN or infinite."""
    trajectory = run.analysis.trajectory
    with_loss = np.flatnonzero(run.log.steps.has_loss[trajectory.rows])
    is_bad = ~np.isfinite(trajectory.loss[with_loss])
    bad = with_loss[is_bad]
    if not len(bad) or not run.log.has_iteration_numbers or not run.log.loss_measures_learning:
        return []  # in reinforcement learning a trajectory has no losses
    if is_bad[-1]:
        finite = np.flatnonzero(~is_bad)
        start = with_loss[finite[-1] + 1] if len(finite) else bad[0]
        sentence = say("compare.not-finite.to_the_end", run=run.label, at=int(trajectory.iteration[start]))
    else:
        sentence = say("compare.not-finite.recovered", run=run.label, at=int(trajectory.iteration[bad[0]]))
    return [Claim("not-finite", (run.label,), sentence)]


def _exploded_claims(run: ComparedRun) -> list[Claim]:
    """A training loss that exploded for good: nothing after it is worth comparing."""
    explosions = run.analysis.explosions
    if not explosions or explosions[-1].recovered_iteration is not None or not run.log.has_iteration_numbers:
        return []
    sentence = say("compare.exploded", run=run.label, at=explosions[-1].iteration)
    return [Claim("exploded", (run.label,), sentence)]


# --- JSON ---


def _metrics_json(runs: Sequence[ComparedRun]) -> dict[str, object]:
    """Each quantity as a list, one value per run."""
    size_names = ("parameters", "parameters_source", "parameters_stated", "flops_per_token", "flops_source")
    names = ("tokens_per_iteration", "tokens_seen", "total_flops", "steady_ms", "tokens_per_s",
             "achieved_tflops", "overhead_share")  # fmt: skip
    table: dict[str, object] = {
        name: [getattr(run.analysis.size, name) for run in runs] for name in size_names
    }
    table |= {name: [getattr(run.analysis, name) for run in runs] for name in names}
    table["iterations"] = [run.analysis.facts.last_iteration for run in runs]
    table["time_s"] = [run.analysis.total_s for run in runs]
    table["mfu"] = [run.mfu for run in runs]
    peaks = [run.peak for run in runs]
    table["mfu_peak_tflops"] = [peak.flops / 1e12 if peak else None for peak in peaks]
    table["mfu_peak_source"] = [peak.source if peak else None for peak in peaks]
    return table


def _losses_json(comparison: Comparison) -> dict[str, object]:
    document: dict[str, object] = {
        "measure": comparison.loss_kind,
        "comparable": [
            {"how": pair.level, "reasons": [str(reason) for reason in pair.reasons]}
            for pair in comparison.comparability
        ],
    }
    for axis in AXES:
        alignment = comparison.aligned[axis]
        points = [
            {
                "at": point.at,
                "losses": [
                    loss
                    and {
                        "loss": loss.loss,
                        "at": loss.at,
                        "noise": loss.std,
                        "interpolated": False,
                        "between": [loss.loss, loss.loss],
                    }
                    for loss in point.losses
                ],
            }
            for point in alignment.points
        ]
        document[f"equal_{axis}"] = {
            "measure": alignment.kind,
            "points": points,
            "reason": alignment.reason or None,
        }
    bests = [(run, run.best) for run in comparison.runs]
    document["best"] = {
        "losses": [best[0] if best else None for _, best in bests],
        "iterations": [best[1] if best else None for _, best in bests],
        "perplexity": [run_perplexity(run, best[0]) if best else None for run, best in bests],
        "bits_per_byte": [bits_per_byte(run, best[0]) if best else None for run, best in bests],
    }
    common = comparison.common_loss
    document["reached"] = common and {
        "loss": common.loss,
        "at": {axis: list(positions) for axis, positions in common.at.items()},
    }
    return document
