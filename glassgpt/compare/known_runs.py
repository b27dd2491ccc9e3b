"""Recognises nanoGPT's README runs in a tail or a note, by their losses.

The two logs that come with the package, demo:cpu and demo:gpu, are these runs, measured. Many questions about
nanoGPT show the end of one of them. Where the losses of the last evaluation fit, all else follows from the
measured log: the model, the batch, and what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from glassgpt.compare.compared_run import Claim, ComparedRun
from glassgpt.format import format_parameters
from glassgpt.i18n import Message, say
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import DEMO_LOGS, read_run_log
from glassgpt.runs.trajectory import positive_int_setting

_MAX_LOSS_GAP = 0.02  # of both losses: rounding to two decimals, evaluation noise, and another seed


@cache
def _measured(name: str) -> Analysis:
    return Analysis(read_run_log(name))


def known_run(run: ComparedRun) -> str | None:
    """The demo log whose losses the run's last evaluation has; None for a run whose own log says enough."""
    evals = run.analysis.trajectory.evals
    if run.is_whole or not evals or evals[-1].train_loss is None or evals[-1].val_loss is None:
        return None
    for name in DEMO_LOGS:
        end = _measured(name).trajectory.evals[-1]
        if end.iteration != evals[-1].iteration:
            continue
        gaps = (
            abs((end.train_loss or 0.0) - evals[-1].train_loss),
            abs((end.val_loss or 0.0) - evals[-1].val_loss),
        )
        if max(gaps) <= _MAX_LOSS_GAP:
            return name
    return None


def known_run_claims(runs: Sequence[ComparedRun]) -> list[Claim]:
    """What the measured logs say about runs that fit them."""
    known = {run.label: name for run in runs if (name := known_run(run))}
    if not known:
        return []
    details: list[Message] = []
    for label, name in known.items():
        measured = _measured(name)
        details.append(
            say(
                "compare.known-runs.reason.measured",
                run=label,
                name=name,
                parameters=format_parameters(measured.size.parameters or 0),
                context=positive_int_setting(measured.log, "block_size") or 0,
                batch=measured.tokens_per_iteration or 0,
                tokens=measured.tokens_seen or 0,
            )
        )
        if past := measured.past_best:
            details.append(
                say(
                    "compare.known-runs.reason.best",
                    run=label,
                    best=past.best_loss,
                    at=past.best_iteration,
                    last=past.end_loss,
                )
            )
    if len(set(known.values())) > 1:
        details.append(say("compare.known-runs.reason.compare", names=" ".join(known.values())))
    sentence = say("compare.known-runs", runs=", ".join(known))
    return [Claim("known-runs", tuple(known), sentence, tuple(details))]
