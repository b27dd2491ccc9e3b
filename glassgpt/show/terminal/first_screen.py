"""What a run prints before it trains, from its `run` record.

Six lines: what is trained, on what, how long it takes, which loss to expect, where it is written, its page;
then the choices that are not what the user asked for. `--verbose` prints all other choices too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from glassgpt.format import (
    format_epochs,
    format_flops_per_s,
    format_flops_per_token,
)
from glassgpt.i18n import Message, say, translate
from glassgpt.record.journal import Record
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.run_lines import forecast_line, say_updates

Line = tuple[str, str]  # label and text


def first_screen(record: Record, page_url: Callable[[Path], str]) -> Iterator[Line]:
    """`page_url` may start the page's server, which takes a moment: what comes before is printed by then."""
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
