"""A run in the terminal, line by line, from its journal records.

During `glass train` it listens to the sink. `glass show RUN` replays a journal through it; both print the
same. On a terminal a live area stays below the lines, and lines are no wider than the terminal; elsewhere
there are plain lines only. Lines of values have the same words in every language, as logs have.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from glassgpt.data.ladder import ladder_from_rows
from glassgpt.estimate.peak import PeakFlops, mfu_note
from glassgpt.explain.rules.learned import ladder_position
from glassgpt.format import format_bytes, format_count, format_duration, format_loss, format_ms, format_norm
from glassgpt.i18n import say, translate
from glassgpt.record.finding import SERIOUS, Severity, capitalized, read_finding
from glassgpt.record.journal import Record, is_valid_profile
from glassgpt.record.ledger import PHASES
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.runs.loss_rise import MIN_EXPLOSION_NATS, MIN_EXPLOSION_RATIO, RECOVERY_LOSSES
from glassgpt.runs.noise import VISIBLE_STANDARD_ERRORS
from glassgpt.sanitize import sanitize_text
from glassgpt.show.facts_table import severity_label
from glassgpt.show.terminal.charts import bar, shorten, sparkline
from glassgpt.show.terminal.live_area import LiveArea
from glassgpt.show.terminal.run_lines import (
    details,
    first_screen,
    forecast_vs_actual_line,
    profile_lines,
    revised_forecast_line,
    say_updates,
    scaling_efficiency_line,
    suggest_next_steps,
)
from glassgpt.show.terminal.text_lines import print_line, print_values, terminal_text, wrap_words

_MAX_SPARKS = 40  # characters of the curve of validation losses
_BAR_WIDTH = 10
_EXPLOSION_RECORDS = 200  # the latest steps and evaluations, of which one can be seen

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
    "request": ("action", "by"),
    "sample": ("text", "ms"),
    "end": ("reason", "ledger", "wall_s", "best_val_loss", "best_iter"),
}
# fmt: on


class RunConsole:
    """Prints records. Its state is what later lines need of earlier records.

    `live`: on a terminal, while the run trains. `page_url`: given the run's folder, the address of its page;
    "" where there is none. It is asked once, when the run begins.
    """

    def __init__(
        self,
        out: Console,
        live: bool = False,
        verbose: bool = False,
        page_url: Callable[[Path], str] = lambda run_dir: "",
    ) -> None:
        self._out, self._live, self._verbose, self._page_url = out, live, verbose, page_url
        self._area: LiveArea | None = None
        self._run: Record = {}
        self._stderr = 0.0  # of the last evaluation
        self._train_eval: Record | None = None
        self._val_losses: list[float] = []
        self._recent: deque[Record] = deque(maxlen=_EXPLOSION_RECORDS)
        self._calm_losses = RECOVERY_LOSSES  # in a row; 0: an explosion was reported, and goes on
        self._last_mfu: float | None = None

    def tick(self, activity: str, done: int) -> None:
        """Called about once a second between records: what the loop is doing, and how many updates are
        done."""
        if self._area is not None:
            self._area.tick(activity, done)

    def __call__(self, record: Record) -> None:
        """Print a record. Skip kinds of newer versions, and records of other writers that lack fields."""
        kind = record["kind"]
        if kind not in _REQUIRED_FIELDS or any(name not in record for name in _REQUIRED_FIELDS[kind]):
            return
        if self._area is not None:
            self._area.update(record)
        match kind:
            case "run":
                self._print_run(record)
            case "resume":
                for complaint in record["complaints"]:
                    print_line(self._out, translate("severity.warning"), complaint, "yellow")
                updates, text = record["from_iter"], translate("run_console.resume.from_the_beginning")
                if updates >= 0:
                    text = translate("run_console.resume", updates=say_updates(updates))
                print_line(self._out, translate("run_console.label.resume"), text)
            case "step":
                self._print_step(record)
            case "eval":
                self._print_eval(record)
            case "checkpoint":
                not_removed = record.get("not_removed")
                blocked, background = format_ms(record["blocking_ms"]), format_ms(record["background_ms"])
                parts = [
                    (format_bytes(record["bytes"]), 0),
                    (f"blocked {blocked}, {background} in the background", 2),
                    *([("best", 1)] if record["best"] else []),
                    *([(f"older ones could not be removed: {not_removed}", 3)] if not_removed else []),
                ]
                print_values(self._out, f"saved {record['iter']:>5}", parts, "dim")
            case "forecast":
                label = translate("run_console.label.revised_forecast")
                print_line(self._out, label, revised_forecast_line(record))
            case "finding":
                self._print_finding(record)
            case "profile" if is_valid_profile(record):
                label = translate("run_console.label.profile")
                for number, line in enumerate(profile_lines(record)):
                    print_line(self._out, "" if number else label, line)
            case "request" if record["action"] == "stop":  # a save has a finding
                asked = translate("save-requested.evidence.request", by=str(record["by"]))
                print_line(self._out, translate("page.stop"), asked)
            case "sample":
                self._out.print()
                text = translate("run_console.sample", seconds=record["ms"] / 1000)
                print_line(self._out, translate("run_console.label.sample"), text)
                self._out.print(Text(sanitize_text(record["text"]), style="green"), soft_wrap=True)
            case "end":
                self._print_end(record)
        if kind in ("step", "eval"):
            self._recent.append(record)
            if kind == "step":
                self._report_explosion(float(record["loss"]))
        elif kind == "run":
            self._recent.clear()
            self._calm_losses = RECOVERY_LOSSES
        if self._area is not None:
            self._area.refresh()

    def _print_run(self, record: Record) -> None:
        if self._area is not None:  # a journal has a `run` record for each process
            self._area.stop()
        self._run, self._area = record, LiveArea(self._out, record)
        for label, text in first_screen(record, self._page_url):
            print_line(self._out, label, text)
        if self._verbose:
            self._out.print()
            for label, text in details(record):
                print_line(self._out, label, text)
        self._out.print()
        if self._live:
            self._area.start()

    def _print_finding(self, record: Record) -> None:
        finding = read_finding(record)
        text = translate("run_console.finding", title=finding.title, evidence=finding.evidence)
        if finding.advice:
            advice = translate("run_console.finding.action", advice=capitalized(finding.advice))
            text = f"{text} {advice}"
        self._print_warning(finding.severity, text)

    def _print_warning(self, severity: Severity, text: str) -> None:
        print_line(self._out, severity_label(severity), text, "" if severity == "info" else "yellow")
        if self._live and severity in SERIOUS:
            self._out.bell()

    def _report_explosion(self, loss: float) -> None:
        """Once for each, as soon as it can be told from odd batches. Looking for one costs time, so that is
        done only where the loss is high."""
        lowest = min((one["loss"] for one in self._recent if one["loss"] < math.inf), default=math.inf)
        if not max(MIN_EXPLOSION_RATIO * lowest, lowest + MIN_EXPLOSION_NATS) < loss < math.inf:
            self._calm_losses += 1
            return
        if self._calm_losses < RECOVERY_LOSSES:
            self._calm_losses = 0
            return
        analysis = Analysis(run_log_from_records([self._run, *self._recent], "", live=True))
        last = analysis.explosions[-1] if self._run and analysis.explosions else None
        if last is None or last.recovered_iteration is not None:
            return
        self._calm_losses = 0
        rise = translate(
            "run_console.loss_explosion",
            iteration=last.iteration_before,
            loss=last.loss_before,
            peak_iteration=last.peak_iteration,
            peak_loss=last.peak_loss,
        )
        self._print_warning("problem", f"{rise} {translate('divergence.advice.lower_lr')}")

    def _print_step(self, record: Record) -> None:
        parts = [(f"loss {format_loss(record['loss'])}", 0)]
        # A process's first update compiles and warms up; it is not in the step time.
        first_ms = record["first_update_ms"]
        first = "" if first_ms is None else f"first update {format_duration(first_ms / 1000)}"
        if record["step_ms"] is None:
            if first:
                parts.append((first, 2))
            elif not record.get("imported"):
                parts.append(("under the profiler", 2))
        else:
            # In columns: format_count drops zeros at the end.
            parts.append((f"{format_ms(record['step_ms']):>8}", 1))
            parts.append((f"{format_count(record['tokens_per_s']):>5} tok/s", 1))
        if record["mfu"] is not None:
            mfu = record["mfu"]
            parts.append((f"MFU {mfu:.1f}%" if mfu >= 0.95 or mfu == 0 else f"MFU {mfu:.2g}%", 1))
            self._last_mfu = mfu
        parts.append((f"lr {record['lr']:.2e}", 3))
        if record["grad_norm"] is not None:  # nanoGPT does not print it
            parts.append((f"norm {format_norm(record['grad_norm'])}", 2))
        eta_s = record["eta_s"]
        max_iters = int(self._run["config"]["max_iters"]) if self._run else 0
        if eta_s is not None and record["iter"] < max_iters:
            parts.append((f"{format_duration(eta_s)} to go", 4))
        if first and record["step_ms"] is not None:
            parts.append((f"({first})", 4))
        style = "" if math.isfinite(record["loss"]) else "red"
        print_values(self._out, f"iter {record['iter']:>6}", parts, style)

    def _print_eval(self, record: Record) -> None:
        """One line for both splits: the record of the training split comes first, and is held back."""
        if record["split"] == "train":
            self._train_eval = record
            return
        train, self._train_eval = self._train_eval, None
        ms = None if record["ms"] is None else record["ms"] + (train["ms"] if train else 0.0)
        compile_ms = record["compile_ms"] + (train["compile_ms"] if train else 0.0)
        loss = f"val {format_loss(record['loss'])}"
        if not math.isnan(record["stderr"]):
            loss += f" ± {format_loss(record['stderr'])}"
        parts = [(f"train {format_loss(train['loss'])}", 0)] if train else []
        parts.append((loss, 0))
        if record["bits_per_byte"] is not None:
            bits = record["bits_per_byte"]
            parts.append((f"{bits:.3f} bits/byte" if bits < 1000 else f"{bits:.4g} bits/byte", 2))
        # The closing evaluation is over other tokens than those before it: a reader must see that.
        tokens = "whole split" if record["whole_split"] else f"{format_count(record['tokens'])} tokens"
        parts.append((tokens, 1 if record["closing"] else 3))
        if ms is not None:
            took = f"took {format_duration(ms / 1000)}"
            if compile_ms >= 1:
                took += f" (and {format_duration(compile_ms / 1000)} compile and warm-up)"
            parts.append((took, 4))
        if not record["closing"]:
            self._val_losses.append(record["loss"])
            self._stderr = record["stderr"] if math.isfinite(record["stderr"]) else 0.0
        if record["best"] and record["iter"]:
            parts.append(("best so far", 1))
        print_values(self._out, f"eval {record['iter']:>6}", parts, "cyan")

    def _print_end(self, record: Record) -> None:
        """The ledger, how the run ended, the best loss, scaling, forecast against actual, and next steps."""
        if self._area is not None:
            self._area.stop()
        self._out.print()
        if self._area is not None and self._out.is_terminal and (chart := self._area.chart()):
            for line in chart:
                self._out.print(line, soft_wrap=True)
            self._out.print()
        self._print_ledger(record["ledger"], record["wall_s"])
        reasons = {
            "finished": say("run_console.end.finished"),
            "stopped early": say("run_console.end.stopped_early"),
            "interrupted": say("run_console.end.interrupted"),
            "evaluated": say("run_console.end.evaluated"),
            "not finite": say("run_console.end.not_finite"),
            "crashed": say("run_console.end.crashed"),
        }
        outcome = {
            "reason": reasons.get(record["reason"], record["reason"]),
            "updates": say_updates(record["iter"]),
            "seconds": record["wall_s"],
        }
        text = translate("run_console.end", **outcome)
        before = self._run.get("iter", 0)
        if before > 0:  # the time is that of this process: say how many updates it did
            text = translate("run_console.end.resumed", own=max(0, record["iter"] - before), **outcome)
        print_line(self._out, translate("run_console.label.end"), text)
        if record["best_iter"] is not None:
            best = translate("run_console.best", loss=record["best_val_loss"], update=record["best_iter"])
            curve = sparkline(shorten(self._val_losses, _MAX_SPARKS))
            print_line(self._out, translate("run_console.label.best"), f"{best}   {curve}".rstrip())
            if meaning := self._loss_in_words(record["best_val_loss"]):
                print_line(self._out, "", meaning)
        if "ranks" in record and (scaling := scaling_efficiency_line(record["ranks"])):
            print_line(self._out, translate("run_console.label.scaling"), scaling)
        if "forecast" in record and (compared := forecast_vs_actual_line(record["forecast"])):
            print_line(self._out, translate("run_console.label.forecast"), compared)
        fields = ("table", "table_source", "measured", "measured_how")
        peak = PeakFlops(**{name: self._run["peak"][name] for name in fields}) if self._run else None
        if note := mfu_note(self._last_mfu, peak):
            print_line(self._out, "MFU", note, "yellow")
        steps = suggest_next_steps(record, self._run)
        width = max((cell_len(step.text) for step in steps if step.command), default=0)
        for label, text, command in steps:
            padded = text + " " * (width - cell_len(text)) if command else text
            print_line(self._out, label, padded, command=command)

    def _loss_in_words(self, loss: float) -> str:
        """Between which tables of n-grams of its text it stands, beyond noise; "" where that is not known."""
        ladder = ladder_from_rows(self._run.get("data", {}).get("ladder"))
        loss += VISIBLE_STANDARD_ERRORS * self._stderr
        passed = None if ladder is None else ladder.highest_passed(loss)
        if ladder is None or passed is None or passed.order == 0:
            return ""
        ahead = [rung for rung in ladder.rungs if rung.loss < passed.loss]
        return f"{ladder_position(passed, max(ahead, key=lambda rung: rung.loss, default=None))}."

    def _print_ledger(self, ledger: Record, wall_s: float) -> None:
        """Phases have the names of the journal, and say beside them what they are."""
        descriptions = {
            "startup": translate("run_console.phase.startup"),
            "compile": translate("run_console.phase.compile"),
            "data": translate("run_console.phase.data"),
            "train": translate("run_console.phase.train"),
            "eval": translate("run_console.phase.eval"),
            "checkpoint": translate("run_console.phase.checkpoint"),
            "log": translate("run_console.phase.log"),
            "other": translate("run_console.phase.other"),
        }
        title = terminal_text(translate("run_console.ledger.title"))
        self._out.print(Text(title, style="bold"), soft_wrap=True)
        width = len(f"{wall_s:.2f} s")
        for phase in PHASES:
            share = ledger[phase] / wall_s if wall_s else 0.0
            seconds = f"{ledger[phase]:.2f} s"
            head = Text(f"{phase:<10}  {seconds:>{width}}  {share:>6.1%}  ")
            head.append(f"{bar(share, _BAR_WIDTH):<{_BAR_WIDTH}}  ", style="cyan")
            room = self._out.width - head.cell_len if self._out.is_terminal else sys.maxsize
            for line in wrap_words(terminal_text(descriptions[phase]), self._out, room):
                self._out.print(head + Text(line, style="dim"), soft_wrap=True)
                head = Text(" " * head.cell_len)
        self._out.print(Text(f"{'wall time':<10}  {wall_s:.2f} s  {1:>6.1%}", style="bold"), soft_wrap=True)
