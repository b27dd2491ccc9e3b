"""LLaMA-Factory's trainer_log.jsonl: one line per logging interval, in its output folder.

    {"current_steps": 10, "total_steps": 500, "loss": 0.85, "lr": 1e-05, "epoch": 0.1, "percentage": 2.0,
     "elapsed_time": "0:02:12", "remaining_time": "1:47:48", "throughput": 3012.5, "total_tokens": 397650}

Every process may write its own line; the clock has whole seconds. Its console output is Hugging Face's.
"""

from __future__ import annotations

from glassgpt.i18n import say
from glassgpt.runs.trainer import Trainer

TRAINER = Trainer(
    "llama-factory",
    "LLaMA-Factory",
    table_columns=(frozenset({"current_steps", "total_steps", "percentage"}),),
    column_roles={"throughput": "tokens_per_s"},  # a mean since the start
    closing_row_has_no_loss=True,
    loss_is_interval_mean=True,
    zero_loss_cause=say("hf-trainer.zero_loss_cause"),
    often_finetunes=True,
    resume_command="resume_from_checkpoint",
)
