"""What `glass plan` prints: a plan, the proposal of --hours, the table of --cards."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from glassgpt.estimate.loss_law import perplexity
from glassgpt.format import (
    format_bytes,
    format_count,
    format_duration,
    format_flops_per_token,
    format_parameters,
)
from glassgpt.i18n import Message, say, translate
from glassgpt.plan.estimates import ParallelismComparison, TimeEstimate, assumptions
from glassgpt.plan.plan_warnings import PlanProblem, busy_machine_problems
from glassgpt.plan.planning import Plan
from glassgpt.plan.propose import Proposal, Recommendation
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_line
from glassgpt.show.terminal.run_lines import kernels_label, say_updates
from glassgpt.show.terminal.text_lines import LABEL_WIDTH, print_line, terminal_text

_COLOURS = (
    "cyan", "blue", "magenta", "green", "yellow", "red", "white", "bright_black", "bright_blue",
    "bright_magenta",
)  # fmt: skip
_STYLES = {"error": "bold red", "warning": "bold yellow", "hint": "bold cyan"}
_BAR_WIDTH = 60
_MAX_TABLE_COLUMNS = 1000


def print_plan(plan: Plan, name: str, out: Console) -> None:
    title = translate("plan_view.title", name=sanitize_line(name), target=sanitize_line(plan.target.title))
    out.print(Text(terminal_text(title), style="bold"), soft_wrap=True)
    if plan.target.alternatives:
        also = translate("plan_view.alternatives", names=", ".join(plan.target.alternatives))
        out.print(Text(terminal_text(also), style="dim"), soft_wrap=True)
    out.print()
    _print_model(plan, out)
    _print_memory(plan, out)
    if plan.parallelism is not None:
        _print_data_parallel(plan, plan.parallelism, out)
    if plan.times is None:
        dtype = plan.spec.workload.dtype
        unknown = translate("plan_view.time.unknown", dtype=dtype)
        if plan.target.peak_flops_per_s("float32"):
            unknown = translate("plan_view.time.unknown_but_float32", dtype=dtype)
        _print_rows([(translate("plan_view.label.time"), unknown)], out)
    else:
        _print_time(plan, plan.times, out)
    if not plan.config.eval_only:
        _print_loss_and_data(plan, out)
    _print_problems(plan.problems, out)


def print_proposal(proposal: Proposal, out: Console, written: str) -> None:
    out.print(Text(proposal.summary, style="bold"), soft_wrap=True)
    out.print()
    table = _make_table(
        translate("plan_view.heading.parameters"),
        translate("plan_view.heading.layers_and_width"),
        translate("plan_view.heading.tokens"),
        translate("plan_view.heading.epochs"),
        translate("plan_view.heading.speed"),
        translate("plan_view.heading.expected_loss"),
    )
    for option in proposal.considered:
        low, mid, high = option.loss
        table.add_row(
            format_parameters(option.parameters),
            f"{option.n_layer} x {option.n_embd}",
            format_count(option.tokens),
            f"{option.epochs:.2g}",
            format_count(option.tokens_per_s),
            translate("plan_view.loss_range", low=low, mid=mid, high=high),
            style="bold green" if option is proposal.best else "",
        )
    _print_uncropped(table, out)
    out.print()
    if proposal.unused_time_reason:
        out.print(Text(terminal_text(proposal.unused_time_reason), style="dim"))
        out.print()
    if problems := tuple(busy_machine_problems(proposal.target)):
        _print_problems(problems, out)
        out.print()
    if written:
        text = translate("plan_view.written", file=sanitize_line(written))
        out.print(Text(terminal_text(text)), soft_wrap=True)
    else:
        out.print(Text(proposal.as_toml().rstrip(), style="cyan"), soft_wrap=True)


def print_recommendations(rows: Sequence[Recommendation], out: Console) -> None:
    table = _make_table(
        Column("card"), "GiB", "shakespeare_char", "124M: batch_size", "tokens/s", "2.5B tokens",
        "best in 24 h", "layers x width", "batch_tokens", "loss", "",
    )  # fmt: skip
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
    kernels = kernels_label(workload.kernels, workload.compiled, workload.graph)
    flops = format_flops_per_token(spec.flops_per_token)
    dtype_reason = spec.reason("dtype")
    rows = [
        (
            translate("plan_view.label.model"),
            translate("plan_view.model", parameters=spec.parameters, flops=flops),
        ),
        (
            translate("plan_view.label.compute"),
            translate("plan_view.compute", dtype=workload.dtype, reason=dtype_reason, kernels=kernels),
        ),
    ]
    if spec.config.eval_only:
        rows.append((translate("plan_view.label.run"), translate("plan_view.run.eval_only")))
    else:
        batch: str | Message = f"{spec.batch.batch_size} x {spec.config.block_size}"
        if spec.batch.micro_steps > 1:
            batch = say("plan_view.micro_batches", batch=batch, micro_steps=spec.batch.micro_steps)
        if workload.ranks > 1:
            # Of CPUs, the machines are counted.
            if plan.target.cluster.link is None:
                batch = say("plan_view.on_machines", batch=batch, ranks=workload.ranks)
            else:
                batch = say("plan_view.on_cards", batch=batch, ranks=workload.ranks)
        run = translate(
            "plan_view.run",
            updates=say_updates(spec.config.max_iters),
            tokens=spec.total_tokens,
            flops=f"{spec.total_tokens * spec.flops_per_token:.2g} FLOP",
        )
        rows += [
            (
                translate("plan_view.label.batch"),
                translate("plan_view.batch", tokens=spec.batch.tokens, batch=batch),
            ),
            (translate("plan_view.label.run"), run),
        ]
    _print_rows(rows, out)


def _print_memory(plan: Plan, out: Console) -> None:
    """The total, its parts as a bar of the card's memory, and what other settings would need."""
    memory, target = plan.memory, plan.target
    capacity = format_bytes(target.memory_bytes) + (f" ({target.memory_note})" if target.memory_note else "")
    sizes = {"total": memory.total_bytes, "capacity": capacity, "usable": target.out_of_memory_limit}
    head = (
        say("plan_view.memory.fits", **sizes) if plan.fits else say("plan_view.memory.does_not_fit", **sizes)
    )
    if target.cluster.ranks > 1:
        head = say("plan_view.memory.on_each_card", memory=head)
    rows = [(translate("plan_view.label.memory"), str(head))]
    if target.device_type == "cuda":
        rows.append(("", translate("plan_view.memory.tensors", allocated=memory.allocated_bytes)))
    if plan.measured is not None and plan.measured.peak_bytes is not None:
        # Beside the estimate, not instead of it: the parts below add up to the estimate.
        by: str | Message = plan.measured.why
        if plan.measured.source == "probe":
            by = say("plan_view.the_probe")
        measured = say("plan_view.memory.resident", by=by, peak=plan.measured.peak_bytes)
        if target.device_type == "cuda":
            measured = say("plan_view.memory.allocated", by=by, peak=plan.measured.peak_bytes)
        rows.append(("", str(measured)))
    if target.probe is not None and target.probe.outcome == "out of memory":
        rows.append(("", translate("plan_view.memory.probe_failed", probe=target.probe.describe())))
    _print_rows(rows, out, end=False)

    part_labels = {
        "weights": translate("plan_view.part.weights"),
        "gradients": translate("plan_view.part.gradients"),
        "optimizer": translate("plan_view.part.optimizer"),
        "activations": translate("plan_view.part.activations"),
        "logits and loss": translate("plan_view.part.logits_and_loss"),
        "gathered weights": translate("plan_view.part.gathered_weights"),
        "data": translate("plan_view.part.data"),
        "working space": translate("plan_view.part.workspace"),
        "copy to be saved": translate("plan_view.part.checkpoint_copy"),
        "heap fragmentation": translate("plan_view.part.heap_fragmentation"),
        "process": translate("plan_view.part.process"),
    }
    parts = dict(memory.parts)
    if memory.graph_bytes:
        parts["CUDA graph"] = memory.graph_bytes
    parts["CUDA context" if target.device_type == "cuda" else "process"] = memory.context_bytes
    bar_bytes = max(memory.total_bytes, target.memory_bytes)
    line, done, width = Text(" " * LABEL_WIDTH), 0, max(1, min(_BAR_WIDTH, out.width - LABEL_WIDTH))
    table = Table.grid(padding=(0, 2, 0, 0))
    for (name, amount), colour in zip(parts.items(), _COLOURS, strict=False):
        # Cells by where a part ends, so that many small parts do not round to nothing.
        cells = round(width * (done + amount) / bar_bytes) - round(width * done / bar_bytes)
        line.append("█" * cells, style=colour)
        done += amount
        label = terminal_text(part_labels.get(name, name))
        table.add_row(Text(f"{' ' * LABEL_WIDTH}■", style=colour), label, format_bytes(amount))
    line.append("░" * max(0, width + LABEL_WIDTH - len(line)), style="dim")
    out.print(line, soft_wrap=True)
    _print_uncropped(table, out)
    for variant in () if plan.config.eval_only else plan.variants:
        is_planned = variant.name == "as it is"
        values = {
            "name": say("plan_view.variant.as_it_is") if is_planned else variant.name,
            "total": variant.total,
        }
        text = translate("plan_view.variant.does_not_fit", **values)
        if variant.largest is not None:
            text = translate("plan_view.variant", sequences=variant.largest, **values)
        print_line(out, "", text, "dim")
    out.print()


def _print_data_parallel(plan: Plan, parallelism: ParallelismComparison, out: Console) -> None:
    """DDP and FSDP side by side, which is advised, and what the figures assume."""
    cluster = plan.target.cluster
    planned = parallelism.fsdp if plan.config.shard else parallelism.ddp
    if cluster.link is None:
        ranks = say("plan_view.machines", machines=cluster.machines)
    elif cluster.machines == 1:
        ranks = say("plan_view.cards", cards=cluster.cards_per_machine)
    else:
        ranks = say(
            "plan_view.cards_and_machines",
            cards=cluster.ranks,
            each=cluster.cards_per_machine,
            machines=cluster.machines,
        )
    sent = f"{planned.sent_bytes / 1e9:.3g} GB"
    rows = [(translate("plan_view.label.cluster"), translate("plan_view.cluster", ranks=ranks, sent=sent))]
    if planned.computing_s is not None and planned.waiting_s is not None:
        seconds = {"computing": planned.computing_s, "waiting": planned.waiting_s}
        rows.append(("", translate("plan_view.exposed_communication", **seconds)))
    _print_rows(rows, out, end=False)
    table = _make_table(
        Column(" " * LABEL_WIDTH),
        translate("plan_view.heading.memory_per_machine")
        if cluster.link is None
        else translate("plan_view.heading.memory_per_card"),
        translate("plan_view.heading.sequences"),
        translate("plan_view.heading.speed"),
        translate("plan_view.heading.efficiency"),
        translate("plan_view.heading.time"),
    )
    for way in (parallelism.ddp, parallelism.fsdp):
        unknown = "?" if way.fits else "-"
        table.add_row(
            f"{' ' * LABEL_WIDTH}{way.name} ({way.setting})",
            format_bytes(way.memory_bytes)
            if way.fits
            else translate("plan_view.too_much", memory=way.memory_bytes),
            f"{way.batch_size}" + (f" x {way.micro_steps}" if way.micro_steps > 1 else ""),
            unknown if way.tokens_per_s is None else format_count(way.tokens_per_s[1]),
            unknown if way.efficiency is None else f"{way.efficiency:.0%}",
            unknown if way.total_s is None else format_duration(way.total_s[1]),
            style="bold" if way is planned else "dim",
        )
    _print_uncropped(table, out)
    advised = parallelism.advised.name if parallelism.advised else translate("plan_view.neither")
    label = translate("plan_view.label.advised")
    _print_rows([(label, f"{advised}: {parallelism.reason}")], out, end=False)
    label, assumed = translate("plan_view.label.assumed"), enumerate(assumptions(cluster))
    _print_rows([("" if number else label, line) for number, line in assumed], out)


def _print_time(plan: Plan, times: TimeEstimate, out: Console) -> None:
    low, mid, high = times.total_s
    throughput = times.throughput
    probe = plan.target.probe
    rows = [
        (
            translate("plan_view.label.speed"),
            translate(
                "plan_view.speed",
                low=throughput.low,
                mid=throughput.mid,
                high=throughput.high,
                mfu=f"{throughput.mfu[0]:.0f}",
                high_mfu=f"{throughput.mfu[2]:.0f}%",
            ),
        ),
        ("", throughput.why),
    ]
    if probe and not probe.ran:
        rows.append(("", translate("plan_view.not_measured", probe=probe.describe())))
    evaluations = say("plan_view.times", count=times.evaluations)
    if times.evaluations == 1:
        evaluations = say("plan_view.once")
    parts = {"evaluation": times.evaluation_s, "start": times.start_s, "saving": times.saving_s}
    rows += [
        (translate("plan_view.label.time"), translate("plan_view.time", low=low, mid=mid, high=high)),
        ("", translate("plan_view.time.parts", evaluations=evaluations, **parts)),
    ]
    if times.compile_breaks_even is not None:
        values = {"cost": times.compile_cost_s, "update": times.compile_breaks_even}
        rows.append((translate("plan_view.label.compile"), translate("plan_view.compile", **values)))
    if times.kwh is not None:
        energy = say("plan_view.energy", kwh=times.kwh)
        if plan.target.cluster.ranks > 1:
            energy = say("plan_view.energy.all_cards", kwh=times.kwh)
        rows.append((translate("plan_view.label.energy"), str(energy)))
    if times.cost is not None:
        rows.append((translate("plan_view.label.cost"), f"{times.cost:,.2f}"))
    _print_rows(rows, out)


def _print_loss_and_data(plan: Plan, out: Console) -> None:
    """The expected loss, the dataset, the checkpoints and the schedule."""
    estimate, dataset = plan.training_estimate, plan.dataset
    if estimate.loss is None:
        rows = [(translate("plan_view.label.loss"), estimate.loss_reason)]
    else:
        low, mid, high = estimate.loss
        loss = say("run_console.loss", low=low, mid=mid, high=high)
        if mid < 20:
            loss = say("plan_view.loss_and_perplexity", loss=loss, perplexity=perplexity(mid))
        rows = [(translate("plan_view.label.loss"), str(loss)), ("", estimate.loss_reason)]
        curve = "   ".join(f"{at:,}: {loss:.2f}" for at, _, loss, _ in estimate.loss_curve)
        if curve:
            rows.append((translate("plan_view.label.loss_curve"), curve))
        if estimate.overfits_at is not None:
            overfits = translate("plan_view.overfits", update=estimate.overfits_at)
            rows.append((translate("plan_view.label.overfitting"), overfits))
    _print_rows(rows, out)

    ratio = estimate.tokens_per_parameter
    shown_ratio = f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"
    per_parameter = translate("plan_view.tokens_per_parameter", ratio=shown_ratio)
    # Chinchilla's ratio is for web text from scratch: not for small datasets, nor for fine-tuning.
    if plan.config.init_from == "scratch" and not dataset.is_character_level:
        per_parameter = translate("plan_view.tokens_per_parameter.chinchilla", ratio=shown_ratio)
    checkpoints = translate(
        "plan_view.checkpoints",
        each=estimate.checkpoint_bytes,
        first=estimate.first_checkpoint,
        all=estimate.disk_bytes,
    )
    data = translate(
        "plan_view.data", tokens=dataset.train_tokens, source=dataset.source, epochs=estimate.epochs
    )
    rows = [
        (translate("plan_view.label.data"), data),
        ("", per_parameter),
        (translate("plan_view.label.checkpoints"), checkpoints),
        (translate("plan_view.label.schedule"), estimate.schedule),
    ]
    _print_rows(rows, out)


def _print_problems(problems: tuple[PlanProblem, ...], out: Console) -> None:
    kinds = {
        "error": translate("plan_view.error"),
        "warning": translate("severity.warning"),
        "hint": translate("plan_view.hint"),
    }
    for problem in problems:
        kind = (f"{kinds[problem.kind]}  ", _STYLES[problem.kind])
        out.print(Text.assemble(terminal_text(""), kind, sanitize_keeping_bidi(problem.what)))
        out.print(Text(terminal_text(f"  {problem.fix}"), style="green"))
    if not problems:
        out.print(Text(terminal_text(translate("plan_view.no_problem")), style="green"))


def _print_rows(rows: list[tuple[str, str]], out: Console, end: bool = True) -> None:
    """Labels and values; `end`: followed by an empty line."""
    for name, value in rows:
        print_line(out, name, value)
    if end:
        out.print()


def _make_table(*headings: str | Column) -> Table:
    """Columns of numbers; a Column as it is."""
    columns = [Column(one, justify="right") if isinstance(one, str) else one for one in headings]
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _print_uncropped(table: Table, out: Console) -> None:
    """A narrow terminal wraps the lines of the table, but no number is cut."""
    table.width = Measurement.get(out, out.options.update(max_width=_MAX_TABLE_COLUMNS), table).maximum
    out.print(table, soft_wrap=True)
