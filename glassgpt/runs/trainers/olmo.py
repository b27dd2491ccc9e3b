"""OLMo and OLMo-core: a line for the step, then a line for each metric.

    [step=100/739328,epoch=0]
        train/CrossEntropyLoss=6.123
        throughput/total_tokens=419,430,400
        throughput/device/tokens_per_second=45,284
        throughput/device/batches_per_second=0.0864
    [step=100/??? ,epoch=1,eta=2h]
        train/CE loss=6.123

Rates are of one device, means over the latest steps, without evaluations. Of several validation sets the
first one counts.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, NUMBER, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_BEGIN = re.compile(r"(?:^|\s)\[step=(\d{1,15})/(?:(\d{1,15})|\?\?\?)[^\]]{0,80}\]$")
_METRICS = StepLine(
    "$^",
    {
        "train/(?:CrossEntropyLoss|CE loss)": "loss",
        "throughput/device/(?:batches_per_second|BPS)": "it_per_s",
        "throughput/device/(?:tokens_per_second|TPS)": "device_tokens_per_s", "throughput/device/MFU": "mfu",
        "optim/total[_ ]grad[_ ]norm": "grad_norm", r"optim/LR(?: \(group 0\))?": "lr",
        "throughput/total[_ ]tokens": "tokens",
    },
)  # fmt: skip
_METRIC = re.compile(rf"^[A-Za-z][\w ()/%.-]{{1,120}}={NUMBER}$")
_VALIDATION = re.compile(rf"^(?:eval/)?([\w./-]{{1,100}})/(?:CrossEntropyLoss|CE loss)={NUMBER}$")
_EVAL_TIME = re.compile(r"\bFinished .{1,80} evals in ([\d.]{1,12}) seconds\. Metrics:")
_SAVING = re.compile(
    r"\bSaving checkpoint for step (\d{1,15}) to '"
    r"|\b[Cc]heckpoint saved to \S{0,400}?/step(\d{1,15})(?:-\w{1,20})?/?$"
)
_SETTINGS = {"t_warmup": "warmup_iters", "max_duration": "max_iters"}  # where their unit is the step
_RESUME = re.compile(r"\b(?:Will resume training from step [1-9]|Loading checkpoint from )")


class OlmoReader:
    """Collects the metrics of a step, until the next step."""

    def __init__(self) -> None:
        self._step: tuple[int, int] | None = None  # iteration, line in the file
        self._values: dict[str, float] = {}
        self._eval_name: str | None = None
        self._eval_ms: float | None = None

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "=" in line and _METRIC.match(line):
            if self._step is not None:
                for kind, value in _METRICS.values(line).items():
                    self._values.setdefault(kind, value)
            if not line.startswith("train/") and (match := _VALIDATION.match(line)):
                self._read_validation(match[1], parse_number(match[2]), builder)
            return self._step is not None
        if line.endswith("]") and (match := _BEGIN.search(line)):
            self.close(builder)
            self._step, self._values, self._eval_ms = (int(match[1]), builder.line), {}, None
            if match[2]:
                builder.setup.values["planned_iterations"] = int(match[2])
            return False
        if "evals in" in line and (match := _EVAL_TIME.search(line)):
            self._eval_ms = parse_number(match[1].rstrip(".") or "nan") * 1000
        elif "heckpoint" in line:
            if match := _SAVING.search(line):
                builder.add_checkpoint(int(match[1] or match[2]))
            elif "heckpoint saved to " in line:
                builder.add_checkpoint(self._step[0] if self._step else builder.last_iteration)
            elif builder.last_iteration is None and self._step is None and _RESUME.search(line):
                builder.start_process(resumed=True)
        elif "Training complete" in line:
            self.close(builder)
            builder.add_event("finish", line)
        return False

    def close(self, builder: RunBuilder) -> None:
        """Read the step whose metrics are complete."""
        if self._step is None:
            return
        (iteration, line), values, self._step = self._step, self._values, None
        if "tokens" in values:
            builder.setup.count_tokens(iteration, values.pop("tokens"))
        if "loss" in values:
            add_values(builder, iteration, values, line)

    def _read_validation(self, name: str, loss: float, builder: RunBuilder) -> None:
        at = self._step[0] if self._step is not None else builder.last_iteration
        if at is not None and self._eval_name in (None, name):
            self._eval_name = name
            builder.add_eval(at, loss, ms=self._eval_ms)


TRAINER = Trainer(
    "olmo",
    "OLMo",
    reader=OlmoReader,
    article="An",
    header=(
        ("otal number", rf"\bTotal number of parameters: {COUNT}", "parameters"),
        *((name, rf"\b{name}=([\d.e+-]{{1,20}})[,)]", setting) for name, setting in _SETTINGS.items()),
    ),
    glossary=(
        ("iteration", "[step={}/…]", say("glossary.updates_done")),
        ("loss", "train/CrossEntropyLoss={:.4g}", say("glossary.batch_loss")),
        ("grad_norm", "optim/total_grad_norm={:.4g}", say("glossary.gradient_norm")),
        ("lr", "optim/LR={:.3g}", say("glossary.learning_rate")),
        (
            "tokens_per_s",
            "throughput/device/tokens_per_second={:,.0f}",
            say("glossary.device_tokens_per_second"),
        ),
        ("ms", "throughput/device/batches_per_second (one takes {:.0f} ms)", say("glossary.interval_time")),
        ("eval", "eval/…/CrossEntropyLoss={val}", say("hf-trainer.glossary.eval_loss")),
    ),
    step_time_is_interval_mean=True,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    eval_splits=1,
    clips_gradients=True,
    logs_checkpoints=True,
)
