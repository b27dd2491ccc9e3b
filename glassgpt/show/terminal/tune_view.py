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
from glassgpt.sanitize import harmless
from glassgpt.show.terminal.chart import bar
from glassgpt.tune.ranking import Row
from glassgpt.tune.search import Step
from glassgpt.tune.tune_facts import Ground
from glassgpt.tune.tuning import Tuning, automatic_in_words, setting_in_words

_RIGHT = ("tokens/s", "±", "update", "MFU", "peak")


_BUSY = 0.5  # of the cores


class TuneConsole:
    """Says what is measured on; on a terminal, a bar of the budget and what is tried now."""

    def __init__(self, out: Console, name: str, budget_s: float, quiet: bool = False) -> None:
        self._out, self._name, self._budget_s, self._quiet = out, name, budget_s, quiet
        self._ground: Ground | None = None
        self._progress = Progress(
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("of " + format.duration(budget_s) + "  {task.description}"),
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

    def __call__(self, step: Ground | Step) -> None:
        if isinstance(step, Ground):
            self._ground = step
            if not self._quiet:
                print_ground(step, self._name, self._out)
            return
        assert self._ground is not None
        what = (
            setting_in_words(self._ground, step.setting)
            if step.trial is None
            else "choosing what to try next"
        )
        best = f"; so far {format.count(step.best)} tokens/s" if step.best else ""
        self._progress.update(
            self._bar,
            completed=self._budget_s - step.left_s,
            description=what + best,
        )


def print_ground(ground: Ground, name: str, out: Console) -> None:
    lines = {
        "tune": f"{name}: {format.parameters(ground.parameters)} parameters, {ground.tokens:,} tokens per "
        f"update ({ground.sequences} sequences of {ground.block_size})",
        "device": f"{ground.device}   ({ground.device_name}, {ground.dtype}, torch {ground.torch})",
        "data": ground.data,
        "memory": f"{format.size(ground.free_bytes)} free, of which a setting may take "
        f"{format.size(ground.room_bytes)}",
        "automatic": automatic_in_words(ground),
    }
    if ground.device_type == "cpu" and ground.busy_cores > _BUSY * ground.usable_cores:
        lines["warning"] = (
            f"other programs keep {ground.busy_cores:.1f} of {ground.usable_cores:g} cores busy: "
            "the figures are theirs too"
        )
    for label, text in lines.items():
        _line(label, text, out)
    out.print()


def _line(label: str, text: str, out: Console) -> None:
    out.print(Text.assemble((f"{label:<13} ", "bold"), harmless(text)), soft_wrap=True)


# --- the end ---


def print_tuning(tuning: Tuning, out: Console) -> None:
    _print_table(tuning, out)
    _print_chart(tuning, out)
    out.print(Text(harmless(tuning.outcome.sentence), style="bold"))
    out.print()


def print_file(tuning: Tuning, path: Path, out: Console) -> None:
    tried = sum(row.trials for row in tuning.outcome.rows)
    _line("took", f"{format.duration(tuning.took_s)}, {format.plural(tried, 'trial')}", out)
    _line("written", str(path), out)
    _line("next", f"glass train {path}", out)


def _print_table(tuning: Tuning, out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("setting", *_RIGHT, "verdict"):
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=name != "verdict")
    rows = sorted(tuning.outcome.rows, key=_order)
    for row in rows:
        style = "bold green" if row.is_chosen else "" if row.figures else "dim"
        table.add_row(*(Text(harmless(cell)) for cell in _cells(row, tuning.ground)), style=style)
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


def _order(row: Row) -> tuple[bool, float]:
    """The chosen one first, the fastest next; what did not run last, as it came."""
    return not row.is_chosen, -(row.tokens_per_s or 0.0)


def _cells(row: Row, ground: Ground) -> tuple[str, ...]:
    name = setting_in_words(ground, row.setting) + (" (automatic)" if row.is_automatic else "")
    if row.figures is None or row.tokens_per_s is None:
        return name, "", "", "", "", "", row.verdict
    found = row.figures
    return (
        name,
        format.count(row.tokens_per_s),
        format.percent((found.slow_s - found.fast_s) / 2 / found.update_s),
        _update(found.update_s),
        "" if row.mfu is None else format.points(row.mfu),
        "" if found.peak_bytes is None else format.size(found.peak_bytes),
        row.verdict,
    )


def _update(seconds: float) -> str:
    return format.milliseconds(seconds * 1000) if seconds < 10 else format.duration(seconds)


def _print_chart(tuning: Tuning, out: Console) -> None:
    """The fastest that ran with each micro-batch, compiled or not as the one chosen."""
    compiled = tuning.outcome.chosen.setting.compile
    best = fastest_by_micro_batch([row for row in tuning.outcome.rows if row.setting.compile == compiled])
    if len(best) < 2:
        return
    top = max(best.values())
    width = max(10, min(50, out.width - 30))
    out.print(Text("tokens/s by micro-batch", style="bold"))
    for size, rate in sorted(best.items()):
        chosen = size == tuning.outcome.chosen.setting.micro_batch
        line = Text(f"{size:>6}  ").append(f"{bar(rate / top, width):<{width}}", style="cyan")
        line.append(f"  {format.count(rate)}", style="bold green" if chosen else "")
        out.print(line, soft_wrap=True)
    out.print()


def fastest_by_micro_batch(rows: Sequence[Row]) -> dict[int, float]:
    best: dict[int, float] = {}
    for row in rows:
        if row.tokens_per_s is not None:
            size = row.setting.micro_batch
            best[size] = max(best.get(size, 0.0), row.tokens_per_s)
    return best
