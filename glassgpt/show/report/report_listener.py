"""The report at the end of a run.

It is written by the main thread after all listeners have heard everything, however long that takes: a
listener's thread is waited for a few seconds, and a long journal takes longer to read.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from glassgpt import format
from glassgpt.errors import UserError
from glassgpt.i18n import preferred_language, use_language
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.sink import warn_listener_failed
from glassgpt.sanitize import sanitize_text
from glassgpt.training.interrupt import StopSignals

REPORT_NAME = "report.html"
NOTICE_AFTER_S = 3.0  # of writing; then a line says what takes so long


class ReportAtEnd:
    """`stop`: a signal while the report is written gives up on it; one that quit the run leaves it out."""

    def __init__(self, out: Console, stop: StopSignals) -> None:
        self._out, self._stop = out, stop
        self.is_console_open = (
            True  # where nobody reads the output any more, the report is written all the same
        )
        self._run_dir: Path | None = None
        self._has_ended = False

    def __call__(self, record: Record) -> None:
        if record["kind"] == "run":
            self._run_dir = Path(record["out_dir"])
        elif record["kind"] == "end" and self._run_dir is not None:
            self._run_dir = Path(record.get("out_dir", self._run_dir))  # another one, if it lost its folder
            self._has_ended = True

    def finish(self) -> None:
        """Write the report of a run that has ended, and print where it is, or why there is none.

        Nothing is raised: the run keeps its exit code.
        """
        if self._run_dir is None or not self._has_ended:
            return
        begun = time.monotonic()
        notice = threading.Timer(NOTICE_AFTER_S, self._say_that_it_takes_time, (self._run_dir,))
        notice.daemon = True
        reason, gentle = "", self._stop.is_graceful
        try:
            self._stop.is_graceful = False  # the first signal ends the writing: there is nothing left to save
            notice.start()
            self._write(self._run_dir)
        except KeyboardInterrupt:
            reason = f"stopped after {format.format_duration(time.monotonic() - begun)}"
        except UserError as error:
            reason = "; ".join(error.problems)
        except OSError as error:  # the folder was moved away or removed meanwhile
            reason = (
                f"{self._run_dir / journal.FILE_NAME} cannot be read any more ({error.strerror or error})"
            )
        except Exception as error:  # noqa: BLE001 - a mistake in the page must not become the run's
            warn_listener_failed(REPORT_NAME, error)
            reason = "writing it failed"
        finally:
            self._stop.is_graceful = gentle
            notice.cancel()
        later = f"`glass report {shlex.quote(str(self._run_dir))}` writes it"
        self._print_line(f"none: {reason}; {later}" if reason else str(self._run_dir / REPORT_NAME))

    def _say_that_it_takes_time(self, run_dir: Path) -> None:
        with contextlib.suppress(OSError):  # it is gone: whoever reads it says so
            size = format.format_bytes((run_dir / journal.FILE_NAME).stat().st_size)
            self._print_line(f"being written from a journal of {size}; Ctrl-C leaves it out")

    def _print_line(self, text: str) -> None:
        if self.is_console_open:
            try:
                self._out.print(f"{'report':<13} {sanitize_text(text)}", soft_wrap=True, markup=False)
            except OSError as error:
                self.is_console_open = False
                warn_listener_failed("console", error)

    def _write(self, run_dir: Path) -> None:
        if self._stop.quit_at_once:
            raise UserError("the run was stopped at once")
        if find_spec("plotly") is None:
            raise UserError("plotly is not installed (pip install 'glassgpt[report]')")
        from glassgpt.explain.explanation import explain
        from glassgpt.runs.from_journal import run_log_from_records
        from glassgpt.show.report.page import write_report

        history = run_log_from_records(journal.read(run_dir / journal.FILE_NAME), str(run_dir))
        with use_language(preferred_language()):
            told = explain(history)
            write_report(run_dir / REPORT_NAME, history, told.facts, told.findings, run_dir.name)
