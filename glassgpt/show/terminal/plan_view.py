"""What `glass plan` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from glassgpt.estimate.cluster import Cluster
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


def print_plan(plan: Plan, name: str, out: Console) -> None:
    out.print(
        Text(f"{sanitize_line(name)} on {sanitize_line(plan.target.title)}", style="bold"), soft_wrap=True
    )
    if plan.target.alternatives:
        out.print(
            Text(f"(there are also {', '.join(plan.target.alternatives)})", style="dim"), soft_wrap=True
        )
    out.print()
    _print_rows(_model_rows(plan), out)
    _print_memory(plan, out)
    if plan.parallelism is not None:
        _print_data_parallel(plan, plan.parallelism, out)
    if plan.times is None:
        _print_rows([("time", _why_no_time(plan))], out)
    else:
        _print_rows(_time_rows(plan, plan.times), out)
    if not plan.config.eval_only:
        _print_rows(_loss_rows(plan), out)
        _print_rows(_data_rows(plan), out)
    _print_problems(plan.problems, out)


def print_proposal(proposal: Proposal, out: Console, written: str) -> None:
    out.print(Text(proposal.summary, style="bold"), soft_wrap=True)
    out.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("parameters", "layers x width", "tokens", "epochs", "tokens/s", "expected loss"):
        table.add_column(heading, justify="right")
    for option in proposal.considered:
        style = "bold green" if option is proposal.best else ""
        low, mid, high = option.loss
        table.add_row(
            format_parameters(option.parameters), f"{option.n_layer} x {option.n_embd}", format_count(option.tokens),
            f"{option.epochs:.2g}", format_count(option.tokens_per_s), f"{mid:.2f} ({low:.2f} to {high:.2f})",
            style=style,
        )  # fmt: skip
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
        "GiB", "shakespeare_char", "124M: batch_size", "tokens/s", "2.5B tokens", "best of a day",
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


def _model_rows(plan: Plan) -> list[tuple[str, str]]:
    decided, work = plan.spec, plan.spec.workload
    fast = [
        "our kernels" if work.kernels else "compiled" if work.compiled else "PyTorch's kernels",
        *(["recorded updates"] if work.graph else []),
    ]
    about = [
        (
            "model",
            f"{format_parameters(decided.parameters)} parameters, {format_flops_per_token(decided.flops_per_token)}/token",
        ),
        ("runs in", f"{work.dtype} ({decided.dtype_reason}), {', '.join(fast)}"),
    ]
    if decided.config.eval_only:
        return [*about, ("run", "one evaluation")]
    sequences, steps = decided.batch.batch_size, decided.batch.micro_steps
    cut = f"{sequences} x {decided.config.block_size}"
    cut += f" x {steps} micro-batches" if steps > 1 else ""
    if decided.workload.ranks > 1:
        cut += f" on each of {decided.workload.ranks} {_noun(plan.target.cluster)}"
    return [
        *about,
        ("batch", f"{decided.batch.tokens:,} tokens an update: {cut}"),
        (
            "run",
            f"{pluralize(decided.config.max_iters, 'update')}, {format_count(decided.total_tokens)} tokens, "
            f"{decided.total_tokens * decided.flops_per_token:.2g} FLOP",
        ),
    ]


def _print_memory(plan: Plan, out: Console) -> None:
    memory, target = plan.memory, plan.target
    fits = "fits" if plan.fits else "does not fit"
    whole = format_bytes(target.memory_bytes) + (f" ({target.memory_note})" if target.memory_note else "")
    head = f"{format_bytes(memory.total_bytes)} of {whole}: {fits} (a run may take {format_bytes(target.max_bytes)})"
    if target.cluster.ranks > 1:
        head = f"{head}, on each card"
    _print_rows([("memory", head)], out, end=False)
    out.print(_memory_bar(plan), soft_wrap=True)
    parts = Table.grid(padding=(0, 2, 0, 0))
    for (name, amount), colour in zip(_memory_parts(plan).items(), _COLOURS, strict=False):
        parts.add_row(Text(f"{' ' * _INDENT}■", style=colour), name, format_bytes(amount))
    _print_uncropped(parts, out)
    for variant in () if plan.config.eval_only else plan.variants:
        most = "does not fit" if variant.largest is None else f"up to {variant.largest} sequences at a time"
        out.print(Text(f"{' ' * _INDENT}{variant.name}: {format_bytes(variant.total)}, {most}", style="dim"))
    out.print()


def _print_data_parallel(plan: Plan, ways: ParallelismComparison, out: Console) -> None:
    """Both ways, and what the figures rest on."""
    cluster = plan.target.cluster
    own = ways.fsdp if plan.config.shard else ways.ddp
    rows = [("together", f"{_cards(cluster)}; each sends {own.sent_bytes / 1e9:.3g} GB an update")]
    if own.computing_s is not None and own.waiting_s is not None:
        rows.append(
            (
                "",
                f"an update computes {format_duration(own.computing_s)} and waits {format_duration(own.waiting_s)}",
            )
        )
    _print_rows(rows, out, end=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(" " * _INDENT)
    for heading in ("memory a card", "sequences", "tokens/s", "efficiency", "time"):
        table.add_column(heading, justify="right")
    for way in (ways.ddp, ways.fsdp):
        label, unknown = f"{way.name} ({way.setting})", "?" if way.fits else "-"
        table.add_row(
            f"{' ' * _INDENT}{label}",
            format_bytes(way.memory_bytes) + ("" if way.fits else ": too much"),
            f"{way.batch_size}" + (f" x {way.micro_steps}" if way.micro_steps > 1 else ""),
            unknown if way.tokens_per_s is None else format_count(way.tokens_per_s[1]),
            unknown if way.efficiency is None else f"{way.efficiency:.0%}",
            unknown if way.total_s is None else format_duration(way.total_s[1]),
            style="bold" if way is own else "dim",
        )
    _print_uncropped(table, out)
    best = "neither" if ways.advised is None else ways.advised.name
    _print_rows([("advised", f"{best}: {ways.reason}")], out, end=False)
    _print_rows([("assumed" if not at else "", line) for at, line in enumerate(assumptions(cluster))], out)


def _noun(cluster: Cluster) -> str:
    """What is counted: cards, or machines whose CPUs train."""
    return "machines" if cluster.link is None else "cards"


def _cards(cluster: Cluster) -> str:
    if cluster.link is None:
        return f"{cluster.machines} machines"
    if cluster.machines == 1:
        return f"{cluster.cards_per_machine} cards"
    each = "one in each" if cluster.cards_per_machine == 1 else f"{cluster.cards_per_machine} in each"
    return f"{cluster.ranks} cards, {each} of {cluster.machines} machines"


def _memory_parts(plan: Plan) -> dict[str, int]:
    recorded = {"recorded update": plan.memory.graph_bytes} if plan.memory.graph_bytes else {}
    return {**plan.memory.parts, **recorded, "context": plan.memory.context_bytes}


def _memory_bar(plan: Plan) -> Text:
    """All parts in a row, on a line as long as the card's memory."""
    whole = max(plan.memory.total_bytes, plan.target.memory_bytes)
    line, done = Text(" " * _INDENT), 0
    for amount, colour in zip(_memory_parts(plan).values(), _COLOURS, strict=False):
        # By where it ends, so that small parts do not add up to nothing.
        cells = round(_BAR_WIDTH * (done + amount) / whole) - round(_BAR_WIDTH * done / whole)
        line.append("█" * cells, style=colour)
        done += amount
    return line.append("░" * max(0, _BAR_WIDTH + _INDENT - len(line)), style="dim")


def _time_rows(plan: Plan, times: TimeEstimate) -> list[tuple[str, str]]:
    low, mid, high = times.total_s
    pace = times.pace
    rows = [
        (
            "speed",
            f"{format_count(pace.low)} to {format_count(pace.high)} tokens/s, MFU {pace.mfu[0]:.0f} to {pace.mfu[2]:.0f}%",
        ),
        ("", pace.why),
        ("time", f"{format_duration(mid)} ({format_duration(low)} to {format_duration(high)})"),
        (
            "",
            f"of it evaluating {format_duration(times.evaluation_s)} ({_often(times.evaluations)}), start "
            f"{format_duration(times.start_s)}, last checkpoint {format_duration(times.saving_s)}",
        ),
    ]
    if times.compile_breaks_even is not None:
        rows.append(
            (
                "compile",
                f"would cost {format_duration(times.compile_cost_s)}, and pay from update "
                f"{times.compile_breaks_even:,} on",
            )
        )
    if times.kwh is not None:
        whose = "the card's" if plan.target.cluster.ranks == 1 else "all cards'"
        rows.append(("energy", f"{times.kwh:.3g} kWh at most, at {whose} full power"))
    if times.cost is not None:
        rows.append(("cost", f"{times.cost:,.2f}"))
    return rows


def _why_no_time(plan: Plan) -> str:
    told = f"unknown: there is no {plan.spec.workload.dtype} peak of this card in the table"
    return f"{told}; with --dtype=float32 there is" if plan.target.peak_flops_per_s("float32") else told


def _often(times: int) -> str:
    return "once" if times == 1 else f"{times:,} times"


def _loss_rows(plan: Plan) -> list[tuple[str, str]]:
    ahead = plan.training_estimate
    if ahead.loss is None:
        return [("loss", ahead.loss_reason)]
    low, mid, high = ahead.loss
    perplexity = f", perplexity {math.exp(mid):.3g}" if mid < 20 else ""
    rows = [("loss", f"{mid:.2f} at the end ({low:.2f} to {high:.2f}){perplexity}"), ("", ahead.loss_reason)]
    course = "   ".join(f"{at:,}: {value:.2f}" for at, _, value, _ in ahead.course)
    if course:
        rows.append(("on the way", course))
    if ahead.overfits_at is not None:
        rows.append(("overfitting", f"probably from update {ahead.overfits_at:,} on"))
    return rows


def _data_rows(plan: Plan) -> list[tuple[str, str]]:
    ahead, text = plan.training_estimate, plan.dataset
    return [
        (
            "data",
            f"{format_count(text.train_tokens)} tokens ({text.source}): {ahead.epochs:.3g} times through it",
        ),
        ("", _tokens_per_parameter(plan)),
        (
            "checkpoints",
            f"{format_bytes(ahead.checkpoint_bytes)} each, the first after update {ahead.first_checkpoint:,}; "
            f"up to {format_bytes(ahead.disk_bytes)} on disk",
        ),
        ("schedule", ahead.schedule),
    ]


def _tokens_per_parameter(plan: Plan) -> str:
    """What is usual for web text from scratch says nothing about little text, or weights that know much."""
    ratio = plan.training_estimate.tokens_per_parameter
    told = f"{ratio:.3g} tokens per parameter" if ratio < 1000 else f"{ratio:,.0f} tokens per parameter"
    usual = plan.config.init_from == "scratch" and plan.dataset.tokenizer not in ("char", "byte")
    return f"{told}; about 20 make the most of the time" if usual else told


def _print_problems(problems: tuple[PlanProblem, ...], out: Console) -> None:
    for problem in problems:
        line = Text.assemble(
            (f"{problem.kind}  ", _STYLES[problem.kind]), sanitize_keeping_bidi(problem.what)
        )
        out.print(line)
        out.print(Text(f"  {sanitize_keeping_bidi(problem.fix)}", style="green"))
    if not problems:
        out.print(Text("nothing speaks against it", style="green"))


_INDENT = 14


def _print_rows(rows: list[tuple[str, str]], out: Console, end: bool = True) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", width=_INDENT - 2)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(sanitize_keeping_bidi(value)))
    out.print(table)
    if end:
        out.print()


def _print_uncropped(table: Table, out: Console) -> None:
    """A narrow terminal breaks its lines, but no figure is cut."""
    table.width = Measurement.get(out, out.options.update(max_width=_MAX_TABLE_COLUMNS), table).maximum
    out.print(table, soft_wrap=True)


_MAX_TABLE_COLUMNS = 1000  # columns
