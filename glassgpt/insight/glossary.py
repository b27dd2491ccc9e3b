"""What each piece of a trainer's line means, with this log's own values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.insight.facts import Facts
from glassgpt.insight.history import History
from glassgpt.words import say


@dataclass(frozen=True)
class Entry:
    piece: str  # as in the log
    meaning: str


def glossary(history: History, facts: Facts) -> list[Entry]:
    """In the order of a line. Only what this log has."""
    last = _Last(history)
    entries = {
        "nanogpt": _nanogpt,
        "build-nanogpt": _build_nanogpt,
        "llm.c": _llmc,
        "nanochat": _nanochat,
        "modded-nanogpt": _modded,
        "litgpt": _litgpt,
        "hf-trainer": _huggingface,
        "glassgpt": _glassgpt,
    }.get(history.format.name, _unknown)(last, history, facts)
    return [entry for entry in entries if entry.piece]


class _Last:
    """The last line of the log, piece by piece; "" for what it does not say."""

    def __init__(self, history: History) -> None:
        self._steps = history.steps

    def shown(self, name: str, template: str) -> str:
        values = getattr(self._steps, name)
        if name == "loss":
            values = values[self._steps.has_loss]
        elif name != "iteration":
            values = values[np.isfinite(values)]
        return template.format(values[-1]) if len(values) else ""


def _evaluation(history: History, template: str) -> str:
    told = [done for done in history.evals if done.val_loss is not None]
    if not told:
        return ""
    done = told[-1]
    train = "…" if done.train_loss is None else f"{done.train_loss:.4f}"
    step = "…" if done.iteration is None else done.iteration
    return template.format(step=step, train=train, val=f"{done.val_loss:.4f}")


def _one_loss() -> str:
    return say(
        "The cross-entropy of this one batch, in nats per token: the mean of -ln(probability of the right "
        "next token). It jumps from batch to batch; only its trend means something."
    )


def _learning_rate() -> str:
    return say("The learning rate of this update: how far the optimizer goes.")


def _gradient_norm() -> str:
    return say(
        "The length of the gradient before it was clipped. Sudden jumps go before a loss that explodes."
    )


def _tokens_per_second() -> str:
    return say(
        "Tokens of an iteration divided by its time. This, not MFU, says how soon the data is through."
    )


def _nanogpt(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(
            _evaluation(history, "step {step}: train loss {train}, val loss {val}"),
            say(
                "An evaluation, of the weights before this iteration's update: the mean loss over "
                "eval_iters random batches of each split, without dropout. That is why its training loss "
                "can be below that of the batches around it."
            ),
        ),
        Entry(
            "saving checkpoint to …" if history.saves else "",
            say("ckpt.pt is written over the last one, inside the time of this iteration."),
        ),
        Entry(last.shown("iteration", "iter {}"), say("The number of this update, from 0.")),
        Entry(last.shown("loss", "loss {:.4f}"), _one_loss()),
        Entry(
            last.shown("ms", "time {:.2f}ms"),
            say(
                "From the end of the iteration before to the end of this one. An evaluation or a save in "
                "it is in this time too; a steady iteration takes {steady} here.",
                steady=f"{facts.steady_ms:.2f} ms" if facts.steady_ms is not None else "?",
            ),
        ),
        Entry(
            last.shown("mfu", "mfu {:.2f}%"),
            say(
                "Model FLOPs utilization: the arithmetic that the model needs, divided by what an A100 "
                "could do in that time (312 TFLOP/s), whatever the card is; and it is a running average, "
                "0.9 of the last value and 0.1 of this iteration. -100% means that it is not known yet."
            ),
        ),
        Entry(last.shown("lr", "lr {:.3g}"), _learning_rate()),
    ]


def _build_nanogpt(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(
            _evaluation(history, "validation loss: {val}"),
            say(
                "The mean loss over 20 validation batches, before the step whose line comes next, inside "
                "its time."
            ),
        ),
        Entry(last.shown("iteration", "step {}"), say("The number of this update, from 0.")),
        Entry(
            last.shown("loss", "loss: {:.6f}"),
            say("The mean loss over all micro-batches and ranks of this update."),
        ),
        Entry(last.shown("lr", "lr {:.4e}"), _learning_rate()),
        Entry(last.shown("grad_norm", "norm: {:.4f}"), _gradient_norm()),
        Entry(
            last.shown("ms", "dt: {:.2f}ms"),
            say(
                "The whole turn of the loop: evaluation, HellaSwag, samples and checkpoint are in it where "
                "they are made."
            ),
        ),
        Entry(last.shown("tokens_per_s", "tok/sec: {:.2f}"), _tokens_per_second()),
    ]


def _llmc(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(
            _evaluation(history, "val loss {val}"),
            say(
                "The mean loss over val_max_steps validation batches, after the step whose line came before."
            ),
        ),
        Entry(last.shown("iteration", "step {}"), say("The number of this update, from 1.")),
        Entry(
            last.shown("loss", "loss {:.6f} (+z)"),
            say(
                "The mean loss of this update. z: how many standard deviations it is above the mean of the "
                "last 128."
            ),
        ),
        Entry(last.shown("grad_norm", "norm {:.4f} (+z)"), _gradient_norm()),
        Entry(last.shown("lr", "lr {:.2e}"), _learning_rate()),
        Entry(
            last.shown("ms", "{:.2f} ms"),
            say("This update alone, measured on the GPU; evaluation and checkpoints are outside."),
        ),
        Entry(
            last.shown("mfu", "{:.1f}% MFU"),
            say("Model FLOPs utilization against the peak of this card, from llm.c's own table."),
        ),
        Entry(last.shown("tokens_per_s", "{:.0f} tok/s"), say("Tokens per second, a running average.")),
    ]


def _nanochat(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(
            _evaluation(history, "Step {step} | Validation bpb: {val}"),
            say(
                "Bits per byte of validation text: a loss that does not depend on the tokenizer. Lower is "
                "better."
            ),
        ),
        Entry(last.shown("iteration", "step {}"), say("The number of this update, from 0.")),
        Entry(
            last.shown("loss", "loss: {:.6f}"),
            say("A running average of the training loss: 0.9 of the last value, 0.1 of this batch."),
        ),
        Entry("lrm: …", say("What all learning rates are multiplied by now; not a learning rate itself.")),
        Entry(
            last.shown("ms", "dt: {:.2f}ms"),
            say("This update alone; evaluation and checkpoints are outside."),
        ),
        Entry(last.shown("tokens_per_s", "tok/sec: {:,.0f}"), _tokens_per_second()),
        Entry(
            last.shown("mfu", "mfu: {:.2f}"),
            say("Model FLOPs utilization in percent of the bf16 peak of the cards."),
        ),
        Entry(
            "total time: …",
            say("The time of the updates so far, without the first ten and without evaluations."),
        ),
    ]


def _modded(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(last.shown("iteration", "step:{}"), say("Updates done so far.")),
        Entry(
            _evaluation(history, "val_loss:{val}"),
            say("The loss on the fixed validation tokens. The clock stands still meanwhile."),
        ),
        Entry(
            "train_time:…ms",
            say("The sum of all update times so far; the difference of two lines is one update."),
        ),
        Entry(
            "step_avg:…ms",
            say("That sum divided by the updates: a mean over the whole run, not this step's time."),
        ),
    ]


def _litgpt(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(
            last.shown("iteration", "iter {}"), say("The number of this micro-batch, from 1; not an update.")
        ),
        Entry(
            "step …", say("Updates of the weights so far; one every gradient_accumulation_iters iterations.")
        ),
        Entry(last.shown("loss", "loss train: {:.3f}"), say("A running mean of the training loss.")),
        Entry(
            "val: …",
            say(
                "The last validation loss, printed again on every line until there is a new one; n/a: none "
                "yet."
            ),
        ),
        Entry(
            last.shown("ms", "iter time: {:.2f} ms"),
            say("This micro-batch alone; those marked (step) hold the optimizer too."),
        ),
    ]


def _huggingface(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(last.shown("loss", "'loss': {:.4f}"), say("The mean training loss since the line before.")),
        Entry(last.shown("grad_norm", "'grad_norm': {:.4g}"), _gradient_norm()),
        Entry(last.shown("lr", "'learning_rate': {:.3g}"), _learning_rate()),
        Entry(
            "'epoch': …",
            say("How often the data has been gone through. The Trainer does not print the step number."),
        ),
        Entry(_evaluation(history, "'eval_loss': {val}"), say("The loss on the evaluation set.")),
    ]


def _glassgpt(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(last.shown("iteration", "iter {}"), say("Updates done so far.")),
        Entry(last.shown("loss", "loss {:.4f}"), say("The mean loss over all micro-batches of this update.")),
        Entry(
            last.shown("ms", "{:.2f} ms"),
            say(
                "The mean time of an update since the line before; evaluation, checkpoints and compiling "
                "are outside."
            ),
        ),
        Entry(last.shown("tokens_per_s", "{:.0f} tok/s"), _tokens_per_second()),
        Entry(
            last.shown("mfu", "MFU {:.1f}%"),
            say("Achieved FLOP/s over the peak that the start of the run names."),
        ),
        Entry(last.shown("lr", "lr {:.2e}"), _learning_rate()),
        Entry(last.shown("grad_norm", "norm {:.2f}"), _gradient_norm()),
        Entry(
            _evaluation(history, "train {train}  val {val}"),
            say("The same tokens of each split every time, with a standard error."),
        ),
    ]


def _unknown(last: _Last, history: History, facts: Facts) -> list[Entry]:
    return [
        Entry(last.shown("iteration", "{}"), say("The iteration that the line names.")),
        Entry(last.shown("loss", "loss {:.4f}"), say("The loss that the line names.")),
    ]
