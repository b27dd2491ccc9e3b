"""GlassGPT itself. It writes a journal, not lines: `runs/from_journal.py` reads it."""

from __future__ import annotations

from glassgpt.config import TrainConfig
from glassgpt.i18n import translate
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import GlossaryEntry, LastLine, last_evaluation
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer


def _glossary(last: LastLine, run_log: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(last.shown("iteration", "iter {}"), translate("glossary.updates_done")),
        GlossaryEntry(last.shown("loss", "loss {:.4f}"), translate("glassgpt.glossary.loss")),
        GlossaryEntry(last.shown("ms", "{:.2f} ms"), translate("glassgpt.glossary.step_time")),
        GlossaryEntry(last.shown("tokens_per_s", "{:.0f} tok/s"), translate("glossary.tokens_per_second")),
        GlossaryEntry(last.shown("mfu", "MFU {:.1f}%"), translate("glassgpt.glossary.mfu")),
        GlossaryEntry(last.shown("lr", "lr {:.2e}"), translate("glossary.learning_rate")),
        GlossaryEntry(last.shown("grad_norm", "norm {:.2f}"), translate("glossary.gradient_norm")),
        GlossaryEntry(
            last_evaluation(run_log, "train {train}  val {val}"), translate("glassgpt.glossary.evaluation")
        ),
    ]


TRAINER = Trainer(
    "glassgpt",
    "GlassGPT",
    glossary=_glossary,
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
