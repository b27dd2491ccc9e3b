"""A run in a few sentences: how far it came, how good it is, how fast it was, and what matters most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgpt.format import format_loss
from glassgpt.i18n import translate
from glassgpt.record.finding import Finding
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import continues_previous


def compose_verdict(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """The sentences, in order. The last one names the most serious finding, or says that there is none."""
    sentences = []
    if run_log.earlier_runs:
        sentences.append(
            translate(
                "verdict.other_trainers",
                trainers=", ".join(earlier.trainer.name for earlier in run_log.earlier_runs),
            )
        )
    # A resume continues a run; a process that begins at the first iteration again is another run.
    runs = 1 + sum(not continues_previous(run_log, index) for index in range(1, len(run_log.segments)))
    if runs > 1 and not run_log.trainer.one_run_per_log:
        sentences.append(translate("verdict.several_runs", runs=runs))
    sentences += [_progress_sentence(run_log, facts), _loss_sentence(facts)]
    if facts.steady_ms is not None and facts.overhead_share is None:
        sentences.append(translate("verdict.step_time", ms=facts.steady_ms))
    elif facts.steady_ms is not None and facts.overhead_share is not None:
        sentences.append(
            translate("verdict.step_time_and_overhead", ms=facts.steady_ms, share=facts.overhead_share)
        )
    if left_out := run_log.left_out.lines:
        sentences.append(
            translate(
                "verdict.thinned_log", lines=facts.iterations_logged, rows=facts.iterations_logged - left_out
            )
        )
    if run_log.columns:
        columns = ", ".join(f"{meaning}={column}" for meaning, column in run_log.columns.items())
        sentences.append(translate("verdict.columns", columns=columns))
    sentences += [str(note) for note in run_log.notes]
    serious = [finding for finding in findings if finding.severity in ("problem", "warning")]
    has_advice = any(finding.severity == "advice" for finding in findings)
    if serious:
        sentences.append(translate("verdict.most_important", title=serious[0].title))
    elif facts.ended in ("finished", None) and facts.iterations_logged > 0 and not has_advice:
        sentences.append(translate("verdict.nothing_wrong"))
    return [sentence for sentence in sentences if sentence]


def _progress_sentence(run_log: RunLog, facts: Facts) -> str:
    trainer = translate("verdict.any_trainer") if run_log.trainer.reads_any_log else run_log.trainer.name
    if not facts.iterations_logged and run_log.live:
        sentence = translate("verdict.no_iteration_yet", trainer=trainer)
    elif not facts.iterations_logged:
        sentence = translate("verdict.no_iteration", trainer=trainer)
    elif facts.last_iteration is None:
        sentence = translate("verdict.no_iteration_numbers", trainer=trainer, lines=facts.iterations_logged)
    else:
        at = f"{facts.last_iteration:,}"
        sentence = {
            "finished": translate("verdict.finished", trainer=trainer, at=at),
            "interrupted": translate("verdict.interrupted", trainer=trainer, at=at),
            "crashed": translate("verdict.crashed", trainer=trainer, at=at),
            "oom": translate("verdict.out_of_memory", trainer=trainer, at=at),
            "cut": translate("verdict.table_ends", trainer=trainer, at=at)
            if run_log.columns
            else translate("verdict.log_stops", trainer=trainer, at=at),
            None: translate("verdict.running", trainer=trainer, at=at),
        }[facts.ended]
    # English only: "An HF Trainer run". A translated sentence does not begin with "A".
    if sentence.startswith(f"A {run_log.trainer.name} "):
        return sentence.replace("A", run_log.trainer.article, 1)
    return sentence


def _loss_sentence(facts: Facts) -> str:
    best, step, final = facts.best_val_loss, facts.best_val_step, facts.final_val_loss
    if best is None or final is None:
        if facts.loss_last is None or facts.loss_first is None or math.isnan(facts.loss_last):
            return ""
        first, last = format_loss(facts.loss_first), format_loss(facts.loss_last)
        if facts.iterations_logged == 1:
            return translate("verdict.only_training_loss", last=last)
        return translate("verdict.training_loss", first=first, last=last)
    shown = format_loss(best)
    if facts.val_metric == "bits_per_byte":
        return translate("verdict.best_bits_per_byte", best=shown)
    if best == final:
        return translate("verdict.last_loss_is_best", best=shown)
    if step is None:
        return translate("verdict.best_and_last_loss", best=shown, final=final)
    return translate("verdict.best_loss_at", best=shown, step=step, final=final)
