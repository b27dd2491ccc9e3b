"""A run in a few sentences: how far it came, how good it is, how fast it was, and what matters most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgpt.format import format_loss, format_ms, format_percent
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import continues_previous


def compose_verdict(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """The sentences, in order. The last one names the most serious finding, or says that there is none."""
    sentences = []
    if run_log.earlier_runs:
        sentences.append(
            say(
                "Runs of other trainers come before this one in the log: {trainers}.",
                trainers=", ".join(earlier.trainer.name for earlier in run_log.earlier_runs),
            )
        )
    # A resume continues a run; a process that begins at the first iteration again is another run.
    runs = 1 + sum(not continues_previous(run_log, index) for index in range(1, len(run_log.segments)))
    if runs > 1 and not run_log.trainer.one_run_per_log:
        sentences.append(
            say(
                "This log holds {runs} runs. The facts cover all of them; findings about learning cover the "
                "longest.",
                runs=runs,
            )
        )
    sentences += [_progress_sentence(run_log, facts), _loss_sentence(facts)]
    if facts.steady_ms is not None and facts.overhead_share is None:
        sentences.append(say("An iteration takes {ms}.", ms=format_ms(facts.steady_ms)))
    elif facts.steady_ms is not None and facts.overhead_share is not None:
        sentences.append(
            say(
                "An iteration takes {ms}; {share} of the time went into start-up, evaluation and "
                "checkpoints.",
                ms=format_ms(facts.steady_ms),
                share=format_percent(facts.overhead_share),
            )
        )
    if left_out := run_log.left_out.lines:
        sentences.append(
            say(
                "The log is very long: its {lines} iterations are counted and timed in full, and {rows} of "
                "them, spread over the whole run, are analysed and drawn.",
                lines=f"{facts.iterations_logged:,}",
                rows=f"{facts.iterations_logged - left_out:,}",
            )
        )
    serious = [finding for finding in findings if finding.severity in ("problem", "warning")]
    has_advice = any(finding.severity == "advice" for finding in findings)
    if serious:
        sentences.append(say("Most important: {title}.", title=serious[0].title))
    elif facts.ended in ("finished", None) and facts.iterations_logged > 0 and not has_advice:
        sentences.append(say("Nothing is wrong with this run, as far as its log shows."))
    return [sentence for sentence in sentences if sentence]


def _progress_sentence(run_log: RunLog, facts: Facts) -> str:
    trainer = say("training") if run_log.trainer.reads_any_log else run_log.trainer.name
    if not facts.iterations_logged and run_log.live:
        sentence = say("A {trainer} run that has not logged an iteration yet.", trainer=trainer)
    elif not facts.iterations_logged:
        sentence = say("A {trainer} run without a logged iteration.", trainer=trainer)
    elif facts.last_iteration is None:
        sentence = say(
            "A {trainer} run; {lines} logged iterations, without iteration numbers.",
            trainer=trainer,
            lines=f"{facts.iterations_logged:,}",
        )
    else:
        at = f"{facts.last_iteration:,}"
        sentence = {
            "finished": say("A {trainer} run that finished at iteration {at}.", trainer=trainer, at=at),
            "interrupted": say("A {trainer} run that was stopped at iteration {at}.", trainer=trainer, at=at),
            "crashed": say("A {trainer} run that crashed after iteration {at}.", trainer=trainer, at=at),
            "oom": say(
                "A {trainer} run that ran out of memory after iteration {at}.", trainer=trainer, at=at
            ),
            "cut": say(
                "A {trainer} run whose log stops at iteration {at} without saying why.",
                trainer=trainer,
                at=at,
            ),
            None: say("A {trainer} run that is at iteration {at} now.", trainer=trainer, at=at),
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
            return say("The only training loss in this log is {last}.", last=last)
        return say("Its training loss went from {first} to {last}.", first=first, last=last)
    shown = format_loss(best)
    if facts.val_metric == "bits_per_byte":
        return say("Its best validation result was {best} bits per byte.", best=shown)
    if best == final:
        return say("Its last validation loss, {best}, is its best.", best=shown)
    if step is None:
        return say(
            "Its best validation loss was {best}; the last is {final}.", best=shown, final=format_loss(final)
        )
    return say(
        "Its best validation loss was {best} at iteration {step}; the last is {final}.",
        best=shown,
        step=f"{step:,}",
        final=format_loss(final),
    )
