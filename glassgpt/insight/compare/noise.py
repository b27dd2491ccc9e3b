"""By how much a loss would differ if only other tokens had been evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.insight.compare.derived import positive
from glassgpt.insight.compare.progress import Progress
from glassgpt.insight.curve import scatter
from glassgpt.insight.history import History

NoiseSource = Literal["stderr", "tokens", "scatter"]


@dataclass(frozen=True)
class Noise:
    """About one standard deviation of one evaluation. Other seeds add theirs, which one run cannot show."""

    value: float
    source: NoiseSource
    tokens: int | None = None


def validation_noise(history: History, progress: Progress) -> Noise | None:
    if not len(progress):
        return None
    errors = [done.stderr for done in history.evals if done.stderr is not None and math.isfinite(done.stderr)]
    if errors:
        return Noise(float(np.median(errors)), "stderr")
    tokens = evaluated_tokens(history)
    if tokens:
        # The losses of single tokens vary about as much as they are large.
        return Noise(float(progress.losses.min()) / math.sqrt(tokens), "tokens", tokens)
    return repeated_noise(progress)


def same_tokens(histories: Sequence[History]) -> bool:
    """Whether all evaluate the very same tokens every time, as GlassGPT does. Then what is special about
    these is in all of the losses, and their differences are surer than each loss by itself."""
    hashes = {history.setup.data.get("hash") for history in histories}
    evaluated = {evaluated_tokens(history) for history in histories}
    ours = all(history.format.name == "glassgpt" for history in histories)
    return ours and len(hashes) == 1 and None not in hashes and len(evaluated) == 1 and None not in evaluated


def repeated_noise(progress: Progress) -> Noise | None:
    """Of losses on the same tokens: how they scatter from one evaluation to the next."""
    later = scatter(progress.losses[len(progress) // 3 :])
    return Noise(later, "scatter") if later else None


def training_noise(progress: Progress) -> Noise | None:
    return None if progress.scatter is None else Noise(progress.scatter, "scatter")


def evaluated_tokens(history: History) -> int | None:
    """Per evaluation and split, as the log says or as eval_iters x batch_size x block_size."""
    said = [done.tokens for done in history.evals if done.tokens]
    if said:
        return int(np.median(said))
    total = positive(history, "eval_tokens")
    if total:
        return total
    sides = [positive(history, name) for name in ("eval_iters", "batch_size", "block_size")]
    known = [side for side in sides if side]
    return math.prod(known) if len(known) == 3 else None


def together(left: Noise | None, right: Noise | None) -> float | None:
    """Of the difference of two losses."""
    if left is None or right is None:
        return None
    return math.hypot(left.value, right.value)
