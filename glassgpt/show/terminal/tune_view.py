"""`glass tune` in the terminal: what is measured on, a bar while it lasts, the table, a chart, why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from glassgpt import format
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.chart import bar
from glassgpt.tune.ranking import SettingResult
from glassgpt.tune.search import TrialEvent
from glassgpt.tune.speed_settings import TuneContext
from glassgpt.tune.tuning import Tuning, describe_automatic_setting, describe_setting

_RIGHT_ALIGNED_COLUMNS = ("tokens/s", "±", "update", "MFU", "peak")


_BUSY_CORES_SHARE = 0.5  # of the cores


class TuneConsole:
    """Says what is measured on; on a terminal, a bar of the budget and what is tried now."""

    def __init__(self, out: Console, name: str, budget_s: float, quiet: bool = False) -> None:
        self._out, self._name, self._budget_s, self._quiet = out, name, budget_s, quiet
        self._context: TuneContext | None = None
        self._progress = Progress(
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("of " + format.format_duration(budget_s) + "  {task.description}"),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._bar = self._progress.add_task("starting", total=budget_s)

    def __enter__(self) -> TuneConsole:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, step: TuneContext | TrialEvent) -> None:
        if isinstance(step, TuneContext):
            self._context = step
            if not self._quiet:
                print_tune_context(step, self._name, self._out)
            return
        assert self._context is not None
        what = (
            describe_setting(self._context, step.setting)
            if step.trial is None
            else "choosing what to try next"
        )
        best = (
            f"; so far {format.format_count(step.best_tokens_per_s)} tokens/s"
            if step.best_tokens_per_s
            else ""
        )
        self._progress.update(
            self._bar,
            completed=self._budget_s - step.left_s,
            description=what + best,
        )


def print_tune_context(ground: TuneContext, name: str, out: Console) -> None:
    lines = {
        "tune": f"{name}: {format.format_parameters(ground.parameters)} parameters, {ground.tokens_per_update:,} tokens per "
        f"update ({ground.sequences} sequences of {ground.block_size})",
        "device": f"{ground.device}   ({ground.device_name}, {ground.dtype}, torch {ground.torch})",
        "data": ground.data,
        "memory": f"{format.format_bytes(ground.free_bytes)} free, of which a setting may take "
        f"{format.format_bytes(ground.usable_bytes)}",
        "automatic": describe_automatic_setting(ground),
    }
    if ground.device_type == "cpu" and ground.busy_cores > _BUSY_CORES_SHARE * ground.usable_cores:
        lines["warning"] = (
            f"other programs keep {ground.busy_cores:.1f} of {ground.usable_cores:g} cores busy: "
            "the figures are theirs too"
        )
    for label, text in lines.items():
        _print_line(label, text, out)
    out.print()


def _print_line(label: str, text: str, out: Console) -> None:
    out.print(Text.assemble((f"{label:<13} ", "bold"), sanitize_text(text)), soft_wrap=True)


# --- the end ---


def print_tuning(tuning: Tuning, out: Console) -> None:
    _print_table(tuning, out)
    _print_chart(tuning, out)
    out.print(Text(sanitize_text(tuning.result.summary), style="bold"))
    out.print()


def print_tuned_file(tuning: Tuning, path: Path, out: Console) -> None:
    tried = sum(row.trials for row in tuning.result.rows)
    _print_line("took", f"{format.format_duration(tuning.took_s)}, {format.pluralize(tried, 'trial')}", out)
    _print_line("written", str(path), out)
    _print_line("next", f"glass train {path}", out)


def _print_table(tuning: Tuning, out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("setting", *_RIGHT_ALIGNED_COLUMNS, "verdict"):
        table.add_column(
            name, justify="right" if name in _RIGHT_ALIGNED_COLUMNS else "left", no_wrap=name != "verdict"
        )
    rows = sorted(tuning.result.rows, key=_order)
    for row in rows:
        style = "bold green" if row.is_chosen else "" if row.figures else "dim"
        table.add_row(*(Text(sanitize_text(cell)) for cell in _cells(row, tuning.context)), style=style)
    out.print(table)
    shortened = [row for row in rows if row.micro_steps_done < row.micro_steps and row.figures]
    if shortened:
        most = max(shortened, key=lambda row: row.micro_steps)
        done = most.micro_steps_done
        out.print(
            f"Of updates with many micro-batches, {done} and the optimizer's step are timed, and the others "
            f"added as computed: {most.micro_steps - done} where there are {most.micro_steps}.",
            style="dim",
        )
    out.print()


def _order(row: SettingResult) -> tuple[bool, float]:
    """The chosen one first, the fastest next; what did not run last, as it came."""
    return not row.is_chosen, -(row.tokens_per_s or 0.0)


def _cells(row: SettingResult, ground: TuneContext) -> tuple[str, ...]:
    name = describe_setting(ground, row.setting) + (" (automatic)" if row.is_automatic else "")
    if row.figures is None or row.tokens_per_s is None:
        return name, "", "", "", "", "", row.verdict
    found = row.figures
    return (
        name,
        format.format_count(row.tokens_per_s),
        format.format_percent((found.slow_s - found.fast_s) / 2 / found.update_s),
        _update(found.update_s),
        "" if row.mfu is None else format.format_percent_value(row.mfu),
        "" if found.peak_bytes is None else format.format_bytes(found.peak_bytes),
        row.verdict,
    )


def _update(seconds: float) -> str:
    return format.format_ms(seconds * 1000) if seconds < 10 else format.format_duration(seconds)


def _print_chart(tuning: Tuning, out: Console) -> None:
    """The fastest that ran with each micro-batch, compiled or not as the one chosen."""
    compiled = tuning.result.chosen.setting.compile
    best = fastest_by_micro_batch([row for row in tuning.result.rows if row.setting.compile == compiled])
    if len(best) < 2:
        return
    top = max(best.values())
    width = max(10, min(50, out.width - 30))
    out.print(Text("tokens/s by micro-batch", style="bold"))
    for size, rate in sorted(best.items()):
        chosen = size == tuning.result.chosen.setting.micro_batch
        line = Text(f"{size:>6}  ").append(f"{bar(rate / top, width):<{width}}", style="cyan")
        line.append(f"  {format.format_count(rate)}", style="bold green" if chosen else "")
        out.print(line, soft_wrap=True)
    out.print()


def fastest_by_micro_batch(rows: Sequence[SettingResult]) -> dict[int, float]:
    best: dict[int, float] = {}
    for row in rows:
        if row.tokens_per_s is not None:
            size = row.setting.micro_batch
            best[size] = max(best.get(size, 0.0), row.tokens_per_s)
    return best
