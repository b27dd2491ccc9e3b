"""A run in the terminal, line by line, from its journal records.

During `glass train` it listens to the sink. `glass show RUN` replays a journal through it; both print the
same. On a terminal a progress bar stays below the lines; elsewhere there are plain lines only.
"""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from glassgpt.estimate.peak import PeakFlops, mfu_note
from glassgpt.format import (
    format_bytes,
    format_count,
    format_duration,
    format_epochs,
    format_flops_per_s,
    format_flops_per_token,
    format_loss,
    format_ms,
    format_norm,
    pluralize,
)
from glassgpt.record.finding import finding_line
from glassgpt.record.journal import Record, is_valid_profile
from glassgpt.record.ledger import PHASES
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.chart import bar, shorten, sparkline
from glassgpt.show.terminal.run_lines import (
    forecast_line,
    forecast_vs_actual_line,
    print_line,
    profile_lines,
    revised_forecast_line,
    scaling_efficiency_line,
    suggest_next_steps,
)

_MAX_SPARKS = 60  # characters of the curve of validation losses

_PHASE_DESCRIPTIONS = {
    "startup": "imports, reading data, building the model",
    "compile": "first calls, minus a steady step: compile and warm-up",
    "data": "waiting for batches",
    "train": "forward, backward, optimizer step",
    "eval": "train and validation loss, sample",
    "checkpoint": "copying weights; files are written in the background",
    "log": "this output, the journal, updates under the profiler",
    "other": "everything else",
}

# fmt: off
_REQUIRED_FIELDS = {
    "run": ("out_dir", "config", "choices", "model", "peak", "data", "machine"),
    "resume": ("from_iter", "complaints"),
    "step": ("loss", "lr", "grad_norm", "step_ms", "phases", "tokens_per_s", "mfu", "eta_s",
             "first_update_ms"),
    "eval": ("split", "loss", "stderr", "tokens", "whole_split", "closing", "best", "bits_per_byte", "ms",
             "compile_ms"),
    "checkpoint": ("bytes", "blocking_ms", "background_ms", "best"),
    "forecast": ("updates", "seconds", "total_s"),
    "finding": ("severity", "title", "evidence", "advice"),
    "profile": (),
    "sample": ("text", "ms"),
    "end": ("reason", "ledger", "wall_s", "best_val_loss", "best_iter"),
}
# fmt: on


class RunConsole:
    """Prints records. Its state is what later lines need of earlier records."""

    def __init__(self, out: Console, live: bool = False) -> None:
        self._out, self._live = out, live
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._run: Record = {}
        self._train_eval: Record | None = None
        self._val_losses: list[float] = []
        self._last_mfu: float | None = None

    def __call__(self, record: Record) -> None:
        """Print a record. Skip kinds of newer versions, and records of other writers that lack fields."""
        kind = record["kind"]
        if kind not in _REQUIRED_FIELDS or any(name not in record for name in _REQUIRED_FIELDS[kind]):
            return
        match kind:
            case "run":
                self._print_run(record)
            case "resume":
                for complaint in record["complaints"]:
                    print_line(self._out, "warning", complaint, "yellow")
                updates = record["from_iter"]
                after = f"after {pluralize(updates, 'update')}"
                print_line(self._out, "resume", after if updates >= 0 else "from the beginning")
            case "step":
                self._print_step(record)
            case "eval":
                self._print_eval(record)
            case "checkpoint":
                not_removed = record.get("not_removed")
                print_line(
                    self._out,
                    f"saved {record['iter']:>5}",
                    f"{format_bytes(record['bytes'])}  "
                    f"blocked {format_ms(record['blocking_ms'])}, "
                    f"{format_ms(record['background_ms'])} in the background"
                    + ("  best" if record["best"] else "")
                    + (f"  older ones could not be removed: {not_removed}" if not_removed else ""),
                    "dim",
                )
            case "forecast":
                print_line(self._out, "now expected", revised_forecast_line(record))
            case "finding":
                style = "" if record["severity"] == "info" else "yellow"
                print_line(self._out, record["severity"], finding_line(record), style)
            case "profile" if is_valid_profile(record):
                for number, line in enumerate(profile_lines(record)):
                    print_line(self._out, "" if number else "profile", line)
            case "sample":
                self._out.print()
                took = format_duration(record["ms"] / 1000)
                print_line(self._out, "sample", f"{took}, not cherry-picked:")
                self._out.print(Text(sanitize_text(record["text"]), style="green"), soft_wrap=True)
            case "end":
                self._print_end(record)

    def _print_run(self, record: Record) -> None:
        """The model, the data, every choice with its reason, what 100% MFU is, and the forecast."""
        self._run = record
        model, peak, data, machine = record["model"], record["peak"], record["data"], record["machine"]
        versions = f"glassgpt {machine['glassgpt']}, torch {machine['torch']}" if machine else "imported"
        print_line(self._out, "run", f"{record['out_dir']}   ({versions})")
        print_line(
            self._out,
            "model",
            f"{model['arch']}: {pluralize(model['n_layer'], 'layer')}, "
            f"{pluralize(model['n_head'], 'head')}, {model['n_embd']} wide, "
            f"context {model['block_size']}: {format_count(model['parameters'])} parameters",
        )
        if "tokens" in data:
            updates, epochs = record["config"]["max_iters"], format_epochs(data["epochs"])
            data_line = (
                f"{format_count(data['tokens']['train'])} training tokens, "
                f"{format_count(data['tokens']['val'])} validation tokens, {data['tokenizer']}; "
                f"{pluralize(updates, 'update')} {'is' if updates == 1 else 'are'} {epochs} "
                f"{'epoch' if epochs == '1' else 'epochs'}"
            )
        else:  # an imported run whose dataset is not on this machine
            data_line = "not found"
        print_line(self._out, "data", f"{data['name']}: {data_line}")
        for choice in record["choices"]:
            value = str(choice["value"])
            # A newline must not break the line.
            shown = value if value and value.isprintable() else repr(value)
            print_line(self._out, choice["name"], f"{shown}   ({choice['reason']})")
        source = str(peak["source"])
        if peak["table"] and peak["measured"]:
            source += f"; matmuls here reach {format_flops_per_s(peak['measured'])}"
        if peak["value"]:
            full = f"100% is {format_flops_per_s(peak['value'])}   ({source})"
        else:
            full = f"peak unknown: {source.removeprefix('unknown: ')}"
        flops = format_flops_per_token(model["flops_per_token"])
        print_line(self._out, "MFU", f"{flops} per token, {full}")
        if "forecast" in record:
            print_line(self._out, "expected", forecast_line(record["forecast"]))
        self._out.print()
        if self._live:
            self._start_progress_bar(record["config"]["max_iters"], record["iter"])

    def _start_progress_bar(self, max_iters: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:.0f}%  {task.fields[note]}"),
            console=self._out,
            transient=True,
        )
        self._task = self._progress.add_task("", total=max_iters, completed=done, note="starting")
        self._progress.start()

    def _print_step(self, record: Record) -> None:
        parts = [f"loss {format_loss(record['loss'])}"]
        # A process's first update compiles and warms up; it is not in the step time.
        first_ms = record["first_update_ms"]
        first = "" if first_ms is None else f"first update {format_duration(first_ms / 1000)}"
        if record["step_ms"] is None:
            if first:
                parts.append(first)
            elif not record.get("imported"):
                parts.append("under the profiler")
        else:
            parts.append(format_ms(record["step_ms"]))
            parts.append(f"{format_count(record['tokens_per_s'])} tok/s")
        if record["mfu"] is not None:
            mfu = record["mfu"]
            parts.append(f"MFU {mfu:.1f}%" if mfu >= 0.95 or mfu == 0 else f"MFU {mfu:.2g}%")
            self._last_mfu = mfu
        parts.append(f"lr {record['lr']:.2e}")
        if record["grad_norm"] is not None:  # nanoGPT does not print it
            parts.append(f"norm {format_norm(record['grad_norm'])}")
        eta_s = record["eta_s"]
        max_iters = int(self._run["config"]["max_iters"]) if self._run else 0
        if eta_s is not None and record["iter"] < max_iters:
            parts.append(f"{format_duration(eta_s)} to go")
        if first and record["step_ms"] is not None:
            parts.append(f"({first})")
        style = "" if math.isfinite(record["loss"]) else "red"
        print_line(self._out, f"iter {record['iter']:>6}", "  ".join(parts), style)
        if self._progress is not None and self._task is not None:
            note = f"{format_duration(eta_s)} to go" if eta_s else ""
            self._progress.update(self._task, completed=record["iter"], note=note)

    def _print_eval(self, record: Record) -> None:
        """One line for both splits: the record of the training split comes first, and is held back."""
        if record["split"] == "train":
            self._train_eval = record
            return
        train, self._train_eval = self._train_eval, None
        ms = None if record["ms"] is None else record["ms"] + (train["ms"] if train else 0.0)
        compile_ms = record["compile_ms"] + (train["compile_ms"] if train else 0.0)
        text = f"val {format_loss(record['loss'])}"
        if not math.isnan(record["stderr"]):
            text += f" ± {format_loss(record['stderr'])}"
        if train:
            text = f"train {format_loss(train['loss'])}  {text}"
        if record["bits_per_byte"] is not None:
            bits = record["bits_per_byte"]
            text += f"  {bits:.3f} bits/byte" if bits < 1000 else f"  {bits:.4g} bits/byte"
        text += "  whole split" if record["whole_split"] else f"  {format_count(record['tokens'])} tokens"
        text += f"  took {format_duration(ms / 1000)}" if ms is not None else ""
        if compile_ms >= 1:
            text += f" (and {format_duration(compile_ms / 1000)} compile and warm-up)"
        if not record["closing"]:
            self._val_losses.append(record["loss"])
        if record["best"] and record["iter"]:
            text += "  best so far"
        print_line(self._out, f"eval {record['iter']:>6}", text, "cyan")

    def _print_end(self, record: Record) -> None:
        """The ledger, how the run ended, the best loss, scaling, forecast against actual, and next steps."""
        if self._progress is not None:
            self._progress.stop()
        self._out.print()
        self._print_ledger(record["ledger"], record["wall_s"])
        # In a resumed run the time is that of this process: say how many updates it did.
        outcome = f"{record['reason']} after {pluralize(record['iter'], 'update')}"
        before = self._run.get("iter", 0)
        if before > 0:
            outcome += f", {max(0, record['iter'] - before):,} of them by this process,"
        print_line(self._out, "end", f"{outcome} in {format_duration(record['wall_s'])}")
        if record["best_iter"] is not None:
            best = format_loss(record["best_val_loss"])
            curve = sparkline(shorten(self._val_losses, _MAX_SPARKS))
            line = f"validation loss {best} at iter {record['best_iter']:,}   {curve}"
            print_line(self._out, "best", line.rstrip())
        if "ranks" in record and (scaling := scaling_efficiency_line(record["ranks"])):
            print_line(self._out, "scaling", scaling)
        if "forecast" in record and (compared := forecast_vs_actual_line(record["forecast"])):
            print_line(self._out, "forecast", compared)
        fields = ("table", "table_source", "measured", "measured_how")
        peak = PeakFlops(**{name: self._run["peak"][name] for name in fields}) if self._run else None
        if note := mfu_note(self._last_mfu, peak):
            print_line(self._out, "MFU", note, "yellow")
        for label, text in suggest_next_steps(record, self._run):
            print_line(self._out, label, text)

    def _print_ledger(self, ledger: Record, wall_s: float) -> None:
        self._out.print(Text(f"{'where the time went':<19}{'s':>10}{'%':>8}", style="bold"))
        for phase in PHASES:
            share = ledger[phase] / wall_s if wall_s else 0.0
            line = Text(f"{phase:<19}{ledger[phase]:>10.2f}{share:>8.1%}  ")
            line.append(f"{bar(share, 20):<20}  ", style="cyan")
            line.append(_PHASE_DESCRIPTIONS[phase], style="dim")
            self._out.print(line, soft_wrap=True)
        self._out.print(Text(f"{'wall time':<19}{wall_s:>10.2f}{1:>8.1%}", style="bold"))
