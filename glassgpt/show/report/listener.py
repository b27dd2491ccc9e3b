"""The report at the end of a run: a listener, which writes report.html when the run says that it has
ended."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from glassgpt.account import journal
from glassgpt.account.journal import Record
from glassgpt.errors import UserError
from glassgpt.harmless import harmless
from glassgpt.words import preferred_language, speaking

NAME = "report.html"


class ReportAtEnd:
    def __init__(self, out: Console) -> None:
        self._out = out
        self.is_read = True  # where nobody reads the output any more, the report is written all the same
        self._run_dir: Path | None = None

    def __call__(self, record: Record) -> None:
        if record["kind"] == "run":
            self._run_dir = Path(record["out_dir"])
        elif record["kind"] == "end" and self._run_dir is not None:
            run_dir = Path(record.get("out_dir", self._run_dir))  # a run that lost its folder has another one
            told = f"{'report':<13} {harmless(self._write(run_dir))}"
            if self.is_read:
                self._out.print(told, soft_wrap=True, markup=False)

    def _write(self, run_dir: Path) -> str:
        if find_spec("plotly") is None:
            return "none: plotly is not installed (pip install 'glassgpt[report]')"
        from glassgpt.insight.explain import explain
        from glassgpt.insight.own import history_of
        from glassgpt.show.report.page import write_report

        try:
            history = history_of(journal.read(run_dir / journal.NAME), str(run_dir))
            with speaking(preferred_language()):
                told = explain(history)
                write_report(run_dir / NAME, history, told.facts, told.findings, run_dir.name)
        except UserError as error:
            return f"none: {'; '.join(error.problems)}"
        except OSError as error:  # the folder was moved away or removed meanwhile
            return f"none: {run_dir / journal.NAME} cannot be read any more ({error.strerror or error})"
        return str(run_dir / NAME)
