"""A run in a few sentences: how far it came, how good it is, how fast it was, and what matters most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgpt.explain.rule import Finding
from glassgpt.format import format_loss, format_ms, format_percent
from glassgpt.i18n import say
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trajectory import continues_previous


def compose_verdict(history: RunLog, facts: Facts, findings: Sequence[Finding]) -> list[str]:
    far = _with_article(_progress_sentence(history, facts), history.trainer)
    sentences = [_who_else(history), _how_many(history), far, _loss_sentence(facts), _how_fast(facts)]
    serious = [finding for finding in findings if finding.severity in ("problem", "warning")]
    went_well = facts.ended in ("finished", None) and facts.iterations_logged > 0
    if serious:
        sentences.append(say("Most important: {title}.", title=serious[0].title))
    elif went_well and not any(finding.severity == "advice" for finding in findings):
        sentences.append(say("Nothing is wrong with this run, as far as its log tells."))
    return [sentence for sentence in sentences if sentence]


def _who_else(history: RunLog) -> str:
    if not history.earlier:
        return ""
    return say(
        "Runs of other trainers come before this one in the log: {trainers}.",
        trainers=", ".join(one.trainer.name for one in history.earlier),
    )


def _how_many(history: RunLog) -> str:
    """A resume goes on with a run; what begins at the first iteration again is another."""
    others = [index for index in range(1, len(history.segments)) if not continues_previous(history, index)]
    if not others or history.trainer.one_run_per_log:
        return ""
    return say(
        "This log holds {runs} runs. Facts are over all of them; what is said about learning is about the "
        "longest.",
        runs=len(others) + 1,
    )


def _progress_sentence(history: RunLog, facts: Facts) -> str:
    trainer = say("training") if history.trainer.reads_any_log else history.trainer.name
    last = facts.last_iteration
    if not facts.iterations_logged:
        if history.live:
            return say("A {trainer} run that has not logged an iteration yet.", trainer=trainer)
        return say("A {trainer} run without a line about an iteration.", trainer=trainer)
    if last is None:
        lines = f"{facts.iterations_logged:,}"
        return say(
            "A {trainer} run; {lines} lines about iterations, without their numbers.",
            trainer=trainer,
            lines=lines,
        )
    at = f"{last:,}"
    sentence = {
        "finished": say("A {trainer} run that went to its end at iteration {at}.", trainer=trainer, at=at),
        "interrupted": say("A {trainer} run that was stopped at iteration {at}.", trainer=trainer, at=at),
        "crashed": say("A {trainer} run that crashed after iteration {at}.", trainer=trainer, at=at),
        "oom": say("A {trainer} run that ran out of memory after iteration {at}.", trainer=trainer, at=at),
        "cut": say(
            "A {trainer} run whose log stops at iteration {at} without saying why.", trainer=trainer, at=at
        ),
        None: say("A {trainer} run that is at iteration {at} now.", trainer=trainer, at=at),
    }[facts.ended]
    return sentence


def _with_article(sentence: str, trainer: Trainer) -> str:
    """English only: the article that the name wants. A translated sentence does not begin with "A"."""
    begins = f"A {trainer.name} "
    return sentence.replace("A", trainer.article, 1) if sentence.startswith(begins) else sentence


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
        return say("Its best validation was {best} bits per byte.", best=shown)
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


def _how_fast(facts: Facts) -> str:
    if facts.steady_ms is None:
        return ""
    ms = format_ms(facts.steady_ms)
    if facts.overhead_share is None:
        return say("An iteration takes {ms}.", ms=ms)
    return say(
        "An iteration takes {ms}; {share} of the time went into start-up, evaluation and checkpoints.",
        ms=ms,
        share=format_percent(facts.overhead_share),
    )
