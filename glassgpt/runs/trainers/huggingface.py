"""Hugging Face's Trainer (and those built on it): one dict per logging interval.

    {'loss': 2.9543, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.03}
    {'eval_loss': 2.8, 'eval_runtime': 3.2, …}
      3%|▎         | 10/330 [00:12<06:21,  1.19s/it]

The dicts have no step number. Where the progress bar was captured too, it tells; where not, only the end
does, and iterations stay unknown. Since version 5 the numbers are quoted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import GlossaryEntry, LastLine, gradient_norm, last_evaluation, learning_rate
from glassgpt.runs.numbers import NUMBER, parse_number
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer

_DICT = re.compile(r"\{['\"][^{}]{1,2000}\}")
_PAIR = re.compile(rf"['\"](\w+)['\"]:\s*(?:tensor\()?['\"]?{NUMBER}['\"]?")
# Bars of other things (reading files, loading weights) have a name in front, or another unit.
_BAR = re.compile(r"(?:^|\})\s*\d{1,3}%\|[^|]{0,300}\|\s*(\d+)/(\d+) \[[\d:]{1,12}<[^\]]{0,40}?(?:it/s|s/it)")
_SAVE = re.compile(r"\bSaving model checkpoint to .{0,400}?checkpoint-(\d+)")
_RESUME = re.compile(r"\b(?:Resuming|Continuing) training from (?:checkpoint|global step|epoch)")
_PEFT = re.compile(r"\ball params:\s*([\d,]+)")
_BEGIN = "***** Running training *****"


@dataclass
class _Before:
    """What the last dict with a loss said, for the differences."""

    iteration: int | None = None
    tokens: float = 0.0
    seconds: float = 0.0


class TrainerReader:
    """Counts the dicts, and remembers where the progress bar was at each.

    A dict waits for the bar that is drawn again after it: the one before may lag. The training's bar is the
    one that was drawn last when the first loss came; one with another total is then that of an evaluation.
    """

    def __init__(self) -> None:
        self._bar: int | None = None
        self._total: int | None = None
        self._moved = False  # the bar, since the last loss
        self._waiting: dict[str, str] = {}
        self._line = 0  # of the dict that waits
        self._epoch = 0.0
        self._count = 0
        self._before = _Before()
        self._said_at: dict[int, int] = {0: 0}  # count of dicts -> iteration

    def __call__(self, line: str, into: RunBuilder) -> bool:
        if "%|" in line:
            if "{" in line:  # the bar on a dict's own line is that dict's
                self.close(into)
            self._follow_bar(line, into)
        if ": " in line and (found := _DICT.search(line)):
            return self._read_dict(dict(_PAIR.findall(found[0])), "%|" in line, into)
        if "Saving model checkpoint" in line and (told := _SAVE.search(line)):
            into.add_save(int(told[1]))
        elif "training from" in line and _RESUME.search(line):
            into.start_process(resumed=True)
        elif _BEGIN in line:
            into.start_process()
        elif "all params" in line and (told := _PEFT.search(line)):
            into.setup.values["parameters"] = round(parse_number(told[1]))
        elif "Training completed. Do not forget" in line or line.lstrip().startswith("{'train_runtime'"):
            into.add_event("finish", line)
        return False

    def _read_dict(self, values: dict[str, str], has_bar: bool, into: RunBuilder) -> bool:
        self.close(into)
        self._waiting, self._line = values, into.line
        is_end = "train_runtime" in values and "loss" not in values
        if is_end or has_bar:  # no bar to wait for
            self.close(into)
        is_loss = "loss" in values and "epoch" in values  # without one it is another trainer's
        return "train_runtime" in values or is_loss or _eval_loss(values) is not None

    def close(self, into: RunBuilder) -> None:
        """Take the dict that waits."""
        values, self._waiting = self._waiting, {}
        evaluated = _eval_loss(values)
        if "loss" in values and "epoch" in values:
            self._take_loss(values, into)
        elif evaluated is not None:
            name, loss = evaluated
            seconds = parse_number(values.get(f"{name}_runtime", "nan"))
            wall_s = into.setup.values.get("wall_s")
            if math.isinf(self._epoch) and isinstance(wall_s, float) and seconds >= 0:
                into.setup.values["wall_s"] = wall_s + seconds  # after the training, whose time was told
            into.add_eval(self._count, loss, ms=None if math.isnan(seconds) else seconds * 1000)
        elif "train_runtime" in values:
            into.add_event("finish", f"train_runtime {values['train_runtime']} s")
            into.setup.values["wall_s"] = parse_number(values["train_runtime"])
            self._epoch = math.inf  # what comes now is another run
        into.iteration_by_count = self._said_at if len(self._said_at) == self._count + 1 else {}

    def _follow_bar(self, line: str, into: RunBuilder) -> None:
        for told in _BAR.finditer(line):
            done, total = int(told[1]), int(told[2])
            if self._count == 0 and "loss" not in self._waiting:
                self._total = total
            if total == self._total:
                if self._count and done < (self._bar or 0):
                    into.start_process(silently=True)
                self._moved = self._moved or done != self._bar
                self._bar = done
        if self._waiting and "{" not in line:
            self.close(into)

    def _take_loss(self, values: dict[str, str], into: RunBuilder) -> None:
        """A bar that stands still while losses come was not captured with them, and says nothing."""
        said = int(parse_number(values["step"])) if "step" in values else self._bar if self._moved else None
        if said is not None:
            self._said_at[self._count + 1] = said
        if self._moved and self._total is not None:
            into.setup.values["planned_iterations"] = self._total
        self._moved = False
        self._count += 1
        epoch = parse_number(values["epoch"])
        if epoch < self._epoch:
            into.start_process(silently=True)
            self._before = _Before()
        self._epoch = epoch
        into.add_step(
            self._count,
            parse_number(values["loss"]),
            ms=self._since_last(said, values, into),
            lr=parse_number(values.get("learning_rate", "nan")),
            grad_norm=parse_number(values.get("grad_norm", "nan")),
            line=self._line,
        )

    def _since_last(self, said: int | None, values: dict[str, str], into: RunBuilder) -> float:
        """Milliseconds an iteration, where every dict has the time so far; its tokens likewise."""
        tokens = parse_number(values.get("num_input_tokens_seen", "nan"))
        seconds = parse_number(values.get("train_runtime", "nan"))
        before, self._before = self._before, _Before(said, tokens, seconds)
        updates = said - (before.iteration or 0) if said is not None else 0
        if updates <= 0 or (before.iteration is None and self._count > 1):
            return math.nan
        if tokens > before.tokens and not math.isinf(tokens):
            into.setup.values["tokens_per_iteration"] = round((tokens - before.tokens) / updates)
        return (seconds - before.seconds) / updates * 1000 if seconds >= before.seconds else math.nan


def _eval_loss(values: dict[str, str]) -> tuple[str, float] | None:
    """Its prefix and the loss: `eval_loss`, or with a name in front."""
    name = next((name for name in values if name.endswith("eval_loss")), None)
    return None if name is None else (name.removesuffix("_loss"), parse_number(values[name]))


def _glossary(last: LastLine, history: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(
            last.shown("loss", "'loss': {:.4f}"), say("The mean training loss since the line before.")
        ),
        GlossaryEntry(last.shown("grad_norm", "'grad_norm': {:.4g}"), gradient_norm()),
        GlossaryEntry(last.shown("lr", "'learning_rate': {:.3g}"), learning_rate()),
        GlossaryEntry(
            "'epoch': …",
            say("How often the data has been gone through. The Trainer does not print the step number."),
        ),
        GlossaryEntry(last_evaluation(history, "'eval_loss': {val}"), say("The loss on the evaluation set.")),
    ]


TRAINER = Trainer(
    "hf-trainer",
    "Hugging Face Trainer",
    reader=TrainerReader,
    introduction=re.compile(
        r'\*{5} Running training \*{5}|^File "[^"]{1,300}\btransformers[/\\]trainer\.py"'
    ),
    setting_names={
        "max_steps": "max_iters",
        "Instantaneous batch size per device": "batch_size",
        "Gradient Accumulation steps": "gradient_accumulation_steps",
    },
    glossary=_glossary,
    first_iteration=1,
    loss_is_interval_mean=True,
    often_finetunes=True,
    resume_command="--resume_from_checkpoint",
)
