"""The facts of a run as rows of (name, value), with units, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from glassgpt import format
from glassgpt.i18n import say
from glassgpt.record.finding import Severity
from glassgpt.runs.facts import Facts

T = TypeVar("T")


@dataclass(frozen=True)
class TableRow:
    name: str
    value: str
    reason: str = ""


def fact_groups(facts: Facts) -> list[tuple[str, list[TableRow]]]:
    """Titled groups of rows; a fact that the log does not support has no row."""

    def row(name: str, format_value: Callable[[T], str], value: T | None) -> TableRow:
        return TableRow(name, _format_or_empty(format_value, value))

    run = [
        TableRow(say("how it ended"), exit_status_label(facts)),
        row(say("logged iterations"), format.format_integer, facts.iterations_logged),
        row(say("first iteration"), format.format_integer, facts.first_iteration),
        row(say("last iteration"), format.format_integer, facts.last_iteration),
        row(say("log interval, in iterations"), format.format_integer, facts.log_interval),
        row(say("processes (a resume adds one)"), format.format_integer, facts.segments),
        row(say("parameters"), format.format_parameters, facts.parameters),
        row(say("tokens per iteration"), format.format_integer, facts.tokens_per_iteration),
        row(say("FLOPs per token"), format.format_count, facts.flops_per_token),
    ]
    times = [
        row(say("steady iteration, median"), format.format_ms, facts.steady_ms),
        row(say("steady iteration, 95th percentile"), format.format_ms, facts.steady_p95_ms),
        row(say("first iteration, time"), format.format_ms, facts.first_iteration_ms),
        row(say("start-up in it"), format.format_ms, facts.startup_ms),
        row(say("an evaluation adds"), format.format_ms, facts.eval_overhead_ms),
        row(say("evaluations"), _count_and_interval, facts.eval_steps),
        row(say("checkpoints"), _count_and_interval, facts.checkpoint_steps),
        row(say("estimated total time"), format.format_duration, facts.estimated_total_s),
        row(say("evaluation, checkpoints and start-up"), "{:.1%}".format, facts.overhead_share),
        row(say("tokens per second"), format.format_count, facts.tokens_per_s),
        row(say("MFU as reported, median"), "{:.2f}%".format, facts.mfu_reported_steady),
        row(
            say("achieved"),
            lambda tflops: format.format_flops_per_s(tflops * 1e12),
            facts.achieved_tflops,
        ),
    ]
    in_bits = facts.val_metric == "bits_per_byte"
    best = say("best validation, bits per byte") if in_bits else say("best validation loss")
    last = say("last validation, bits per byte") if in_bits else say("last validation loss")
    losses = [
        row(best, format.format_loss, facts.best_val_loss),
        row(say("at iteration"), format.format_integer, facts.best_val_step),
        row(last, format.format_loss, facts.final_val_loss),
        row(say("training loss at the last evaluation"), format.format_loss, facts.final_train_loss),
        row(say("training loss, first line"), format.format_loss, facts.loss_first),
        row(say("training loss, last line"), format.format_loss, facts.loss_last),
        row(say("first NaN or infinite loss, at iteration"), format.format_integer, facts.nan_step),
    ]
    groups = [(say("The run"), run), (say("Its time"), times), (say("Its losses"), losses)]
    return [(title, [row for row in rows if row.value]) for title, rows in groups]


def key_figures(facts: Facts, ledger: Mapping[str, float] | None = None) -> list[TableRow]:
    """The most important numbers, for the top of the report; `reason` is the small print below one."""

    def at_iteration(iteration: int | None) -> str:
        return _format_or_empty(lambda at: say("at iteration {number}", number=f"{at:,}"), iteration)

    # Waiting for data is part of an update; logging, and updates under the profiler, are not.
    overhead = facts.overhead_share
    if ledger and (total_s := sum(ledger.values())) > 0:
        overhead = 1 - (ledger.get("train", 0.0) + ledger.get("data", 0.0)) / total_s
    overhead_note = ""
    if overhead is not None:
        overhead_note = say("{share} of it not training", share=f"{overhead:.1%}")
    best = say("best bits per byte") if facts.val_metric == "bits_per_byte" else say("best validation loss")
    best_val = _format_or_empty(format.format_loss, facts.best_val_loss)
    total = _format_or_empty(format.format_duration, facts.estimated_total_s)
    rows = [
        TableRow(best, best_val, at_iteration(facts.best_val_step)),
        TableRow(say("steady iteration"), _format_or_empty(format.format_ms, facts.steady_ms)),
        TableRow(say("tokens per second"), _format_or_empty(format.format_count, facts.tokens_per_s)),
        TableRow(say("total time"), total, overhead_note),
        TableRow(say("how it ended"), exit_status_label(facts), at_iteration(facts.last_iteration)),
    ]
    return [row for row in rows if row.value]


def exit_status_label(facts: Facts) -> str:
    labels = {
        "finished": say("finished"),
        "interrupted": say("interrupted"),
        "crashed": say("crashed"),
        "oom": say("out of memory"),
        "cut": say("log cut off"),
    }
    return labels.get(facts.ended or "", "")


def severity_label(severity: Severity) -> str:
    labels = {
        "problem": say("problem"),
        "warning": say("warning"),
        "advice": say("advice"),
        "info": say("info"),
    }
    return labels[severity]


def phase_labels() -> dict[str, str]:
    """Names of the ledger's phases, and of `pauses`: evaluation and checkpoints together."""
    return {
        "startup": say("start-up"),
        "compile": say("compile and warm-up"),
        "data": say("waiting for data"),
        "train": say("training"),
        "eval": say("evaluation"),
        "checkpoint": say("checkpoints"),
        "pauses": say("evaluation and checkpoints"),
        "log": say("logging"),
        "other": say("the rest"),
    }


def _format_or_empty(format_value: Callable[[T], str], value: T | None) -> str:
    return "" if value is None else format_value(value)


def _count_and_interval(iterations: Sequence[int]) -> str:
    """How many, and at which interval if it is always the same."""
    count = f"{len(iterations):,}"
    intervals = {later - earlier for earlier, later in pairwise(iterations)}
    if len(intervals) != 1 or min(intervals) <= 0:
        return count
    return say("{number}, every {distance}", number=count, distance=f"{intervals.pop():,}")
