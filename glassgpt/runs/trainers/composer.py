"""MosaicML's Composer, and LLM Foundry: blocks of its ConsoleLogger.

    [batch=366/48000]:
         Train time/batch: 365
         Train time/token: 382730240
         Train loss/train/total: 10.3750
         Train throughput/tokens_per_sec: 46500.5000
    [Eval batch=40/40] Eval on eval data:
         Eval metrics/eval/LanguageCrossEntropy: 10.2500

A run that is planned in epochs prints `[epoch=1][batch=366/4800]:`, where the batch is that of the epoch.
`time/batch` counts those of the run, without this one. A block ends where the next one begins. Of several
validation sets the first one counts. Rates are means over the latest batches, without evaluations.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_norm, parse_number
from glassgpt.runs.step_line import add_values
from glassgpt.runs.trainer import Trainer

_UNITS = "batch|token|sample|epoch|iteration|second"
_BEGIN = re.compile(rf"^(?:\[epoch=(\d{{1,15}})\])?\[(?:{_UNITS})=\d{{1,15}}(?:/\d{{1,15}})?\]:?$")
_BATCHES = re.compile(r"^\[batch=(\d{1,15})/(\d{1,15})\]")  # of the whole run
_BEGIN_EVAL = re.compile(r"^\[Eval batch=\d{1,15}/\d{1,15}\] Eval on (\S.{0,200}?) data:?$")
_VALUE = re.compile(rf"^(Train|Eval) ([A-Za-z][\w./ -]{{0,200}}): {NUMBER}$")
_PROMPT = re.compile(r"^[^$❯]{0,80}[$❯] \S")
_LOSSES = ("loss/train/total", "metrics/train/LanguageCrossEntropy", "loss/train", "loss/train/ce_loss")
_CROSS_ENTROPIES = ("LanguageCrossEntropy", "CrossEntropy")
_COLUMNS = {
    "throughput/batches_per_sec": "it_per_s", "throughput/tokens_per_sec": "tokens_per_s",
    "l2_norm/grad/global": "grad_norm", "throughput/device/mfu": "mfu",
}  # fmt: skip


class ComposerReader:
    """Collects the values of a block, until the next one."""

    def __init__(self) -> None:
        self._batch: int | None = None  # as the block's first line says it
        self._block: tuple[str, int] | None = None  # "" or the validation set, and its line
        self._values: dict[str, str] = {}
        self._first_set = ""

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if self._block is not None and line.startswith(("Train ", "Eval ")):
            if match := _VALUE.match(line):
                self._values[match[2]] = match[3]
                if match[1] == "Eval" and match[2].endswith(_CROSS_ENTROPIES):
                    self._block = self._block[0], builder.line  # the line that says the loss
            return match is not None
        if not line.startswith("["):
            if self._block is not None and _PROMPT.match(line):
                self.close(builder)  # another command
            return False
        if match := _BEGIN.match(line):
            self.close(builder)
            self._block, batches = ("", builder.line), _BATCHES.match(line)
            self._batch = None if batches is None else int(batches[1])
            if batches is not None and int(batches[2]) <= MAX_COUNT:
                builder.setup.values["planned_iterations"] = int(batches[2])
        elif match := _BEGIN_EVAL.match(line):
            self.close(builder)
            self._block = match[1], builder.line
        return False

    def close(self, builder: RunBuilder) -> None:
        """Read the block that is complete."""
        block, values, self._block, self._values = self._block, self._values, None, {}
        if block is None or not values:
            return
        name, line = block
        if name:
            self._read_validation(name, values, line, builder)
            return
        batch = values.get("time/batch", "")
        iteration = int(batch) + 1 if batch.isdecimal() else self._batch
        loss = next((values[one] for one in _LOSSES if one in values), None)
        if iteration is None or iteration > MAX_COUNT:
            return
        tokens = values.get("time/token", "")
        if iteration > 1 and batch and tokens.isdecimal() and len(tokens) <= len(str(MAX_COUNT)):
            builder.setup.values["tokens_per_iteration"] = round(int(tokens) / (iteration - 1))
        if loss is not None:
            found = {_COLUMNS[one]: parse_number(text) for one, text in values.items() if one in _COLUMNS}
            if "grad_norm" in found:
                found["grad_norm"] = parse_norm(values["l2_norm/grad/global"])
            if "mfu" in found:
                found["mfu"] *= 100
            rates = [
                text for one, text in values.items() if one.startswith("lr-") and one.endswith("/group0")
            ]
            if rates:
                found["lr"] = parse_number(rates[0])
            add_values(builder, iteration, {"loss": parse_number(loss)} | found, line)
        self._add_metrics(values, iteration, builder)

    def _read_validation(self, name: str, values: dict[str, str], line: int, builder: RunBuilder) -> None:
        self._first_set = self._first_set or name
        at = builder.last_iteration or 0
        ends = [(one, text) for one, text in values.items() if one.endswith(_CROSS_ENTROPIES)]
        if name == self._first_set:
            builder.add_eval(at, parse_number(ends[0][1]) if ends else None, line=line)
        self._add_metrics(values, at, builder)

    def _add_metrics(self, values: dict[str, str], iteration: int, builder: RunBuilder) -> None:
        numbers = {
            one.removeprefix("metrics/"): parse_number(text)
            for one, text in values.items()
            if one.startswith("metrics/") and not one.endswith((*_CROSS_ENTROPIES, "Perplexity"))
        }
        builder.add_metrics(numbers, iteration)


TRAINER = Trainer(
    "composer",
    "Composer",
    reader=ComposerReader,
    identifying_line=re.compile(r"^(?:DEBUG|INFO): composer\.|\bcomposer\.trainer\.trainer: "),
    header=(("n_params", r"(?:^|\s)n_params: (\d{4,15})$", "parameters"),),
    glossary=(
        ("iteration", "[batch={}/…]", say("glossary.updates_done")),
        ("loss", "Train loss/train/total: {:.4f}", say("glossary.batch_loss")),
        ("grad_norm", "Train l2_norm/grad/global: {:.4f}", say("glossary.gradient_norm")),
        ("lr", "Train lr-…/group0: {:.4f}", say("glossary.learning_rate")),
        ("tokens_per_s", "Train throughput/tokens_per_sec: {:.4f}", say("glossary.tokens_per_second")),
        ("ms", "Train throughput/batches_per_sec (one takes {:.0f} ms)", say("glossary.interval_time")),
        ("eval", "Eval metrics/eval/LanguageCrossEntropy: {val}", say("hf-trainer.glossary.eval_loss")),
    ),
    step_time_is_interval_mean=True,
    evaluates_same_tokens=True,
    eval_splits=1,
)
