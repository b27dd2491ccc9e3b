"""The report at the end of a run: never in the way of the run."""

from __future__ import annotations

import io
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_records import end_record, run_record, whole_run
from small_runs import prepare_dataset, train_run

from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.sink import Sink
from glassgpt.runs.reading import read_run_log
from glassgpt.show.page.html import report_html
from glassgpt.show.page.report_listener import REPORT_NAME, ReportAtEnd
from glassgpt.training.interrupt import ImmediateStop, StopSignals


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)


def records(folder: Path) -> list[Record]:
    return [{**one, "out_dir": str(folder)} if one["kind"] == "run" else one for one in whole_run()]


def report_output(folder: Path, run_records: list[Record], signals: StopSignals | None = None) -> str:
    """What is printed when the run says all this, with its journal in the folder."""
    out = io.StringIO()
    listen = ReportAtEnd(Console(file=out, width=200), signals or StopSignals())
    for record in run_records:
        with (folder / journal.FILE_NAME).open("ab") as file:
            file.write(journal.encode_line(record))
        listen(record)
    listen.finish()
    return out.getvalue()


def test_a_run_that_ends_has_a_report(tmp_path: Path) -> None:
    assert report_output(tmp_path, records(tmp_path)) == f"report        {tmp_path / REPORT_NAME}\n"
    text = (tmp_path / REPORT_NAME).read_text()
    assert "<!DOCTYPE html>" in text
    assert tmp_path.name in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [journal.FILE_NAME, REPORT_NAME]


def test_nothing_before_the_end(tmp_path: Path) -> None:
    assert report_output(tmp_path, records(tmp_path)[:-1]) == ""
    assert not (tmp_path / REPORT_NAME).exists()


def test_no_run_record_no_report(tmp_path: Path) -> None:
    assert report_output(tmp_path, [end_record(0)]) == ""


@pytest.mark.parametrize("reason", ["crashed", "interrupted", "not finite"])
def test_a_run_that_ends_badly_has_one_too(tmp_path: Path, reason: str) -> None:
    assert REPORT_NAME in report_output(tmp_path, [*records(tmp_path)[:-1], end_record(100, reason)])
    assert (tmp_path / REPORT_NAME).exists()


def test_a_run_that_ends_before_its_first_step(tmp_path: Path) -> None:
    output = report_output(
        tmp_path, [{**run_record(), "out_dir": str(tmp_path)}, end_record(0, "crashed", ledger={})]
    )
    assert output.startswith("report ")


def test_a_resume_replaces_the_report(tmp_path: Path) -> None:
    report_output(tmp_path, records(tmp_path))
    before = (tmp_path / REPORT_NAME).read_text()
    again = [{**one, "process": 1} for one in records(tmp_path)]
    report_output(tmp_path, again)
    assert (tmp_path / REPORT_NAME).read_text() != before


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / REPORT_NAME).mkdir()
    output = report_output(tmp_path, records(tmp_path))
    assert output.startswith("report        none: ")
    assert output.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [journal.FILE_NAME, REPORT_NAME]


@pytest.mark.parametrize("language", ["hi", "ar"])
def test_in_the_language_of_the_locale(
    tmp_path: Path, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", f"{language}.UTF-8")
    report_output(tmp_path, records(tmp_path))
    assert f'<html lang="{language}"' in (tmp_path / REPORT_NAME).read_text()


def test_markup_in_the_name_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "[red]x\x1b[31m"
    folder.mkdir()
    output = report_output(folder, records(folder))
    assert "[red]x" in output
    assert "\x1b" not in output


@pytest.mark.filterwarnings("error")
def test_a_bug_in_the_report_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run has it: behind the sink."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("page")

    monkeypatch.setattr("glassgpt.show.page.html.report_html", broken)
    out = io.StringIO()
    sink = Sink(tmp_path / journal.FILE_NAME, 0, [ReportAtEnd(Console(file=out, width=200), StopSignals())])
    for record in records(tmp_path):
        sink(record)
    sink.close()
    assert len(list(journal.read(tmp_path / journal.FILE_NAME))) == len(whole_run())
    output = out.getvalue() + capsys.readouterr().err
    assert "ZeroDivisionError: page" in output
    assert not (tmp_path / REPORT_NAME).exists()


def test_a_journal_that_somebody_removed_meanwhile(tmp_path: Path) -> None:
    out = io.StringIO()
    listen = ReportAtEnd(Console(file=out, width=200), StopSignals())
    for record in records(tmp_path):
        listen(record)
    listen.finish()
    gone = tmp_path / journal.FILE_NAME
    assert out.getvalue().startswith(f"report        none: {gone} cannot be read ")


def test_a_report_that_takes_longer_than_a_listener_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*given: Any) -> str:
        time.sleep(0.3)
        return report_html(*given)

    monkeypatch.setattr("glassgpt.show.page.html.report_html", slow)
    monkeypatch.setattr("glassgpt.record.sink.LISTENER_TIMEOUT_S", 0.1)
    monkeypatch.setattr("glassgpt.show.page.report_listener.NOTICE_AFTER_S", 0.1)
    out = io.StringIO()
    sink = Sink(tmp_path / journal.FILE_NAME, 0, [ReportAtEnd(Console(file=out, width=200), StopSignals())])
    for record in records(tmp_path):
        sink(record)
    sink.close()
    assert (tmp_path / REPORT_NAME).exists()
    notice, line = out.getvalue().splitlines()
    assert "Ctrl-C" in notice
    assert line == f"report        {tmp_path / REPORT_NAME}"


def test_a_signal_gives_up_on_the_report_and_not_on_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr("glassgpt.show.page.html.report_html", interrupted)
    with StopSignals() as signals:
        signals.is_graceful = True  # as in the loop, where the first signal only sets a flag
        output = report_output(tmp_path, records(tmp_path), signals)
    assert output.startswith("report        none: ")
    assert f"glass report {tmp_path}" in output
    assert not (tmp_path / REPORT_NAME).exists()


def test_a_run_that_was_stopped_at_once_does_not_wait_for_a_report(tmp_path: Path) -> None:
    with StopSignals() as signals, pytest.raises(ImmediateStop):
        signal.raise_signal(signal.SIGINT)
    assert "none: " in report_output(tmp_path, records(tmp_path), signals)
    assert not (tmp_path / REPORT_NAME).exists()


def test_the_report_has_what_the_last_checkpoint_expects(tmp_path: Path) -> None:
    run_dir = train_run(tmp_path / "runs" / "byte", prepare_dataset(tmp_path, "byte", "byte"))
    run_records = [
        record for record in journal.read(run_dir / journal.FILE_NAME) if record["kind"] in ("run", "end")
    ]
    listen = ReportAtEnd(Console(file=io.StringIO(), width=200), StopSignals())
    for record in run_records:
        listen(record | {"out_dir": str(run_dir)})
    listen.finish()
    (look,) = read_run_log(str(run_dir)).looks
    assert look.iteration == run_records[-1]["iter"]
    assert '"guesses":[[["' in (run_dir / REPORT_NAME).read_text()


def test_a_large_model_is_looked_at_on_demand_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = train_run(tmp_path / "runs" / "byte", prepare_dataset(tmp_path, "byte", "byte"))
    monkeypatch.setattr("glassgpt.show.page.report_listener.MAX_LOOK_PARAMETERS", 10)
    listen = ReportAtEnd(Console(file=io.StringIO(), width=200), StopSignals())
    for record in journal.read(run_dir / journal.FILE_NAME):
        listen(record | {"out_dir": str(run_dir)})
    listen.finish()
    assert (run_dir / REPORT_NAME).is_file()
    assert read_run_log(str(run_dir)).looks == ()
