"""What a run will bring: passes over the text, checkpoints, and the loss to expect."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glassgpt import schedule
from glassgpt.config import TrainConfig, first_checkpoint_iter
from glassgpt.estimate import memory
from glassgpt.estimate.loss_law import ExpectedLossCurve, loss_law_inputs, predict_loss_curve
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.run_spec import RunSpec


@dataclass(frozen=True)
class TrainingEstimate:
    """Iterations count updates; losses are of validation text, in nats a token, as (low, mid, high)."""

    epochs: float
    tokens_per_parameter: float
    first_checkpoint: int
    checkpoint_bytes: int
    disk_bytes: int
    schedule: str
    loss: tuple[float, float, float] | None  # at the end; None: nothing is known
    loss_reason: str
    course: tuple[tuple[int, float, float, float], ...]  # on the way there
    overfits_at: int | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate_training(decided: RunSpec, text: DatasetInfo) -> TrainingEstimate:
    config = decided.config
    saved = memory.checkpoint_bytes(decided.workload)
    about = {
        "epochs": decided.total_tokens / text.train_tokens,
        "tokens_per_parameter": decided.total_tokens / decided.parameters,
        "first_checkpoint": first_checkpoint_iter(config),
        "checkpoint_bytes": saved,
        "disk_bytes": saved * (config.keep_checkpoints + 2),  # the latest, the best, the one being written
        "schedule": schedule.describe_schedule(config),
    }
    if config.init_from != "scratch":
        unknown = "unknown: it begins with weights that learned before"
        return TrainingEstimate(**about, loss=None, loss_reason=unknown, course=(), overfits_at=None)  # type: ignore[arg-type]
    ahead = expected_loss_curve(config, decided.workload.vocab_size, decided.batch.tokens, text)
    return TrainingEstimate(
        **about,  # type: ignore[arg-type]
        loss=(ahead.final.low, ahead.final.mid, ahead.final.high),
        loss_reason="; ".join(ahead.basis),
        course=tuple((point.iteration, point.low, point.mid, point.high) for point in _some(ahead)),
        overfits_at=ahead.overfits_at,
    )


def expected_loss_curve(
    config: TrainConfig, vocab_size: int, batch_tokens: int, text: DatasetInfo
) -> ExpectedLossCurve:
    setup = loss_law_inputs(
        config,
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        train_tokens=text.train_tokens,
        dataset=text.name,
        tokenizer=text.tokenizer,
        bytes_per_token=text.bytes_per_token,
    )
    return predict_loss_curve(setup)


_MAX_POINTS_SHOWN = 8


def _some(ahead: ExpectedLossCurve) -> list[Any]:
    """Of the points where people look, a few, and always the last."""
    points = list(ahead.points)
    step = -(-len(points) // _MAX_POINTS_SHOWN)
    return points[::-step][::-1] if points else []
