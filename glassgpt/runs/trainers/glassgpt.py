"""GlassGPT itself. It writes a journal, not lines: `runs/from_journal.py` reads it."""

from __future__ import annotations

from glassgpt.config import TrainConfig
from glassgpt.i18n import say
from glassgpt.runs.trainer import Trainer

TRAINER = Trainer(
    "glassgpt",
    "GlassGPT",
    glossary=(
        ("iteration", "iter {}", say("glossary.updates_done")),
        ("loss", "loss {:.4f}", say("glassgpt.glossary.loss")),
        ("ms", "{:.2f} ms", say("glassgpt.glossary.step_time")),
        ("tokens_per_s", "{:.0f} tok/s", say("glossary.tokens_per_second")),
        ("mfu", "MFU {:.1f}%", say("glassgpt.glossary.mfu")),
        ("lr", "lr {:.2e}", say("glossary.learning_rate")),
        ("grad_norm", "norm {:.2f}", say("glossary.gradient_norm")),
        ("eval", "train {train}  val {val}", say("glassgpt.glossary.evaluation")),
    ),
    first_iteration=1,
    lines_count_updates=True,
    step_time_is_interval_mean=True,  # without evaluations and saves
    compile_off_flag="--compile=off",
    mfu_counts_palm_flops=True,
    is_gpt2_shaped=True,
    states_exact_parameters=True,
    keeps_float32_masters=True,
    computes_loss_in_chunks=True,
    loss_is_interval_mean=True,
    evaluates_next_token_loss=True,
    evaluates_same_tokens=True,
    takes_known_settings=True,
    schedule_fits_run=True,
    defaults={"learning_rate": TrainConfig.learning_rate},
    logs_checkpoints=True,
    resume_command="glass train --init_from=resume --out_dir=RUN",
    clips_gradients=True,
)
