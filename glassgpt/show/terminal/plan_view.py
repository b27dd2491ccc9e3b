"""What `glass plan` prints: a plan, the proposal of --hours, the table of --cards."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from glassgpt.estimate.loss_law import perplexity
from glassgpt.format import (
    format_bytes,
    format_count,
    format_duration,
    format_flops_per_token,
    format_parameters,
    pluralize,
)
from glassgpt.plan.estimates import ParallelismComparison, TimeEstimate, assumptions
from glassgpt.plan.plan_warnings import PlanProblem, busy_machine_problem
from glassgpt.plan.planning import Plan
from glassgpt.plan.propose import Proposal, Recommendation
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_line

_COLOURS = (
    "cyan", "blue", "magenta", "green", "yellow", "red", "white", "bright_black", "bright_blue",
    "bright_magenta",
)  # fmt: skip
_STYLES = {"error": "bold red", "warning": "bold yellow", "hint": "bold cyan"}
_BAR_WIDTH = 60
_INDENT = 14
_MAX_TABLE_COLUMNS = 1000
# What is printed for names that --json and journals keep.
_LABELS = {
    "working space": "cuBLAS workspace",
    "copy to be saved": "checkpoint copy",
    "as it is": "with these settings",
}


def print_plan(plan: Plan, name: str, out: Console) -> None:
    title = f"{sanitize_line(name)} on {sanitize_line(plan.target.title)}"
    out.print(Text(title, style="bold"), soft_wrap=True)
    if plan.target.alternatives:
        alternatives = ", ".join(plan.target.alternatives)
        out.print(Text(f"(that name also matches {alternatives})", style="dim"), soft_wrap=True)
    out.print()
    _print_model(plan, out)
    _print_memory(plan, out)
    if plan.parallelism is not None:
        _print_data_parallel(plan, plan.parallelism, out)
    if plan.times is None:
        unknown = f"unknown: the card table has no {plan.spec.workload.dtype} peak for this card"
        if plan.target.peak_flops_per_s("float32"):
            unknown += "; it has one for --dtype=float32"
        _print_rows([("time", unknown)], out)
    else:
        _print_time(plan, plan.times, out)
    if not plan.config.eval_only:
        _print_loss_and_data(plan, out)
    _print_problems(plan.problems, out)


def print_proposal(proposal: Proposal, out: Console, written: str) -> None:
    out.print(Text(proposal.summary, style="bold"), soft_wrap=True)
    out.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("parameters", "layers x width", "tokens", "epochs", "tokens/s", "expected loss"):
        table.add_column(heading, justify="right")
    for option in proposal.considered:
        low, mid, high = option.loss
        table.add_row(
            format_parameters(option.parameters),
            f"{option.n_layer} x {option.n_embd}",
            format_count(option.tokens),
            f"{option.epochs:.2g}",
            format_count(option.tokens_per_s),
            f"{mid:.2f} ({low:.2f} to {high:.2f})",
            style="bold green" if option is proposal.best else "",
        )
    _print_uncropped(table, out)
    out.print()
    if proposal.unused_time_reason:
        out.print(Text(proposal.unused_time_reason, style="dim"))
        out.print()
    if proposal.target.busy_cores:
        _print_problems((busy_machine_problem(proposal.target),), out)
        out.print()
    if written:
        out.print(
            f"written to {sanitize_line(written)}: glass train {sanitize_line(written)}", soft_wrap=True
        )
    else:
        out.print(Text(proposal.as_toml().rstrip(), style="cyan"), soft_wrap=True)


def print_recommendations(rows: Sequence[Recommendation], out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("card")
    headings = (
        "GiB", "shakespeare_char", "124M: batch_size", "tokens/s", "2.5B tokens", "best in 24 h",
        "layers x width", "batch_tokens", "loss", "",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        day = row.day
        table.add_row(
            row.card,
            f"{row.memory_gib:.0f}",
            "?" if row.shakespeare_s is None else format_duration(row.shakespeare_s),
            "-" if row.gpt2_batch is None else str(row.gpt2_batch),
            "-" if row.gpt2_tokens_per_s is None else format_count(row.gpt2_tokens_per_s),
            "-" if row.gpt2_hours is None else format_duration(3600 * row.gpt2_hours),
            "-" if day is None else format_parameters(day.parameters),
            "-" if day is None else f"{day.n_layer} x {day.n_embd}",
            "-" if day is None else f"{day.config.batch_tokens:,}",
            "-" if day is None else f"{day.loss[1]:.2f}",
            "speeds measured" if row.measured else "predicted",
        )
    _print_uncropped(table, out)


# --- parts of a plan ---


def _print_model(plan: Plan, out: Console) -> None:
    """The model, how it computes, its batch, and the size of the run."""
    spec, workload = plan.spec, plan.spec.workload
    kernels = (
        "Triton kernels" if workload.kernels else "compiled" if workload.compiled else "PyTorch's kernels"
    )
    if workload.graph:
        kernels += ", CUDA graph"
    flops = format_flops_per_token(spec.flops_per_token)
    rows = [
        ("model", f"{format_parameters(spec.parameters)} parameters, {flops}/token"),
        ("compute", f"{workload.dtype} ({spec.reason('dtype')}), {kernels}"),
    ]
    if spec.config.eval_only:
        rows.append(("run", "one evaluation"))
    else:
        batch = f"{spec.batch.batch_size} x {spec.config.block_size}"
        if spec.batch.micro_steps > 1:
            batch += f" x {spec.batch.micro_steps} micro-batches"
        if workload.ranks > 1:
            # Of CPUs, the machines are counted.
            noun = "machines" if plan.target.cluster.link is None else "cards"
            batch += f" on each of {workload.ranks} {noun}"
        rows += [
            ("batch", f"{spec.batch.tokens:,} tokens per update: {batch}"),
            (
                "run",
                f"{pluralize(spec.config.max_iters, 'update')}, {format_count(spec.total_tokens)} tokens, "
                f"{spec.total_tokens * spec.flops_per_token:.2g} FLOP",
            ),
        ]
    _print_rows(rows, out)


def _print_memory(plan: Plan, out: Console) -> None:
    """The total, its parts as a bar of the card's memory, and what other settings would need."""
    memory, target = plan.memory, plan.target
    fits = "fits" if plan.fits else "does not fit"
    capacity = format_bytes(target.memory_bytes) + (f" ({target.memory_note})" if target.memory_note else "")
    head = f"{format_bytes(memory.total_bytes)} of {capacity}: {fits}"
    head += f" (a run may take {format_bytes(target.max_bytes)})"
    if target.cluster.ranks > 1:
        head += ", on each card"
    rows = [("memory", head)]
    if target.device_type == "cuda":
        rows.append(
            ("", f"{format_bytes(memory.allocated_bytes)} of it in tensors: the run's allocated_peak")
        )
    if plan.measured is not None and plan.measured.peak_bytes is not None:
        # Beside the estimate, not instead of it: the parts below add up to the estimate.
        counted = "allocated by PyTorch" if target.device_type == "cuda" else "resident"
        by = "by the probe" if plan.measured.source == "probe" else f"by {plan.measured.why}"
        rows.append(("", f"measured {by}: {format_bytes(plan.measured.peak_bytes)} {counted}"))
    if target.probe is not None and target.probe.outcome == "out of memory":
        rows.append(("", f"does not fit: {target.probe.describe()}"))
    _print_rows(rows, out, end=False)

    parts = dict(memory.parts)
    if memory.graph_bytes:
        parts["CUDA graph"] = memory.graph_bytes
    parts["CUDA context" if target.device_type == "cuda" else "process"] = memory.context_bytes
    bar_bytes = max(memory.total_bytes, target.memory_bytes)
    line, done = Text(" " * _INDENT), 0
    table = Table.grid(padding=(0, 2, 0, 0))
    for (name, amount), colour in zip(parts.items(), _COLOURS, strict=False):
        # Cells by where a part ends, so that many small parts do not round to nothing.
        cells = round(_BAR_WIDTH * (done + amount) / bar_bytes) - round(_BAR_WIDTH * done / bar_bytes)
        line.append("█" * cells, style=colour)
        done += amount
        table.add_row(Text(f"{' ' * _INDENT}■", style=colour), _LABELS.get(name, name), format_bytes(amount))
    line.append("░" * max(0, _BAR_WIDTH + _INDENT - len(line)), style="dim")
    out.print(line, soft_wrap=True)
    _print_uncropped(table, out)
    for variant in () if plan.config.eval_only else plan.variants:
        most = "does not fit" if variant.largest is None else f"up to {variant.largest} sequences at a time"
        name = _LABELS.get(variant.name, variant.name)
        out.print(Text(f"{' ' * _INDENT}{name}: {format_bytes(variant.total)}, {most}", style="dim"))
    out.print()


def _print_data_parallel(plan: Plan, parallelism: ParallelismComparison, out: Console) -> None:
    """DDP and FSDP side by side, which is advised, and what the figures assume."""
    cluster = plan.target.cluster
    planned = parallelism.fsdp if plan.config.shard else parallelism.ddp
    if cluster.link is None:
        ranks = f"{cluster.machines} machines"
    elif cluster.machines == 1:
        ranks = f"{cluster.cards_per_machine} cards"
    else:
        each = "one in each" if cluster.cards_per_machine == 1 else f"{cluster.cards_per_machine} in each"
        ranks = f"{cluster.ranks} cards, {each} of {cluster.machines} machines"
    rows = [("cluster", f"{ranks}; each sends {planned.sent_bytes / 1e9:.3g} GB per update")]
    if planned.computing_s is not None and planned.waiting_s is not None:
        computing, waiting = format_duration(planned.computing_s), format_duration(planned.waiting_s)
        rows.append(("", f"per update {computing} compute + {waiting} communication without overlap"))
    _print_rows(rows, out, end=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(" " * _INDENT)
    noun = "machine" if cluster.link is None else "card"
    for heading in (f"memory per {noun}", "sequences", "tokens/s", "efficiency", "time"):
        table.add_column(heading, justify="right")
    for way in (parallelism.ddp, parallelism.fsdp):
        unknown = "?" if way.fits else "-"
        table.add_row(
            f"{' ' * _INDENT}{way.name} ({way.setting})",
            format_bytes(way.memory_bytes) + ("" if way.fits else ": too much"),
            f"{way.batch_size}" + (f" x {way.micro_steps}" if way.micro_steps > 1 else ""),
            unknown if way.tokens_per_s is None else format_count(way.tokens_per_s[1]),
            unknown if way.efficiency is None else f"{way.efficiency:.0%}",
            unknown if way.total_s is None else format_duration(way.total_s[1]),
            style="bold" if way is planned else "dim",
        )
    _print_uncropped(table, out)
    advised = "neither" if parallelism.advised is None else parallelism.advised.name
    _print_rows([("advised", f"{advised}: {parallelism.reason}")], out, end=False)
    assumed = enumerate(assumptions(cluster))
    _print_rows([("" if number else "assumed", line) for number, line in assumed], out)


def _print_time(plan: Plan, times: TimeEstimate, out: Console) -> None:
    low, mid, high = times.total_s
    throughput = times.throughput
    probe = plan.target.probe
    unmeasured = [("", f"not measured: {probe.describe()}")] if probe and not probe.ran else []
    evaluations = "once" if times.evaluations == 1 else f"{times.evaluations:,} times"
    rows = [
        (
            "speed",
            f"{format_count(throughput.mid)} tokens/s (80%: {format_count(throughput.low)} to "
            f"{format_count(throughput.high)}), MFU {throughput.mfu[0]:.0f} to {throughput.mfu[2]:.0f}%",
        ),
        ("", throughput.why),
        *unmeasured,
        ("time", f"{format_duration(mid)} (80%: {format_duration(low)} to {format_duration(high)})"),
        (
            "",
            f"of which evaluation {format_duration(times.evaluation_s)} ({evaluations}), start-up "
            f"{format_duration(times.start_s)}, last checkpoint {format_duration(times.saving_s)}",
        ),
    ]
    if times.compile_breaks_even is not None:
        cost = format_duration(times.compile_cost_s)
        rows.append(("compile", f"would take {cost} and break even at update {times.compile_breaks_even:,}"))
    if times.kwh is not None:
        whose = "the card's" if plan.target.cluster.ranks == 1 else "all cards'"
        rows.append(("energy", f"{times.kwh:.3g} kWh at most, at {whose} full power"))
    if times.cost is not None:
        rows.append(("cost", f"{times.cost:,.2f}"))
    _print_rows(rows, out)


def _print_loss_and_data(plan: Plan, out: Console) -> None:
    """The expected loss, the dataset, the checkpoints and the schedule."""
    estimate, dataset = plan.training_estimate, plan.dataset
    if estimate.loss is None:
        rows = [("loss", estimate.loss_reason)]
    else:
        low, mid, high = estimate.loss
        in_perplexity = f", perplexity {perplexity(mid):.3g}" if mid < 20 else ""
        rows = [
            ("loss", f"{mid:.2f} at the end ({low:.2f} to {high:.2f}){in_perplexity}"),
            ("", estimate.loss_reason),
        ]
        curve = "   ".join(f"{at:,}: {loss:.2f}" for at, _, loss, _ in estimate.loss_curve)
        if curve:
            rows.append(("loss curve", curve))
        if estimate.overfits_at is not None:
            rows.append(("overfitting", f"probably from update {estimate.overfits_at:,} on"))
    _print_rows(rows, out)

    ratio = estimate.tokens_per_parameter
    per_parameter = f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"
    per_parameter += " tokens per parameter"
    # Chinchilla's ratio is for web text from scratch: not for small datasets, nor for fine-tuning.
    if plan.config.init_from == "scratch" and dataset.tokenizer not in ("char", "byte"):
        per_parameter += "; about 20 is compute-optimal (Chinchilla)"
    checkpoints = (
        f"{format_bytes(estimate.checkpoint_bytes)} each, the first after update "
        f"{estimate.first_checkpoint:,}; up to {format_bytes(estimate.disk_bytes)} on disk"
    )
    tokens = format_count(dataset.train_tokens)
    rows = [
        ("data", f"{tokens} tokens ({dataset.source}): {estimate.epochs:.3g} epochs"),
        ("", per_parameter),
        ("checkpoints", checkpoints),
        ("schedule", estimate.schedule),
    ]
    _print_rows(rows, out)


def _print_problems(problems: tuple[PlanProblem, ...], out: Console) -> None:
    for problem in problems:
        kind = (f"{problem.kind}  ", _STYLES[problem.kind])
        out.print(Text.assemble(kind, sanitize_keeping_bidi(problem.what)))
        out.print(Text(f"  {sanitize_keeping_bidi(problem.fix)}", style="green"))
    if not problems:
        out.print(Text("no problem found", style="green"))


def _print_rows(rows: list[tuple[str, str]], out: Console, end: bool = True) -> None:
    """Labels and values; `end`: followed by an empty line."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", width=_INDENT - 2)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(sanitize_keeping_bidi(value)))
    out.print(table)
    if end:
        out.print()


def _print_uncropped(table: Table, out: Console) -> None:
    """A narrow terminal wraps the lines of the table, but no number is cut."""
    table.width = Measurement.get(out, out.options.update(max_width=_MAX_TABLE_COLUMNS), table).maximum
    out.print(table, soft_wrap=True)
