"""Facts in words and units, for every place that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from glassgpt import format
from glassgpt.explain.rule import Severity
from glassgpt.i18n import say
from glassgpt.runs.facts import Facts

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    name: str
    value: str
    reason: str = ""


def fact_groups(facts: Facts) -> list[tuple[str, list[Row]]]:
    """What the log supports, in words; a fact it cannot support has no row."""
    groups = [
        (say("The run"), _run_rows(facts)),
        (say("Its time"), _time_rows(facts)),
        (say("Its losses"), _result_rows(facts)),
    ]
    return [(title, [row for row in rows if row.value]) for title, rows in groups]


def _run_rows(facts: Facts) -> list[Row]:
    return [
        Row(say("how it ended"), ending(facts)),
        Row(say("logged iterations"), f"{facts.iterations_logged:,}"),
        Row(say("first iteration"), _with(_whole, facts.first_iteration)),
        Row(say("last iteration"), _with(_whole, facts.last_iteration)),
        Row(say("iterations from line to line"), _with(_whole, facts.log_interval)),
        Row(say("processes (a resume adds one)"), f"{facts.segments:,}"),
        Row(say("parameters"), _with(format.parameters, facts.parameters)),
        Row(say("tokens per iteration"), _with(_whole, facts.tokens_per_iteration)),
        Row(say("FLOPs per token"), _with(format.count, facts.flops_per_token)),
    ]


def _time_rows(facts: Facts) -> list[Row]:
    return [
        Row(say("steady iteration, median"), _with(format.milliseconds, facts.steady_ms)),
        Row(say("steady iteration, 95th percentile"), _with(format.milliseconds, facts.steady_p95_ms)),
        Row(say("first iteration, time"), _with(format.milliseconds, facts.first_iteration_ms)),
        Row(say("start-up in it"), _with(format.milliseconds, facts.startup_ms)),
        Row(say("an evaluation adds"), _with(format.milliseconds, facts.eval_overhead_ms)),
        Row(say("evaluations"), _with(_listed, facts.eval_steps)),
        Row(say("checkpoints"), _with(_listed, facts.checkpoint_steps)),
        Row(say("estimated total time"), _with(format.duration, facts.estimated_total_s)),
        Row(say("evaluation, checkpoints and start-up"), _with("{:.1%}".format, facts.overhead_share)),
        Row(say("tokens per second"), _with(format.count, facts.tokens_per_s)),
        Row(say("MFU as reported, median"), _with("{:.2f}%".format, facts.mfu_reported_steady)),
        Row(say("achieved"), _with(lambda rate: format.flop_rate(rate * 1e12), facts.achieved_tflops)),
    ]


def _result_rows(facts: Facts) -> list[Row]:
    in_bits = facts.val_metric == "bits_per_byte"
    best = say("best validation, bits per byte") if in_bits else say("best validation loss")
    last = say("last validation, bits per byte") if in_bits else say("last validation loss")
    return [
        Row(best, _with(format.loss, facts.best_val_loss)),
        Row(say("at iteration"), _with(_whole, facts.best_val_step)),
        Row(last, _with(format.loss, facts.final_val_loss)),
        Row(say("training loss at the last evaluation"), _with(format.loss, facts.final_train_loss)),
        Row(say("training loss, first line"), _with(format.loss, facts.loss_first)),
        Row(say("training loss, last line"), _with(format.loss, facts.loss_last)),
        Row(say("first loss that is not a number, at iteration"), _with(_whole, facts.nan_step)),
    ]


def _not_training(facts: Facts, ledger: Mapping[str, float] | None) -> float | None:
    """Waiting for data is a part of an update; logging, and updates under the profiler, are not."""
    total = sum(ledger.values()) if ledger else 0.0
    if not ledger or total <= 0:
        return facts.overhead_share
    return 1 - (ledger.get("train", 0.0) + ledger.get("data", 0.0)) / total


def key_figures(facts: Facts, ledger: Mapping[str, float] | None = None) -> list[Row]:
    """The few numbers that a reader looks for first; the reason is what stands below one."""
    best_at = _with(lambda at: say("at iteration {number}", number=f"{at:,}"), facts.best_val_step)
    share = _with("{:.1%}".format, _not_training(facts, ledger))
    spent = say("{share} of it not training", share=share) if share else ""
    in_bits = facts.val_metric == "bits_per_byte"
    shown = [
        Row(say("best bits per byte") if in_bits else say("best validation loss"),
            _with(format.loss, facts.best_val_loss), best_at),
        Row(say("steady iteration"), _with(format.milliseconds, facts.steady_ms)),
        Row(say("tokens per second"), _with(format.count, facts.tokens_per_s)),
        Row(say("total time"), _with(format.duration, facts.estimated_total_s), spent),
        Row(say("how it ended"), ending(facts),
            _with(lambda at: say("at iteration {number}", number=f"{at:,}"), facts.last_iteration)),
    ]  # fmt: skip
    return [row for row in shown if row.value]


def ending(facts: Facts) -> str:
    words = {
        "finished": say("finished"),
        "interrupted": say("interrupted"),
        "crashed": say("crashed"),
        "oom": say("out of memory"),
        "cut": say("log cut off"),
    }
    return words.get(facts.ended or "", "")


def severity_word(severity: Severity) -> str:
    words = {
        "problem": say("problem"),
        "warning": say("warning"),
        "advice": say("advice"),
        "info": say("info"),
    }
    return words[severity]


def phase_names() -> dict[str, str]:
    return {
        "startup": say("start-up"),
        "compile": say("compiling and warming up"),
        "data": say("waiting for data"),
        "train": say("training"),
        "eval": say("evaluation"),
        "checkpoint": say("checkpoints"),
        "pauses": say("evaluation and checkpoints"),
        "log": say("logging"),
        "other": say("the rest"),
    }


def _with(write: Callable[[T], str], value: T | None) -> str:
    return "" if value is None else write(value)


def _whole(value: int) -> str:
    return f"{value:,}"


def _listed(iterations: Sequence[int]) -> str:
    number = f"{len(iterations):,}"
    distances = {later - earlier for earlier, later in pairwise(iterations)}
    if len(distances) != 1 or min(distances) <= 0:
        return number
    return say("{number}, every {distance}", number=number, distance=f"{distances.pop():,}")
