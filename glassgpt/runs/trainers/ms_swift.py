"""ms-swift's logging.jsonl: one line per logging interval, in its output folder, and a summary as the last.

    {"loss": 0.85, "grad_norm": 1.2, "learning_rate": 1e-05, "token_acc": 0.81, "epoch": 0.1,
     "global_step/max_steps": "10/438", "percentage": "2.28%", "elapsed_time": "51s",
     "memory(GiB)": 16.38, "train_speed(iter/s)": 0.193}
    {"model_parameter_info": "PeftModel: 8212.5588M Params (21.8235M Trainable [0.2657%]), …",
     "last_model_checkpoint": "out/checkpoint-438", "best_model_checkpoint": "…", "log_history": […]}

Its console output is Hugging Face's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from glassgpt.i18n import say
from glassgpt.runs.log_numbers import COUNT, parse_count
from glassgpt.runs.trainer import Trainer

if TYPE_CHECKING:
    from glassgpt.runs.builder import RunBuilder

_PARAMETERS = re.compile(rf"(?:^|: ){COUNT} Params\b")
_SAVED = re.compile(r"checkpoint-(\d{1,15})/?$")


def read_summary(summary: Mapping[str, object], builder: RunBuilder) -> None:
    """Its parameters, with those that are not trained, and the checkpoints that it names."""
    info = str(summary.get("model_parameter_info") or summary.get("model_info"))[:400]
    if match := _PARAMETERS.search(info):
        with contextlib.suppress(ValueError):  # "..."
            builder.setup.values["parameters"] = parse_count(match[1])
    paths = (str(summary.get(f"{which}_model_checkpoint"))[-60:] for which in ("best", "last"))
    for at in sorted({int(match[1]) for path in paths if (match := _SAVED.search(path))}):
        builder.add_checkpoint(at)


TRAINER = Trainer(
    "ms-swift",
    "ms-swift",
    article="An",
    rows_key="log_history",
    document_reader=read_summary,
    table_columns=(
        frozenset({"global_step/max_steps", "train_speed(iter/s)"}),
        frozenset({"global_step", "train_speed(iter/s)", "memory(GiB)"}),
    ),
    loss_is_interval_mean=True,
    zero_loss_cause=say("hf-trainer.zero_loss_cause"),
    often_finetunes=True,
    resume_command="--resume_from_checkpoint",
)
