"""`glass tune` in the terminal: the machine, a progress bar, the table, a chart, the summary."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from glassgpt.format import (
    format_bytes,
    format_count,
    format_duration,
    format_ms,
    format_parameters,
    format_percent,
    format_percent_value,
    pluralize,
)
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.charts import bar
from glassgpt.show.terminal.text_lines import print_line
from glassgpt.tune.ranking import SettingResult
from glassgpt.tune.search import TrialEvent
from glassgpt.tune.speed_settings import TuneContext
from glassgpt.tune.tuning import Tuning, describe_automatic_setting, describe_setting

_RIGHT_ALIGNED_COLUMNS = ("tokens/s", "±", "update", "MFU", "peak")
_BUSY_CORES_WARNING_SHARE = 0.5  # of the usable cores: if other programs take more, warn


class TuneConsole:
    """Prints the machine and the model; on a terminal, a bar of the budget and the setting under trial."""

    def __init__(self, out: Console, name: str, budget_s: float, quiet: bool = False) -> None:
        self._out, self._name, self._budget_s, self._quiet = out, name, budget_s, quiet
        self._context: TuneContext | None = None
        self._progress = Progress(
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("of " + format_duration(budget_s) + "  {task.description}"),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._bar = self._progress.add_task("starting", total=budget_s)

    def __enter__(self) -> TuneConsole:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: TuneContext | TrialEvent) -> None:
        if isinstance(event, TuneContext):
            self._context = event
            if not self._quiet:
                print_tune_context(event, self._name, self._out)
            return
        assert self._context is not None
        description = "choosing what to try next"
        if event.trial is None:
            description = describe_setting(self._context, event.setting)
        if event.best_tokens_per_s:
            description += f"; so far {format_count(event.best_tokens_per_s)} tokens/s"
        self._progress.update(self._bar, completed=self._budget_s - event.left_s, description=description)


def print_tune_context(context: TuneContext, name: str, out: Console) -> None:
    lines = {
        "tune": f"{name}: {format_parameters(context.parameters)} parameters, "
        f"{context.tokens_per_update:,} tokens per update "
        f"({context.sequences} sequences of {context.block_size})",
        "device": f"{context.device}   ({context.device_name}, {context.dtype}, torch {context.torch})",
        "data": context.data,
        "memory": f"{format_bytes(context.free_bytes)} free, of which a setting may take "
        f"{format_bytes(context.automatic_limit)}",
        "automatic": describe_automatic_setting(context),
    }
    busy_limit = _BUSY_CORES_WARNING_SHARE * context.usable_cores
    if context.device_type == "cpu" and context.busy_cores > busy_limit:
        lines["warning"] = (
            f"other programs keep {context.busy_cores:.1f} of {context.usable_cores:g} cores busy: "
            "they slow down the trials"
        )
    for label, text in lines.items():
        print_line(out, label, text)
    out.print()


def print_tuning(tuning: Tuning, out: Console) -> None:
    """All settings in a table, tokens/s by micro-batch as a chart, and the summary."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("setting", *_RIGHT_ALIGNED_COLUMNS, "verdict"):
        table.add_column(
            name, justify="right" if name in _RIGHT_ALIGNED_COLUMNS else "left", no_wrap=name != "verdict"
        )
    # The chosen one first, the fastest next; settings that did not run last.
    rows = sorted(tuning.result.rows, key=lambda row: (not row.is_chosen, -(row.tokens_per_s or 0.0)))
    for row in rows:
        style = "bold green" if row.is_chosen else "" if row.stats else "dim"
        table.add_row(*(Text(sanitize_text(cell)) for cell in _table_cells(row, tuning.context)), style=style)
    out.print(table)
    shortened = [row for row in rows if row.micro_steps_done < row.micro_steps and row.stats]
    if shortened:
        most = max(shortened, key=lambda row: row.micro_steps)
        timed = most.micro_steps_done
        out.print(
            f"Of an update with many micro-batches, {timed} and the optimizer step are timed; the others are "
            f"extrapolated, up to {most.micro_steps - timed} of {most.micro_steps}.",
            style="dim",
        )
    out.print()
    _print_chart(tuning, out)
    out.print(Text(sanitize_text(tuning.result.summary), style="bold"))
    out.print()


def print_tuned_file(tuning: Tuning, path: Path, out: Console) -> None:
    trials = sum(row.trials for row in tuning.result.rows)
    print_line(out, "took", f"{format_duration(tuning.took_s)}, {pluralize(trials, 'trial')}")
    print_line(out, "written", str(path))
    print_line(out, "next", f"glass train {path}")


def _table_cells(row: SettingResult, context: TuneContext) -> tuple[str, ...]:
    name = describe_setting(context, row.setting) + (" (automatic)" if row.is_automatic else "")
    stats = row.stats
    if stats is None or row.tokens_per_s is None:
        return name, "", "", "", "", "", row.verdict
    update_s = stats.update_s
    return (
        name,
        format_count(row.tokens_per_s),
        format_percent((stats.slow_s - stats.fast_s) / 2 / update_s),
        format_ms(update_s * 1000) if update_s < 10 else format_duration(update_s),
        "" if row.mfu is None else format_percent_value(row.mfu),
        "" if stats.peak_bytes is None else format_bytes(stats.peak_bytes),
        row.verdict,
    )


def _print_chart(tuning: Tuning, out: Console) -> None:
    """The fastest trial of each micro-batch size, compiled or not as in the chosen setting."""
    chosen = tuning.result.chosen.setting
    rates: dict[int, float] = {}  # tokens per second by micro-batch size
    for row in tuning.result.rows:
        if row.setting.compile == chosen.compile and row.tokens_per_s is not None:
            size = row.setting.micro_batch
            rates[size] = max(rates.get(size, 0.0), row.tokens_per_s)
    if len(rates) < 2:
        return
    top = max(rates.values())
    width = max(10, min(50, out.width - 30))
    out.print(Text("tokens/s by micro-batch", style="bold"))
    for size, rate in sorted(rates.items()):
        line = Text(f"{size:>6}  ").append(f"{bar(rate / top, width):<{width}}", style="cyan")
        style = "bold green" if size == chosen.micro_batch else ""
        line.append(f"  {format_count(rate)}", style=style)
        out.print(line, soft_wrap=True)
    out.print()
