"""Lines about a run, from its journal records: what it prints before it trains; forecast, profile, scaling;
next steps.

`RunConsole` prints all of them, `NanogptConsole` the next steps.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glassgpt.data.dataset import BUILT_IN
from glassgpt.files import expand_user_path
from glassgpt.format import (
    format_bytes,
    format_count,
    format_duration,
    format_epochs,
    format_flops_per_s,
    format_flops_per_token,
    format_ms,
)
from glassgpt.i18n import Message, say, translate
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import resume_command
from glassgpt.sanitize import sanitize_text
from glassgpt.show.facts_table import profile_caption

_MAX_KERNEL_NAME_CHARS = 64
_MAX_PROFILE_ROWS = 10

Line = tuple[str, str]  # label and text


# --- the first screen ---


def first_screen(record: Record, page_url: Callable[[Path], str]) -> Iterator[Line]:
    """Six lines: what is trained, on what, how long it takes, which loss to expect, where it is written, its
    page; then the choices that are not what the user asked for.

    `page_url` may start the page's server, which takes a moment: what comes before is printed by then.
    """
    yield translate("run_console.label.model"), _model(record)
    if record["machine"]:  # not of an imported run
        yield translate("run_console.label.device"), _device(record)
    forecast = record.get("forecast", {})
    if forecast:
        yield translate("run_console.label.time"), _time(record, forecast.get("total_s"))
    if "loss_curve" in forecast and not record["config"].get("eval_only"):
        yield translate("run_console.label.loss"), _loss(record, forecast)
    run_dir = (
        record["out_dir"] if record["machine"] else translate("run_console.imported", run=record["out_dir"])
    )
    yield translate("run_console.label.run"), run_dir
    if url := page_url(Path(record["out_dir"])):
        yield translate("run_console.label.page"), url
    for choice in record["choices"]:
        if choice.get("notable"):
            yield _choice(choice)


def details(record: Record) -> Iterator[Line]:
    """The rest: shape, data, every choice with its reason, what 100% MFU is, memory and speed."""
    model, peak, data, machine = record["model"], record["peak"], record["data"], record["machine"]
    if machine:
        versions = f"glassgpt {machine['glassgpt']}, torch {machine['torch']}"
        yield translate("run_console.label.versions"), versions
    shape = translate(
        "run_console.shape",
        arch=model["arch"],
        layers=model["n_layer"],
        heads=model["n_head"],
        width=model["n_embd"],
        context=model["block_size"],
    )
    yield translate("run_console.label.shape"), shape
    if "tokens" in data:
        tokens = {f"{split}_tokens": data["tokens"][split] for split in ("train", "val")}
        text = translate("run_console.splits", tokenizer=data["tokenizer"], **tokens)
        yield translate("run_console.label.data"), text
    for choice in record["choices"]:
        if not choice.get("notable"):
            yield _choice(choice)
    source = str(peak["source"])
    flops = format_flops_per_token(model["flops_per_token"])
    if not peak["value"]:
        reason = source.removeprefix("unknown: ")
        yield "MFU", translate("run_console.mfu.unknown", flops=flops, reason=reason)
    else:
        if peak["table"] and peak["measured"]:
            measured = format_flops_per_s(peak["measured"])
            source = translate("run_console.mfu.table_and_measured", source=source, measured=measured)
        yield "MFU", translate("run_console.mfu", flops=flops, peak=peak["value"], source=source)
    if "forecast" in record:
        yield translate("run_console.label.expected"), forecast_line(record["forecast"])


def kernels_label(triton: bool, compiled: bool, graph: bool) -> Message:
    """Which kernels compute, in words."""
    kernels = say("run_console.kernels.plain")
    if triton:
        kernels = say("run_console.kernels.triton")
    elif compiled:
        kernels = say("run_console.kernels.compiled")
    return say("run_console.kernels.graph", kernels=kernels) if graph else kernels


def _model(record: Record) -> str:
    model, data = record["model"], record["data"]
    values = {"arch": model["arch"], "parameters": model["parameters"], "data": data["name"]}
    if "tokens" not in data:  # of an imported run
        return translate("run_console.model.unknown_data", **values)
    tokens = data["tokens"]["train"]
    return translate("run_console.model", **values, tokens=tokens, tokenizer=data["tokenizer"])


def _device(record: Record) -> str:
    chosen = {str(choice["name"]): choice["value"] for choice in record["choices"]}
    machine = record["machine"]
    name = str(machine.get("device", {}).get("name") or chosen.get("device", "?"))
    ranks = record.get("team", {}).get("size", 1)
    kind = str(chosen.get("device", "")).partition(":")[0]
    device: str | Message = sanitize_text(name)
    if kind == "cpu":
        threads = machine.get("cpu", {}).get("torch_threads")
        device = "cpu"
        if threads is not None:
            device = say("run_console.cpu.one_thread") if threads == 1 else say("run_console.cpu", n=threads)
    if ranks > 1:
        device = say("run_console.ranks", ranks=ranks, device=device)
    kernels = kernels_label(
        chosen.get("kernels") == "triton", chosen.get("compile") == "on", chosen.get("graph") == "on"
    )
    return translate("run_console.device", device=device, dtype=chosen.get("dtype", "?"), kernels=kernels)


def _time(record: Record, total_s: list[float] | None) -> str:
    config, updates = record["config"], say_updates(record["config"]["max_iters"])
    epochs = format_epochs(record["data"].get("epochs", float("nan")))
    length = say("run_console.length", updates=updates, epochs=epochs)
    if epochs == "1":
        length = say("run_console.length.one_epoch", updates=updates)
    if not total_s:
        return translate("run_console.time.unknown", length=length)
    band = {"low": total_s[0], "mid": total_s[1], "high": total_s[2]}
    if config.get("eval_only"):
        return translate("run_console.time.eval_only", **band)
    if record["iter"]:
        left = max(0, config["max_iters"] - record["iter"])
        return translate("run_console.time.resumed", left=left, length=length, **band)
    return translate("run_console.time", length=length, **band)


def _loss(record: Record, forecast: Record) -> str:
    if not forecast["loss_curve"]:
        return translate("run_console.loss.unknown")
    _, low, mid, high = forecast["loss_curve"][-1]
    overfits_at = forecast.get("overfits_at")
    if overfits_at is not None and overfits_at < record["config"]["max_iters"]:
        return translate("run_console.loss.overfits", low=low, mid=mid, high=high, update=overfits_at)
    return translate("run_console.loss", low=low, mid=mid, high=high)


def _choice(choice: Record) -> Line:
    value = str(choice["value"])
    shown = value if value and value.isprintable() else repr(value)  # a newline must not break the line
    return str(choice["name"]), f"{shown}   ({choice['reason']})"


def say_updates(count: int) -> Message:
    """1 update, 2,000 updates"""
    return say("run_console.updates.one") if count == 1 else say("run_console.updates.many", count=count)


# --- forecast ---


def forecast_line(forecast: Record) -> str:
    """Memory and speed of the forecast of a `run` record, and what they are based on."""
    text = translate("run_console.forecast.memory", memory=forecast["memory_bytes"])
    if forecast["tokens_per_s"]:
        low, _, high = forecast["tokens_per_s"]
        speed = translate("run_console.forecast.speed", low=low, high=high)
        text = f"{text}, {speed}"
    return f"{text}   ({forecast['why']})"


def revised_forecast_line(record: Record) -> str:
    """A `forecast` record: what replaces the forecast of the `run` record."""
    low, mid, high = record["total_s"]
    return translate(
        "run_console.forecast.revised",
        low=low,
        mid=mid,
        high=high,
        updates=say_updates(record["updates"]),
        seconds=record["seconds"],
    )


def forecast_vs_actual_line(forecast: Record) -> str:
    """The forecast of an `end` record beside what was measured; empty if nothing was measured."""
    memory, speed, total = (forecast[name] for name in ("memory_bytes", "tokens_per_s", "total_s"))
    parts = []
    if memory["measured"]:
        measured, expected = format_bytes(memory["measured"]), format_bytes(memory["expected"])
        parts.append(translate("run_console.actual.memory", measured=measured, expected=expected))
    if speed["measured"] and speed["expected"]:
        measured = f"{format_count(speed['measured'])} tok/s"
        low, high = (format_count(speed["expected"][at]) for at in (0, 2))
        parts.append(translate("run_console.actual.range", measured=measured, low=low, high=high))
    if total["measured"] and total["expected"]:
        measured = format_duration(total["measured"])
        low, high = (format_duration(total["expected"][at]) for at in (0, 2))
        parts.append(translate("run_console.actual.range", measured=measured, low=low, high=high))
        if total.get("tuning_s"):  # journals of older versions do not have it
            parts.append(translate("run_console.actual.without_tuning", seconds=total["tuning_s"]))
    return ", ".join(parts)


def scaling_efficiency_line(ranks: Record) -> str:
    """How well several ranks scaled, from an `end` record.

    Empty with FSDP, which waits inside the passes: compute and communication cannot be timed separately.
    """
    if ranks["efficiency"] is None:
        return ""
    return translate(
        "run_console.scaling",
        ranks=len(ranks["work_s"]),
        efficiency=ranks["efficiency"],
        all_reduce=ranks["exchanging"],
        waiting=ranks["waiting"],
        slowest=ranks["slowest"],
    )


# --- profile ---


def profile_lines(record: Mapping[str, Any]) -> list[str]:
    """A sentence about the profiled updates, then the slowest kernels: share, time and calls per update."""
    updates = max(1, record["updates"])
    rows = [
        f"{kernel['share']:>6.1%}  {format_ms(kernel['ms'] / updates):>8}  "
        f"{kernel['calls'] / updates:>6.4g} x  {short_kernel_name(kernel['name'])}"
        for kernel in record["top"][:_MAX_PROFILE_ROWS]
    ]
    return [profile_caption(record), *rows]


def short_kernel_name(name: str) -> str:
    """A kernel's name without template arguments, which may fill a page, cut to a line."""
    plain = name.removeprefix("void ")
    while "<" in plain and plain != (shorter := re.sub(r"<[^<>]*>", "", plain)):
        plain = shorter
    plain = plain.partition("(")[0].replace("at::native::", "").strip() or name
    return plain if len(plain) <= _MAX_KERNEL_NAME_CHARS else plain[: _MAX_KERNEL_NAME_CHARS - 1] + "…"


# --- next steps ---


class NextStep(NamedTuple):
    """A line of advice at the end of a run. `command`: to be copied as it is; or empty."""

    label: str
    text: str
    command: str = ""


def suggest_next_steps(end: Record, run: Record) -> list[NextStep]:
    """How to resume, sample or train longer, by the reason of the `end` record."""
    if "out_dir" in end:  # the folder was removed during the run
        run = run | {"out_dir": end["out_dir"]}
    out_dir = expand_user_path(run.get("out_dir", "RUN"))
    quoted_dir = shlex.quote(str(out_dir))
    group = run.get("team", {})
    is_one_machine = group and group["size"] == group["per_machine"]
    resume = resume_command(out_dir, *([f"--nproc={group['size']}"] if is_one_machine else []))

    next_label, problem = translate("run_console.label.next"), translate("run_console.label.problem")
    reason, saved = end["reason"], end.get("last_checkpoint")
    if reason == "not finite":
        norms = ", ".join(f"{norm:.3g}" for norm in end["recent_grad_norms"][-5:])
        last_good = translate("run_console.no_checkpoint_yet")
        if saved:
            last_good = translate("run_console.last_good_checkpoint", checkpoint=saved)
        return [
            NextStep(problem, translate("run_console.not_finite", update=end["bad_iter"])),
            NextStep(translate("run_console.label.norms"), translate("run_console.last_norms", norms=norms)),
            NextStep(next_label, last_good),
            NextStep("", translate("run_console.not_finite.action")),
        ]
    if reason == "interrupted":
        return [NextStep(next_label, translate("run_console.resume_with"), resume)]
    if reason == "crashed":
        advice = NextStep(next_label, translate("run_console.no_checkpoint"))
        if saved:
            text = translate("run_console.resume_from_checkpoint", checkpoint=saved)
            advice = NextStep(next_label, text, resume)
        return [NextStep(problem, str(end.get("error", ""))), advice]
    if reason != "finished":
        return []
    longer = f"{resume} --max_iters={2 * run['config']['max_iters'] if run else 'N'}"
    steps = [
        NextStep(next_label, translate("run_console.next.sample"), f"glass sample {quoted_dir}"),
        NextStep("", translate("run_console.next.longer"), longer),
    ]
    if run.get("data", {}).get("name") in BUILT_IN:
        own_text = translate("run_console.next.own_text")
        steps.append(NextStep("", own_text, "glass train my.txt"))
    # `glass runs` without a folder lists runs/; the out_dir of a nanoGPT config is often elsewhere.
    parent = "runs" if "out_dir" not in run else str(out_dir.parent)
    all_runs = "glass runs" if parent == "runs" else f"glass runs {shlex.quote(parent)}"
    return [*steps, NextStep("", translate("run_console.next.all_runs"), all_runs)]
