"""Updates that were skipped, because a gradient overflowed."""

from __future__ import annotations

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_integer, format_percent
from glassgpt.i18n import say
from glassgpt.runs.run_log import RunLog

# Of the updates: the scaler tries a larger scale every 2000, and fails a few times at first.
MAX_USUAL_SKIP_SHARE = 1 / 500
MAX_USUAL_SKIPS = 5  # however short the run


def skipped_steps(case: RunAnalysis) -> Finding | None:
    """Updates that float16's loss scaler left out, because a gradient overflowed."""
    history = case.log
    told = history.event_counts.get("scaler-overflow", 0)
    unbounded = _count_nonfinite_norms(history)
    skipped = max(told, unbounded)
    if not skipped:
        return None
    logged = max(1, len(history.steps))
    share = skipped / max(logged, skipped)
    evidence = say(
        "{skipped} skipped updates among {logged} logged iterations ({share}).",
        skipped=format_integer(skipped),
        logged=format_integer(logged),
        share=format_percent(share),
    )
    usual = skipped <= MAX_USUAL_SKIPS or share <= MAX_USUAL_SKIP_SHARE
    return Finding(
        "skipped-steps",
        "info" if usual else "warning",
        say("Updates were skipped because gradients overflowed"),
        evidence,
        say(
            "float16 ends at 65504. The loss is multiplied by a scale so that small gradients survive; when "
            "one overflows, the update is skipped and the scale halved. A few at the start are normal."
        ),
        ""
        if usual
        else say(
            "dtype=bfloat16 (on cards from 2020 on) needs no scaler and gives {share} of the iterations "
            "back; else a lower learning rate or gradients clipped at 1.",
            share=format_percent(share),
        ),
    )


def _count_nonfinite_norms(history: RunLog) -> int:
    """Iterations with a finite loss and a gradient norm that is not. NaN also means that a line did not say
    it, so it counts only where nearly every line does."""
    steps = history.steps
    if not len(steps):
        return 0
    healthy = steps.has_loss & np.isfinite(steps.loss)
    said = np.isfinite(steps.grad_norm)
    infinite = int((np.isinf(steps.grad_norm) & healthy).sum())
    missing = int((np.isnan(steps.grad_norm) & healthy).sum())
    float16 = history.setup.settings.get("dtype") == "float16"
    return infinite + (missing if float16 and said.mean() > 0.9 else 0)
