"""Writes report.html at the end of a run.

The main thread writes it, after all listeners have got all records. A listener's thread gets only a few
seconds at the end of a run, and reading a long journal takes longer.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import threading
import time
from pathlib import Path

from rich.console import Console

from glassgpt.errors import UserError
from glassgpt.format import format_duration
from glassgpt.i18n import preferred_language, use_language
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.sink import warn_listener_failed
from glassgpt.sanitize import sanitize_text
from glassgpt.training.interrupt import StopSignals

REPORT_NAME = "report.html"
MAX_LOOK_PARAMETERS = 20_000_000  # a look into a larger model takes more than about a second on a CPU
NOTICE_AFTER_S = 3.0  # of writing: then a line says so


class ReportAtEnd:
    """Listens for the end of the run; `finish` writes its report.

    A stop signal during the writing skips the report. A run that was stopped at once has none.
    """

    def __init__(self, out: Console, signals: StopSignals) -> None:
        self._out, self._signals = out, signals
        self._run_dir: Path | None = None
        self._has_ended = False

    def __call__(self, record: Record) -> None:
        if record["kind"] == "run":
            self._run_dir = Path(record["out_dir"])
        elif record["kind"] == "end" and self._run_dir is not None:
            self._run_dir = Path(
                record.get("out_dir", self._run_dir)
            )  # another one if its folder was removed
            self._has_ended = True

    def finish(self) -> None:
        """Write the report of a run that has ended, and print where it is, or why there is none.

        Nothing is raised: the exit code is the run's.
        """
        if self._run_dir is None or not self._has_ended:
            return
        started = time.monotonic()
        notice = threading.Timer(NOTICE_AFTER_S, self._print_line, ("being written; Ctrl-C skips it",))
        notice.daemon = True
        problem, was_graceful = "", self._signals.is_graceful
        try:
            self._signals.is_graceful = False  # the first signal stops the writing: everything is saved
            notice.start()
            if self._signals.quit_at_once:
                raise UserError("the run was stopped at once")
            self._write(self._run_dir)
        except KeyboardInterrupt:
            problem = f"stopped after {format_duration(time.monotonic() - started)}"
        except UserError as error:
            problem = "; ".join(error.problems)
        except OSError as error:  # the folder was moved away or removed meanwhile
            journal_path = self._run_dir / journal.FILE_NAME
            problem = f"{journal_path} cannot be read any more ({error.strerror or error})"
        except Exception as error:  # noqa: BLE001 - a bug in the report must not fail the run
            warn_listener_failed(REPORT_NAME, error)
            problem = "writing it failed"
        finally:
            self._signals.is_graceful = was_graceful
            notice.cancel()
        fix = f"`glass report {shlex.quote(str(self._run_dir))}` writes it"
        self._print_line(f"none: {problem}; {fix}" if problem else str(self._run_dir / REPORT_NAME))

    def _write(self, run_dir: Path) -> None:
        from glassgpt.explain.explanation import explain
        from glassgpt.runs.from_journal import run_log_from_records, with_looks
        from glassgpt.show.page.html import write_report

        run_log = run_log_from_records(journal.read(run_dir / journal.FILE_NAME), str(run_dir))
        if (run_log.setup.parameters or math.inf) <= MAX_LOOK_PARAMETERS:
            _look_at_last_checkpoint(run_dir)
            run_log = with_looks(run_log, run_dir)
        with use_language(preferred_language()):
            write_report(run_dir / REPORT_NAME, explain(run_log), run_dir.name)

    def _print_line(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed; the report is written all the same
            self._out.print(f"{'report':<13} {sanitize_text(text)}", soft_wrap=True, markup=False)


def _look_at_last_checkpoint(run_dir: Path) -> None:
    """For the report: the guesses of the model, its heads, and what its samples are like."""
    import torch

    from glassgpt.sample.look_document import look_and_keep
    from glassgpt.sample.sample_options import SampleOptions
    from glassgpt.sample.sampler import load_sampler

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one token at a time: more threads only wait for each other
    try:
        look_and_keep(load_sampler(f"{run_dir}@last", SampleOptions(device="cpu", dtype="float32")))
    except (UserError, OSError):
        return  # no checkpoint, or a tokenizer that is not here: the report does without it
    finally:
        torch.set_num_threads(threads)
