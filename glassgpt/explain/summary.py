"""A run in a few sentences: how far it came, how good it is, how fast it was, and what matters most.

Of a file with several runs: which these are, and what is wrong with the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgpt.format import format_loss
from glassgpt.i18n import translate
from glassgpt.record.finding import Finding
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import shows_run_start

MAX_OTHER_PROBLEMS = 3  # sentences about other runs
MIN_STALL_SHARE = 0.05  # of the time
MIN_JUDGED_ITERATIONS = 20  # logged; of fewer it cannot be said that nothing is wrong


def introduce_runs(main: RunLog, run_logs: Sequence[RunLog]) -> list[str]:
    """How many runs the file holds, and which one the following is about."""
    if main.stage is not None:
        stages = ", ".join(dict.fromkeys(one.stage for one in run_logs if one.stage is not None))
        sentence = translate("verdict.several_stages", stages=stages, stage=main.stage)
    else:
        sentence = translate("verdict.several_runs", runs=main.runs_in_file)
    if len({one.trainer.id for one in run_logs}) > 1:
        names = dict.fromkeys(one.trainer.name for one in run_logs)
        sentence = translate(
            "verdict.several_trainers",
            runs=main.runs_in_file,
            trainers=", ".join(names),
            trainer=main.trainer.name,
        )
    if main.has_line_numbers and main.first_line:
        lines = translate("verdict.lines", first=main.first_line, last=main.last_line)
        return [f"{sentence} {lines}"]
    return [sentence]


def other_problems(others: Sequence[tuple[RunLog, Sequence[Finding]]]) -> list[str]:
    """What is wrong with the other runs of a file: one sentence each, for the first few."""
    problems = [
        (run_log, next(finding for finding in findings if finding.severity == "problem"))
        for run_log, findings in others
        if any(finding.severity == "problem" for finding in findings)
    ]
    sentences = [
        translate(
            "verdict.other_run_problem",
            name=run_log.stage or run_log.trainer.name,
            first=run_log.first_line,
            last=run_log.last_line,
            title=finding.title,
        )
        for run_log, finding in problems[:MAX_OTHER_PROBLEMS]
    ]
    if more := len(problems) - MAX_OTHER_PROBLEMS:
        sentences += [translate("verdict.more_problems", runs=more)] if more > 0 else []
    return sentences


def compose_verdict(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """The sentences, in order. The last one names the most serious finding, or says that there is none."""
    sentences = [_progress_sentence(run_log, facts), _loss_sentence(run_log, facts)]
    sentences += _time_sentences(facts, findings)
    if left_out := run_log.left_out.lines:
        sentences.append(
            translate(
                "verdict.thinned_log", lines=facts.iterations_logged, rows=facts.iterations_logged - left_out
            )
        )
    serious = [finding for finding in findings if finding.severity in ("problem", "warning")]
    has_advice = any(finding.severity == "advice" for finding in findings)
    if serious:
        sentences.append(translate("verdict.most_important", title=serious[0].title))
    elif (
        facts.ended in ("finished", None)
        and facts.iterations_logged >= MIN_JUDGED_ITERATIONS
        and not run_log.is_excerpt
        and not has_advice
    ):
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
            "cut": translate("verdict.log_stops", trainer=trainer, at=at),
            None: translate("verdict.running", trainer=trainer, at=at),
        }[facts.ended]
        budget_s, remaining_s = run_log.setup.budget_s, run_log.setup.remaining_s
        if facts.ended != "finished" and budget_s and remaining_s:
            share = min(1.0, max(0.0, 1 - remaining_s / budget_s))
            sentence += " " + translate("verdict.time_budget", budget=budget_s, share=share, left=remaining_s)
    # English only: "An HF Trainer run". A translated sentence does not begin with "A".
    if sentence.startswith(f"A {run_log.trainer.name} "):
        return sentence.replace("A", run_log.trainer.article, 1)
    return sentence


def _time_sentences(facts: Facts, findings: Sequence[Finding]) -> list[str]:
    if facts.steady_ms is None:
        return []
    share, times = facts.pause_share, [float(str(regime["steady_ms"])) for regime in facts.regimes]
    overhead = translate("verdict.overhead", share=share) if share else ""
    if len(times) > 1 and any(finding.id == "throughput-drift" for finding in findings):
        sentences = [translate("verdict.step_time_regimes", low=min(times), high=max(times)), overhead]
    elif share:
        sentences = [translate("verdict.step_time_and_overhead", ms=facts.steady_ms, share=share)]
    else:
        sentences = [translate("verdict.step_time", ms=facts.steady_ms)]
    if facts.stall_share >= MIN_STALL_SHARE:
        sentences.append(translate("verdict.stalls", share=facts.stall_share))
    return sentences


def _loss_sentence(run_log: RunLog, facts: Facts) -> str:
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
    evaluated = [one for one in run_log.evals if one.val_loss is not None]
    trained = [one for one in evaluated if one.iteration != 0]
    if not trained:
        return translate("verdict.evaluated_before_training", loss=final)
    if len(trained) == 1:
        at = trained[0].iteration
        if at is None or not run_log.has_iteration_numbers:
            return translate("verdict.only_val_loss", loss=final)
        if not shows_run_start(run_log):
            return translate("verdict.only_val_loss_here", loss=final, step=at)
        return translate("verdict.only_val_loss_at", loss=final, step=at)
    if not shows_run_start(run_log):
        if best == final:
            return translate("verdict.last_loss_is_lowest_here", best=shown)
        if step is not None:
            return translate("verdict.lowest_loss_here", best=shown, step=step, final=final)
    if best == final:
        return translate("verdict.last_loss_is_best", best=shown)
    if step is None:
        return translate("verdict.best_and_last_loss", best=shown, final=final)
    return translate("verdict.best_loss_at", best=shown, step=step, final=final)
