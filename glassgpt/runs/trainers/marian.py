"""Marian: translation, and language models.

    Ep. 1 : Up. 16000 : Sen. 1,052,108 : Cost 6.59608603 : Time 1153.11s : 1942.28 words/s : L.r. 3.0000e-04
    [valid] Ep. 1 : Up. 20000 : cross-entropy : 130.97 : new best
    [valid] Ep. 1 : Up. 20000 : perplexity : 187.458 : stalled 1 times (last best: 185.2)

Cost and time are of the updates since the line before. What the cost is a mean of, words or sentences,
depends on a setting (`--cost-type`), so it is no loss per token for certain. A validation's `cross-entropy`
is a sum over the words of a sentence; that of a word is `ce-mean-words`, or the logarithm of the perplexity.
Where one of these is logged, it is the validation loss.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, loss_of_perplexity, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_STEP = StepLine(
    r"^Ep\. \d{1,9} : Up\. (\d{1,15}) : ",
    {"Cost": "loss", ": Time": "interval_s", "L\\.r\\.": "lr", "gNorm": "grad_norm"},
)
_WORDS_PER_S = re.compile(rf": {NUMBER} words/s")
_VALID = re.compile(rf"^\[valid\] Ep\. \d{{1,9}} : Up\. (\d{{1,15}}) : ([\w-]{{1,40}}) : {NUMBER}")
_SAVED = re.compile(r"^Saving model (?:weights and runtime parameters )?to \S{1,1000}\.npz$")


class MarianReader:
    """Remembers the line before, and holds a validation's sum until the loss of a word has had its turn."""

    def __init__(self) -> None:
        self._last: int | None = None  # update of the line before; None: not known
        self._loads = False  # the process has weights to start from
        self._sum: tuple[int, float, int] | None = None  # update, cross-entropy, line
        self._evaluated_at: int | None = None  # by the loss of a word

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if line.startswith("[valid] Ep. ") and (match := _VALID.match(line)):
            self._read_valid(int(match[1]), match[2], parse_number(match[3]), builder)
            return True
        if line.startswith("Ep. ") and (step := _STEP.parse(line, builder)):
            self.close(builder)
            values, at = step.values, step.iteration
            if "interval_s" in values and self._last is not None and at > self._last:
                values["s"] = values["interval_s"] / (at - self._last)
            if speed := _WORDS_PER_S.search(line):
                values["tokens_per_s"] = parse_number(speed[1])
            self._last = at
            add_values(builder, at, values)
            return True
        if line.startswith("Loading model from "):
            self._loads = True
        elif line == "Training started":
            self.close(builder)
            builder.start_process(resumed=self._loads)
            self._last, self._loads = None if self._loads else 0, False
        elif line == "Training finished":
            self.close(builder)
        elif line.startswith("Saving model ") and _SAVED.match(line) and builder.last_iteration is not None:
            builder.add_checkpoint(builder.last_iteration)
        return False

    def _read_valid(self, at: int, name: str, value: float, builder: RunBuilder) -> None:
        if self._sum is not None and self._sum[0] != at:
            self.close(builder)
        if at > MAX_COUNT:
            return
        if name == "cross-entropy":
            self._sum = at, value, builder.line
        elif name in ("perplexity", "ce-mean-words") and self._evaluated_at != at:
            self._sum, self._evaluated_at = None, at
            builder.add_eval(at, loss_of_perplexity(value) if name == "perplexity" else value)
        builder.add_metrics({f"val {name}": value}, at)

    def close(self, builder: RunBuilder) -> None:
        """No other value of this validation comes."""
        held, self._sum = self._sum, None
        if held is not None and held[0] != self._evaluated_at:
            builder.add_eval(held[0], held[1], line=held[2])


TRAINER = Trainer(
    "marian",
    "Marian",
    reader=MarianReader,
    identifying_line=re.compile(r"^\[marian\] Marian v\d"),
    command="marian",
    header=(("after-batches", r"^\[config\] after-batches: ([1-9]\d{0,14})$", "planned_iterations"),),
    glossary=(
        ("iteration", "Up. {}", say("glossary.updates_done")),
        ("loss", "Cost {:.4f}", say("hf-trainer.glossary.loss")),
        ("ms", "Time (one takes {:.0f} ms)", say("glossary.interval_time")),
        ("lr", "L.r. {:.4e}", say("glossary.learning_rate")),
        ("grad_norm", "gNorm {:.4f}", say("glossary.gradient_norm")),
        ("", "[valid] … cross-entropy", say("marian.glossary.cross_entropy")),
    ),
    step_time_is_interval_mean=True,
    loss_is_interval_mean=True,
    loss_base=None,
    uses_torch=False,
    evaluates_same_tokens=True,
    eval_splits=1,
    logs_checkpoints=True,
    clips_gradients=True,
)
