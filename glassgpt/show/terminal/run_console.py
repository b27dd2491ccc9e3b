"""A run in the terminal, line by line, from its records.

It is a listener of the sink during a run, and replays a journal afterwards (`glass show RUN`): both print the
same. On a terminal a progress bar stays below the lines; elsewhere there are plain lines only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from glassgpt import format
from glassgpt.estimate.peak import PeakFlops, mfu_note
from glassgpt.record.clock import PHASES
from glassgpt.record.finding import finding_line
from glassgpt.record.journal import Record, is_valid_profile
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.chart import bar, sparkline
from glassgpt.show.terminal.forecast_lines import forecast_line, forecast_vs_actual_line
from glassgpt.show.terminal.next_steps import suggest_next_steps
from glassgpt.show.terminal.profile_view import profile_line, profile_rows
from glassgpt.show.terminal.ranks_view import scaling_efficiency_line

_PHASE_DESCRIPTIONS = {
    "startup": "imports, reading data, building the model",
    "compile": "first calls beyond a steady step: compiling, warming up",
    "data": "waiting for batches",
    "train": "forward, backward, optimizer",
    "eval": "train and validation loss, sample",
    "checkpoint": "copying weights; writing them goes on in the background",
    "log": "this output, the journal, updates under the profiler",
    "other": "what none of the above claims",
}

_PROFILE_ROWS = 10

# fmt: off
_REQUIRED_FIELDS = {
    "run": ("out_dir", "config", "choices", "model", "peak", "data", "machine"),
    "resume": ("from_iter", "complaints"),
    "step": ("loss", "lr", "grad_norm", "step_ms", "phases", "tokens_per_s", "mfu", "eta_s",
             "first_update_ms"),
    "eval": ("split", "loss", "stderr", "tokens", "whole_split", "closing", "best", "bits_per_byte", "ms",
             "compile_ms"),
    "checkpoint": ("bytes", "blocking_ms", "background_ms", "best"),
    "finding": ("severity", "title", "evidence", "advice"),
    "profile": (),
    "sample": ("text", "ms"),
    "end": ("reason", "ledger", "wall_s", "best_val_loss", "best_iter"),
}
# fmt: on


class RunConsole:
    """Prints records. Holds only what a later line needs of earlier ones."""

    def __init__(self, out: Console, live: bool = False) -> None:
        self._out, self._live = out, live
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._run: Record = {}
        self._train_eval: Record | None = None
        self._val_losses: list[float] = []
        self._last_mfu: float | None = None
        self._printers: dict[str, Callable[[Record], None]] = {
            "run": self._print_run,
            "resume": self._print_resume,
            "step": self._print_step,
            "eval": self._print_eval,
            "checkpoint": self._print_checkpoint,
            "finding": self._print_finding,
            "profile": self._print_profile,
            "sample": self._print_sample,
            "end": self._print_end,
        }

    def __call__(self, record: Record) -> None:
        show = self._printers.get(record["kind"])
        # A record from elsewhere that lacks what its line is made of is passed over.
        if show and all(name in record for name in _REQUIRED_FIELDS[record["kind"]]):
            show(record)

    def _print_line(self, label: str, text: str, style: str = "") -> None:
        line = Text.assemble((f"{sanitize_text(label):<13} ", "bold"), (sanitize_text(text), style))
        self._out.print(line, soft_wrap=True)

    # --- the start ---

    def _print_run(self, record: Record) -> None:
        self._run = record
        model, peak = record["model"], record["peak"]
        machine = record["machine"]
        by = f"glassgpt {machine['glassgpt']}, torch {machine['torch']}" if machine else "imported"
        self._print_line("run", f"{record['out_dir']}   ({by})")
        self._print_line(
            "model",
            f"{model['arch']}: {format.pluralize(model['n_layer'], 'layer')}, "
            f"{format.pluralize(model['n_head'], 'head')}, {model['n_embd']} wide, "
            f"context {model['block_size']}: {format.format_count(model['parameters'])} parameters",
        )
        self._print_line("data", _describe_data(record))
        for choice in record["choices"]:
            value = str(choice["value"])
            # A newline must not break the line.
            shown = value if value and value.isprintable() else repr(value)
            self._print_line(choice["name"], f"{shown}   ({choice['reason']})")
        value = peak["value"]
        self._print_line(
            "MFU",
            f"{format.format_flops_per_token(model['flops_per_token'])} per token, "
            + (f"100% is {format.format_flops_per_s(value)}" if value else "no peak to compare with")
            + f"   ({_peak_origin(peak)})",
        )
        if "forecast" in record:
            self._print_line("expected", forecast_line(record["forecast"]))
        self._out.print()
        if self._live:
            self._start_bar(record)

    def _start_bar(self, record: Record) -> None:
        self._progress = Progress(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:.0f}%  {task.fields[note]}"),
            console=self._out,
            transient=True,
        )
        total = record["config"]["max_iters"]
        self._task = self._progress.add_task("", total=total, completed=record["iter"], note="starting")
        self._progress.start()

    def _move_bar(self, done: int, note: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)

    def _print_resume(self, record: Record) -> None:
        for complaint in record["complaints"]:
            self._print_line("warning", complaint, "yellow")
        done = record["from_iter"]
        self._print_line(
            "resume", f"after {format.pluralize(done, 'update')}" if done >= 0 else "from the beginning"
        )

    # --- on the way ---

    def _print_step(self, record: Record) -> None:
        parts = [f"loss {format.format_loss(record['loss'])}"]
        # A process's first update compiles and warms up; it is not in the step time.
        first_ms = record["first_update_ms"]
        first = "" if first_ms is None else f"first update {format.format_duration(first_ms / 1000)}"
        if record["step_ms"] is None:
            if first:
                parts.append(first)
            elif not record.get("imported"):
                parts.append("under the profiler")
        else:
            parts.append(format.format_ms(record["step_ms"]))
            parts.append(f"{format.format_count(record['tokens_per_s'])} tok/s")
        if record["mfu"] is not None:
            mfu = record["mfu"]
            parts.append(f"MFU {mfu:.1f}%" if mfu >= 0.95 or mfu == 0 else f"MFU {mfu:.2g}%")
            self._last_mfu = record["mfu"]
        parts.append(f"lr {record['lr']:.2e}")
        if record["grad_norm"] is not None:  # nanoGPT does not print it
            parts.append(f"norm {format.format_norm(record['grad_norm'])}")
        if record["eta_s"] is not None and record["iter"] < self._max_iters():
            parts.append(f"{format.format_duration(record['eta_s'])} to go")
        if first and record["step_ms"] is not None:
            parts.append(f"({first})")
        bad = "" if math.isfinite(record["loss"]) else "red"
        self._print_line(f"iter {record['iter']:>6}", "  ".join(parts), bad)
        left = record["eta_s"]
        self._move_bar(record["iter"], f"{format.format_duration(left)} to go" if left else "")

    def _max_iters(self) -> int:
        return int(self._run["config"]["max_iters"]) if self._run else 0

    def _print_eval(self, record: Record) -> None:
        if record["split"] == "train":
            self._train_eval = record
            return
        train, self._train_eval = self._train_eval, None
        ms = None if record["ms"] is None else record["ms"] + (train["ms"] if train else 0.0)
        compile_ms = record["compile_ms"] + (train["compile_ms"] if train else 0.0)
        text = f"val {format.format_loss(record['loss'])}"
        if not math.isnan(record["stderr"]):
            text += f" ± {format.format_loss(record['stderr'])}"
        if train:
            text = f"train {format.format_loss(train['loss'])}  {text}"
        if record["bits_per_byte"] is not None:
            bits = record["bits_per_byte"]
            text += f"  {bits:.3f} bits/byte" if bits < 1000 else f"  {bits:.4g} bits/byte"
        text += (
            "  whole split" if record["whole_split"] else f"  {format.format_count(record['tokens'])} tokens"
        )
        text += f"  took {format.format_duration(ms / 1000)}" if ms is not None else ""
        if compile_ms >= 1:
            text += f" (and {format.format_duration(compile_ms / 1000)} compile and warm-up)"
        if not record["closing"]:
            self._val_losses.append(record["loss"])
        if record["best"] and record["iter"]:
            text += "  best so far"
        self._print_line(f"eval {record['iter']:>6}", text, "cyan")

    def _print_checkpoint(self, record: Record) -> None:
        self._print_line(
            f"save {record['iter']:>6}",
            f"{format.format_bytes(record['bytes'])}  blocked {format.format_ms(record['blocking_ms'])}, "
            f"{format.format_ms(record['background_ms'])} in the background"
            + ("  best" if record["best"] else "")
            + (f"  older ones could not be removed: {why}" if (why := record.get("not_removed")) else ""),
            "dim",
        )

    def _print_finding(self, record: Record) -> None:
        style = "" if record["severity"] == "info" else "yellow"
        self._print_line(record["severity"], finding_line(record), style)

    def _print_profile(self, record: Record) -> None:
        if not is_valid_profile(record):
            return
        self._print_line("profile", profile_line(record))
        for row in profile_rows(record)[:_PROFILE_ROWS]:
            self._print_line("", row)

    # --- the end ---

    def _print_sample(self, record: Record) -> None:
        self._out.print()
        self._print_line("sample", f"{format.format_duration(record['ms'] / 1000)}, not cherry-picked:")
        self._out.print(Text(sanitize_text(record["text"]), style="green"), soft_wrap=True)

    def _print_end(self, record: Record) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._out.print()
        self._print_ledger(record)
        self._print_line("end", _describe_end(record, self._run))
        if record["best_iter"] is not None:
            best, curve = format.format_loss(record["best_val_loss"]), sparkline(self._val_losses)
            self._print_line(
                "best",
                f"validation loss {best} at iter {record['best_iter']:,}   {curve}",
            )
        if "ranks" in record and (told := scaling_efficiency_line(record["ranks"])):
            self._print_line("ranks", told)
        if "forecast" in record and (told := forecast_vs_actual_line(record["forecast"])):
            self._print_line("forecast", told)
        note = mfu_note(self._last_mfu, _peak(self._run))
        if note:
            self._print_line("MFU", note, "yellow")
        for label, text in suggest_next_steps(record, self._run):
            self._print_line(label, text)

    def _print_ledger(self, record: Record) -> None:
        wall = record["wall_s"]
        self._out.print(Text(f"{'where the time went':<19}{'s':>10}{'%':>8}", style="bold"))
        for name in PHASES:
            seconds = record["ledger"][name]
            share = seconds / wall if wall else 0.0
            line = Text(f"{name:<19}{seconds:>10.2f}{share:>8.1%}  ")
            line.append(f"{bar(share, 20):<20}  ", style="cyan").append(
                _PHASE_DESCRIPTIONS[name], style="dim"
            )
            self._out.print(line, soft_wrap=True)
        self._out.print(Text(f"{'wall time':<19}{wall:>10.2f}{1:>8.1%}", style="bold"))


def _describe_end(end: Record, run: Record) -> str:
    """The time is this process's; of a run that went on, so are only its last updates."""
    text = f"{end['reason']} after {format.pluralize(end['iter'], 'update')}"
    before = run.get("iter", 0)
    if before > 0:
        text += f", {max(0, end['iter'] - before):,} of them by this process,"
    return f"{text} in {format.format_duration(end['wall_s'])}"


def _describe_data(run: Record) -> str:
    data = run["data"]
    if "tokens" not in data:  # of an imported run, whose data was not there
        return f"{data['name']}: not found"
    tokens, updates, epochs = data["tokens"], run["config"]["max_iters"], format.format_epochs(data["epochs"])
    return (
        f"{data['name']}: {format.format_count(tokens['train'])} tokens to learn from, "
        f"{format.format_count(tokens['val'])} held out, {data['tokenizer']}; "
        f"{format.pluralize(updates, 'update')} {'is' if updates == 1 else 'are'} {epochs} "
        f"{'epoch' if epochs == '1' else 'epochs'}"
    )


def _peak_origin(peak: Record) -> str:
    if peak["table"] and peak["measured"]:
        return f"{peak['source']}; matmuls here reach {format.format_flops_per_s(peak['measured'])}"
    return str(peak["source"])


def _peak(run: Record) -> PeakFlops | None:
    names = ("table", "table_source", "measured", "measured_how")
    return PeakFlops(**{name: run["peak"][name] for name in names}) if run else None
