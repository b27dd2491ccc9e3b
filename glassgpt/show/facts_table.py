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
class TableRow:
    name: str
    value: str
    reason: str = ""


def fact_groups(facts: Facts) -> list[tuple[str, list[TableRow]]]:
    """What the log supports, in words; a fact it cannot support has no row."""
    groups = [
        (say("The run"), _run_rows(facts)),
        (say("Its time"), _time_rows(facts)),
        (say("Its losses"), _result_rows(facts)),
    ]
    return [(title, [row for row in rows if row.value]) for title, rows in groups]


def _run_rows(facts: Facts) -> list[TableRow]:
    return [
        TableRow(say("how it ended"), exit_status_label(facts)),
        TableRow(say("logged iterations"), f"{facts.iterations_logged:,}"),
        TableRow(say("first iteration"), _format_or_empty(_format_int, facts.first_iteration)),
        TableRow(say("last iteration"), _format_or_empty(_format_int, facts.last_iteration)),
        TableRow(say("iterations from line to line"), _format_or_empty(_format_int, facts.log_interval)),
        TableRow(say("processes (a resume adds one)"), f"{facts.segments:,}"),
        TableRow(say("parameters"), _format_or_empty(format.format_parameters, facts.parameters)),
        TableRow(say("tokens per iteration"), _format_or_empty(_format_int, facts.tokens_per_iteration)),
        TableRow(say("FLOPs per token"), _format_or_empty(format.format_count, facts.flops_per_token)),
    ]


def _time_rows(facts: Facts) -> list[TableRow]:
    return [
        TableRow(say("steady iteration, median"), _format_or_empty(format.format_ms, facts.steady_ms)),
        TableRow(
            say("steady iteration, 95th percentile"), _format_or_empty(format.format_ms, facts.steady_p95_ms)
        ),
        TableRow(say("first iteration, time"), _format_or_empty(format.format_ms, facts.first_iteration_ms)),
        TableRow(say("start-up in it"), _format_or_empty(format.format_ms, facts.startup_ms)),
        TableRow(say("an evaluation adds"), _format_or_empty(format.format_ms, facts.eval_overhead_ms)),
        TableRow(say("evaluations"), _format_or_empty(_count_and_interval, facts.eval_steps)),
        TableRow(say("checkpoints"), _format_or_empty(_count_and_interval, facts.checkpoint_steps)),
        TableRow(
            say("estimated total time"), _format_or_empty(format.format_duration, facts.estimated_total_s)
        ),
        TableRow(
            say("evaluation, checkpoints and start-up"),
            _format_or_empty("{:.1%}".format, facts.overhead_share),
        ),
        TableRow(say("tokens per second"), _format_or_empty(format.format_count, facts.tokens_per_s)),
        TableRow(
            say("MFU as reported, median"), _format_or_empty("{:.2f}%".format, facts.mfu_reported_steady)
        ),
        TableRow(
            say("achieved"),
            _format_or_empty(lambda rate: format.format_flops_per_s(rate * 1e12), facts.achieved_tflops),
        ),
    ]


def _result_rows(facts: Facts) -> list[TableRow]:
    in_bits = facts.val_metric == "bits_per_byte"
    best = say("best validation, bits per byte") if in_bits else say("best validation loss")
    last = say("last validation, bits per byte") if in_bits else say("last validation loss")
    return [
        TableRow(best, _format_or_empty(format.format_loss, facts.best_val_loss)),
        TableRow(say("at iteration"), _format_or_empty(_format_int, facts.best_val_step)),
        TableRow(last, _format_or_empty(format.format_loss, facts.final_val_loss)),
        TableRow(
            say("training loss at the last evaluation"),
            _format_or_empty(format.format_loss, facts.final_train_loss),
        ),
        TableRow(say("training loss, first line"), _format_or_empty(format.format_loss, facts.loss_first)),
        TableRow(say("training loss, last line"), _format_or_empty(format.format_loss, facts.loss_last)),
        TableRow(
            say("first loss that is not a number, at iteration"),
            _format_or_empty(_format_int, facts.nan_step),
        ),
    ]


def _not_training(facts: Facts, ledger: Mapping[str, float] | None) -> float | None:
    """Waiting for data is a part of an update; logging, and updates under the profiler, are not."""
    total = sum(ledger.values()) if ledger else 0.0
    if not ledger or total <= 0:
        return facts.overhead_share
    return 1 - (ledger.get("train", 0.0) + ledger.get("data", 0.0)) / total


def key_figures(facts: Facts, ledger: Mapping[str, float] | None = None) -> list[TableRow]:
    """The few numbers that a reader looks for first; the reason is what stands below one."""
    best_at = _format_or_empty(lambda at: say("at iteration {number}", number=f"{at:,}"), facts.best_val_step)
    share = _format_or_empty("{:.1%}".format, _not_training(facts, ledger))
    spent = say("{share} of it not training", share=share) if share else ""
    in_bits = facts.val_metric == "bits_per_byte"
    shown = [
        TableRow(say("best bits per byte") if in_bits else say("best validation loss"),
            _format_or_empty(format.format_loss, facts.best_val_loss), best_at),
        TableRow(say("steady iteration"), _format_or_empty(format.format_ms, facts.steady_ms)),
        TableRow(say("tokens per second"), _format_or_empty(format.format_count, facts.tokens_per_s)),
        TableRow(say("total time"), _format_or_empty(format.format_duration, facts.estimated_total_s), spent),
        TableRow(say("how it ended"), exit_status_label(facts),
            _format_or_empty(lambda at: say("at iteration {number}", number=f"{at:,}"), facts.last_iteration)),
    ]  # fmt: skip
    return [row for row in shown if row.value]


def exit_status_label(facts: Facts) -> str:
    words = {
        "finished": say("finished"),
        "interrupted": say("interrupted"),
        "crashed": say("crashed"),
        "oom": say("out of memory"),
        "cut": say("log cut off"),
    }
    return words.get(facts.ended or "", "")


def severity_label(severity: Severity) -> str:
    words = {
        "problem": say("problem"),
        "warning": say("warning"),
        "advice": say("advice"),
        "info": say("info"),
    }
    return words[severity]


def phase_labels() -> dict[str, str]:
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


def _format_or_empty(write: Callable[[T], str], value: T | None) -> str:
    return "" if value is None else write(value)


def _format_int(value: int) -> str:
    return f"{value:,}"


def _count_and_interval(iterations: Sequence[int]) -> str:
    number = f"{len(iterations):,}"
    distances = {later - earlier for earlier, later in pairwise(iterations)}
    if len(distances) != 1 or min(distances) <= 0:
        return number
    return say("{number}, every {distance}", number=number, distance=f"{distances.pop():,}")
