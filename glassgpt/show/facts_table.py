"""The facts of a run as rows of (name, value), with units, for the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from glassgpt.format import (
    format_count,
    format_duration,
    format_flops_per_s,
    format_if_known,
    format_integer,
    format_loss,
    format_ms,
    format_parameters,
    format_percent,
    format_percent_value,
)
from glassgpt.i18n import translate
from glassgpt.record.finding import Severity
from glassgpt.runs.facts import Facts

T = TypeVar("T")

MAX_LISTED = 5  # regimes
MAX_ESTIMATE_ERROR = 0.05  # of the time by stamps: an estimate that near to it adds nothing
_LEDGER_PHASES = frozenset(("compile", "data", "eval", "log"))  # of a journal: nothing is estimated


@dataclass(frozen=True)
class TableRow:
    name: str
    value: str
    reason: str = ""


def fact_groups(facts: Facts) -> list[tuple[str, list[TableRow]]]:
    """Titled groups of rows; a fact that the log does not support has no row."""

    def row(name: str, format_value: Callable[[T], str], value: T | None) -> TableRow:
        return TableRow(name, format_if_known(format_value, value))

    def overall(label: str) -> str:
        """Names a figure as one over all regimes, where there are several."""
        return translate("label.over_all", label=label) if len(facts.regimes) > 1 else label

    def of_median(label: str) -> str:
        """The same of a rate, which is none of the whole time: it follows from the median iteration."""
        return translate("label.of_median", label=label) if len(facts.regimes) > 1 else label

    total_s, stamped_s = facts.total_s, facts.stamped_s
    is_estimate = total_s not in (None, facts.wall_s, stamped_s)
    is_stamped = is_estimate and math.isclose(total_s or 0, stamped_s or 0, rel_tol=MAX_ESTIMATE_ERROR)
    has_devices = (facts.device_count or 1) > 1
    run = [
        TableRow(translate("label.how_it_ended"), exit_status_label(facts)),
        row(
            translate("label.logged_iterations"),
            format_integer,
            # 0 beside evaluations, whose lines have both losses, looks as if nothing had been logged.
            facts.iterations_logged if facts.iterations_logged or not facts.eval_steps else None,
        ),
        row(translate("label.first_iteration"), format_integer, facts.first_iteration),
        row(translate("label.last_iteration"), format_integer, facts.last_iteration),
        row(translate("label.log_interval"), format_integer, facts.log_interval),
        row(translate("label.processes"), format_integer, facts.segments),
        row(translate("label.devices"), _devices_and_replicas, facts if has_devices else None),
        row(translate("label.parameters"), format_parameters, facts.parameters),
        row(translate("label.tokens_per_iteration"), format_integer, facts.tokens_per_iteration),
        row(translate("label.flops_per_token"), format_count, facts.flops_per_token),
    ]
    times = [
        row(overall(translate("label.steady_iteration_median")), format_ms, facts.steady_ms),
        row(overall(translate("label.steady_iteration_p95")), format_ms, facts.steady_p95_ms),
        TableRow(translate("label.regimes"), _regimes(facts)),
        row(
            translate("label.first_iteration_time"),
            format_ms,
            None if facts.begins_late else facts.first_iteration_ms,
        ),
        row(translate("label.evaluation_adds"), format_ms, facts.eval_overhead_typical_ms),
        TableRow(translate("label.evaluations"), _count_and_interval(facts, facts.eval_steps)),
        TableRow(translate("label.checkpoints"), _count_and_interval(facts, facts.checkpoint_steps)),
        row(_total_time_label(facts), format_duration, None if is_stamped else total_s),
        row(
            translate("label.total_time_stamped") if is_stamped else translate("label.stamped_time"),
            format_duration,
            None if stamped_s == total_s else stamped_s,
        ),
        row(translate("label.overhead_share"), format_percent, facts.pause_share),
        row(translate("label.stall_share"), format_percent, facts.stall_share or None),
        row(of_median(translate("label.tokens_per_second")), format_count, facts.tokens_per_s),
        row(overall(translate("label.mfu_reported_median")), format_percent_value, facts.mfu_reported_steady),
        row(
            of_median(translate("label.achieved_flops")),
            lambda tflops: format_flops_per_s(tflops * 1e12),
            facts.achieved_tflops,
        ),
        row(
            of_median(translate("label.achieved_flops_per_device")),
            lambda tflops: format_flops_per_s(tflops * 1e12),
            facts.achieved_tflops_per_device if has_devices else None,
        ),
    ]
    in_bits = facts.val_metric == "bits_per_byte"
    best = translate("label.best_validation_bits") if in_bits else translate("label.best_validation_loss")
    last = translate("label.last_validation_bits") if in_bits else translate("label.last_validation_loss")
    losses = [
        row(best, format_loss, facts.best_val_loss),
        row(translate("label.best_validation_iteration"), format_integer, facts.best_val_step),
        row(last, format_loss, facts.final_val_loss),
        row(translate("label.training_loss_last_evaluation"), format_loss, facts.final_train_loss),
        row(translate("label.training_loss_first_line"), format_loss, facts.loss_first),
        row(translate("label.training_loss_last_line"), format_loss, facts.loss_last),
        *(TableRow(str(metric["name"]), _metric_ends(metric)) for metric in facts.metrics),
        row(translate("label.first_nonfinite_iteration"), format_integer, facts.nan_step),
    ]
    groups = [
        (translate("label.group.run"), run),
        (translate("label.group.time"), times),
        (translate("label.group.losses"), losses),
    ]
    return [(title, [row for row in rows if row.value]) for title, rows in groups]


def key_figures(facts: Facts) -> list[TableRow]:
    """The most important numbers, for the top of the report; `reason` is the small print below one."""

    def at_iteration(iteration: int | None) -> str:
        return format_if_known(lambda at: translate("label.at_iteration", number=at), iteration)

    overhead_note = format_if_known(
        lambda share: translate("label.share_not_training", share=share), facts.pause_share
    )
    best = (
        translate("label.best_bits")
        if facts.val_metric == "bits_per_byte"
        else translate("label.best_validation_loss")
    )
    best_val = format_if_known(format_loss, facts.best_val_loss)
    total = format_if_known(format_duration, facts.total_s)
    over_all = translate("label.median_over_all") if len(facts.regimes) > 1 else ""
    rows = [
        TableRow(best, best_val, at_iteration(facts.best_val_step)),
        TableRow(translate("label.steady_iteration"), format_if_known(format_ms, facts.steady_ms), over_all),
        TableRow(
            translate("label.tokens_per_second"), format_if_known(format_count, facts.tokens_per_s), over_all
        ),
        TableRow(
            translate("label.time_so_far") if facts.ended is None else _total_time_label(facts),
            total,
            overhead_note,
        ),
        TableRow(
            translate("label.how_it_ended"), exit_status_label(facts), at_iteration(facts.last_iteration)
        ),
    ]
    return [row for row in rows if row.value]


def _metric_ends(metric: Mapping[str, object]) -> str:
    """From where to where it went, and its best value, or the highest; of noise its mean."""
    if metric["is_noise"]:
        return translate("label.metric_mean", mean=metric["mean"], count=metric["values"])
    if metric["values"] == 1:
        return format_loss(float(str(metric["last"])))
    is_lower_better = metric["higher_is_better"] is False
    extreme = (
        translate("verdict.metric_lowest", value=metric["lowest"])
        if is_lower_better
        else translate("verdict.metric_highest", value=metric["highest"])
    )
    values = {"first": metric["first"], "last": metric["last"], "extreme": extreme}
    if metric["mean_of"] == 1:
        return translate("label.metric_ends", **values)
    return translate("label.metric_ends_of_means", **values, mean_of=metric["mean_of"])


def _total_time_label(facts: Facts) -> str:
    has_ledger = not _LEDGER_PHASES.isdisjoint(facts.seconds_by_phase or ())
    if facts.total_s is not None and (has_ledger or facts.total_s == facts.wall_s):
        return translate("label.total_time")
    if facts.total_s is not None and facts.total_s == facts.stamped_s:
        return translate("label.total_time_stamped")
    is_whole = facts.ended == "finished" and not facts.begins_late
    return translate("label.estimated_total_time") if is_whole else translate("label.logged_time")


def _devices_and_replicas(facts: Facts) -> str:
    """4; or 8 (2 replicas of the model)."""
    devices, replicas = facts.device_count or 1, facts.data_parallel_size
    if replicas is None or replicas == devices:
        return format_integer(devices)
    return translate("label.devices_and_replicas", devices=devices, replicas=replicas)


def exit_status_label(facts: Facts) -> str:
    return state_label(facts.ended or "")


def state_label(state: str) -> str:
    """Of a run in a list, too. Any other reason to end is written as its journal has it."""
    labels = {
        "running": translate("label.state.running"),
        "died": translate("label.state.died"),
        "finished": translate("label.ended.finished"),
        "interrupted": translate("label.ended.interrupted"),
        "crashed": translate("label.ended.crashed"),
        "oom": translate("label.ended.out_of_memory"),
        "cut": translate("label.ended.log_cut"),
    }
    return labels.get(state, state)


def severity_label(severity: Severity) -> str:
    labels = {
        "problem": translate("severity.problem"),
        "warning": translate("severity.warning"),
        "advice": translate("severity.advice"),
        "info": translate("severity.info"),
    }
    return labels[severity]


def phase_labels() -> dict[str, str]:
    """Names of the ledger's phases, and of `pauses`: evaluation and checkpoints together."""
    return {
        "startup": translate("phase.startup"),
        "startup_and_eval": translate("phase.startup_and_eval"),
        "compile": translate("phase.compile"),
        "data": translate("phase.data"),
        "train": translate("phase.train"),
        "eval": translate("phase.eval"),
        "checkpoint": translate("phase.checkpoint"),
        "pauses": translate("phase.pauses"),
        "stall": translate("phase.stall"),
        "log": translate("phase.log"),
        "other": translate("phase.other"),
    }


def profile_caption(record: Mapping[str, Any]) -> str:
    """What was profiled, how much of that time kernels ran, and where the trace is."""
    updates = max(1, int(record["updates"]))
    profiled = translate("report.profile.operators")
    if record["of"] == "kernels":
        profiled = translate("report.profile.kernels")
    return translate(
        "report.profile.caption",
        first=record["from_iter"] + 1,
        last=record["from_iter"] + updates,
        time=record["wall_ms"] / updates,
        of=profiled,
        busy=record["busy"],
        trace=record["trace"],
        place="ui.perfetto.dev",
    )


def _regimes(facts: Facts) -> str:
    """Where the step time changed, and to what; empty if it did not."""
    if len(facts.regimes) < 2:
        return ""
    shown = [
        translate("label.regime", ms=regime["steady_ms"], last=regime["last_iteration"])
        for regime in facts.regimes[:MAX_LISTED]
    ]
    return "; ".join(shown + ["…"] * (len(facts.regimes) > MAX_LISTED))


def _count_and_interval(facts: Facts, iterations: Sequence[int] | None) -> str:
    """How many, and at which interval if it is always the same; of two, if the first came after as many."""
    if iterations is None:  # without numbers there may be some
        has_some = facts.first_iteration is None or facts.val_metric is not None
        return "" if has_some else translate("label.none_recognised")
    if not iterations:  # an excerpt may lack them, and a program may make some without a word
        return translate("label.none_logged")
    count = f"{len(iterations):,}"
    intervals = {later - earlier for earlier, later in pairwise(iterations)}
    is_regular = len(intervals) == 1 and (len(iterations) > 2 or iterations[0] <= max(intervals))
    if not is_regular or min(intervals) <= 0:
        return count
    return translate("label.count_and_interval", number=count, distance=intervals.pop())
