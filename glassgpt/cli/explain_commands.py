"""glass explain, glass compare, glass report: none of them imports torch."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from glassgpt.cli.command import command, make_console, parse_options, print_json
from glassgpt.errors import UserError, collect_problems, raise_if_any
from glassgpt.explain.explain_options import (
    CompareOptions,
    ExplainOptions,
    ReportOptions,
    WatchOptions,
    parse_card,
)
from glassgpt.files import expand_user_path
from glassgpt.i18n import check_language, preferred_language, use_language
from glassgpt.record.run_dir import no_run_problem
from glassgpt.runs.lines import LineSplitter, split_block
from glassgpt.runs.overrides import RunOverrides, apply_overrides, is_override_flag, parse_overrides
from glassgpt.sanitize import sanitize_line, sanitize_text

if TYPE_CHECKING:
    from glassgpt.estimate.cards import Card
    from glassgpt.runs.run_log import RunLog

DEMO_LOG = "demo:gpu"
_POLL_S = 0.25
_MAX_RUNS_OF_FILE = 26  # that flags --a. to --z. can name

Options = TypeVar("Options", ExplainOptions, CompareOptions, ReportOptions, WatchOptions)


@command("glass explain RUN|LOG|-", ExplainOptions)
def explain(words: list[str]) -> int:
    from glassgpt.explain.explanation import explain_runs
    from glassgpt.show.terminal.explain_view import print_explanation

    missing = "say which run or log to explain; - reads the standard input, --demo shows an example"
    names, overrides, options, card = parse_log_command_line(words, ExplainOptions, 1, missing)
    with use_language(options.lang or preferred_language()):
        if options.watch:
            return print_updates(names[0], overrides[0], options, card)
        explanation = explain_runs(_read_files(names, overrides)[0], card)
        if options.json:
            _print_json(explanation.as_dict())
        else:
            print_explanation(explanation, make_console(), options.full, options.more)
    return 0


@command("glass compare A B [C ...]", CompareOptions)
def compare(words: list[str]) -> int:
    from glassgpt.compare.comparison import compare as compare_logs
    from glassgpt.runs.run_log import longest_run
    from glassgpt.show.terminal.compare_view import print_comparison

    missing = "glass compare needs at least two runs or logs, or a file that holds several: glass compare A B"
    names, overrides, options, card = parse_log_command_line(words, CompareOptions, None, missing)
    with use_language(options.lang or preferred_language()):
        if len(names) == 1:
            run_logs = _read_runs_of_file(names[0], overrides)
        else:
            run_logs = [longest_run(file) for file in _read_files(names, overrides)]
        comparison = compare_logs(run_logs, card)
        if options.json:
            _print_json(comparison.as_dict())
        else:
            print_comparison(comparison, make_console())
    return 0


@command("glass report RUN|LOG|-", ReportOptions)
def report(words: list[str]) -> int:
    from glassgpt.explain.explanation import explain_runs
    from glassgpt.runs.reading import source_path
    from glassgpt.show.page.html import check_report_path, write_report

    missing = "say which run or log to report on"
    names, overrides, options, card = parse_log_command_line(words, ReportOptions, 1, missing)
    source = source_path(names[0])
    if options.out:
        path = expand_user_path(options.out)
    elif source.is_dir():
        path = source / "report.html"
    else:
        path = Path("report.html") if str(source) == "-" else Path(source.name).with_suffix(".html")
    check_report_path(path, source)
    with use_language(options.lang or preferred_language()):
        explanation = explain_runs(_read_files(names, overrides)[0], card)
        name = "-" if names[0] == "-" else source.resolve().name
        write_report(path, explanation, name)
    print(sanitize_line(str(path)))
    return 0


def parse_log_command_line(
    words: list[str], kind: type[Options], count: int | None, missing: str
) -> tuple[list[str], list[RunOverrides], Options, Card | None]:
    """Names, overrides (`--a.key=value` or `--a.key value`) of each, options, card; all problems at once.

    `count`: how many names there must be; None: one file of several runs, or several files.
    """
    from glassgpt.runs.reading import source_path

    override_words: list[str] = []
    other_words: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if not is_override_flag(word):
            other_words.append(word)
            continue
        override_words.append(word)
        if "=" not in word and remaining and not remaining[0].startswith("--"):
            override_words.append(remaining.pop(0))
    names, options, problems = parse_options(other_words, kind)
    if getattr(options, "demo", False):
        if names:
            problems.append(
                f"--demo explains a log that comes with GlassGPT: leave out {' and '.join(names)}"
            )
        names = [DEMO_LOG]
    if count is not None and len(names) > count:
        problems.append(f"one run or log at a time, not {' and '.join(names)}; `glass compare` takes several")
    elif len(names) < (count or 1):
        problems.append(missing)
    if names.count("-") > 1:
        problems.append("the standard input (-) can be read only once")
    for name in names:
        with collect_problems(problems):
            if name != "-" and not os.path.lexists(source_path(name)):
                problems.append(f"there is no file or folder {name}")
    card = parse_card(options.gpu, problems)
    check_language(options.lang, problems)
    overrides: list[RunOverrides] = []
    # How many runs one file holds is known once it is read.
    runs = _MAX_RUNS_OF_FILE if count is None and len(names) == 1 else max(1, len(names))
    with collect_problems(problems):
        overrides = parse_overrides(override_words, runs)
    raise_if_any(problems)
    return names, overrides, options, card


def _read_files(names: list[str], overrides: list[RunOverrides]) -> list[list[RunLog]]:
    """The runs of each file, of all files, or all problems at once."""
    from glassgpt.runs.reading import read_run_logs

    files: list[list[RunLog]] = []
    problems: list[str] = []
    for name, run_overrides in zip(names, overrides, strict=True):
        with collect_problems(problems):
            files.append([apply_overrides(run_log, run_overrides) for run_log in read_run_logs(name)])
    raise_if_any(problems)
    return files


def _read_runs_of_file(name: str, overrides: list[RunOverrides]) -> list[RunLog]:
    """All runs of one log or text that logged something, in its order."""
    from glassgpt.runs.reading import read_run_logs

    run_logs = [run_log for run_log in read_run_logs(name) if len(run_log.steps) or run_log.evals]
    if len(run_logs) < 2:
        raise UserError(
            f"{name} holds one run; glass compare needs at least two runs or logs: glass compare A B"
        )
    if any(override != RunOverrides() for override in overrides[len(run_logs) :]):
        raise UserError(f"{name} holds {len(run_logs)} runs; a flag is for a later one")
    named = []
    for run_log, override in zip(run_logs[:_MAX_RUNS_OF_FILE], overrides, strict=False):
        place = f"{run_log.first_line}-{run_log.last_line}" if run_log.last_line else ""
        parts = [part for part in (run_log.stage, place and f"lines {place}") if part]
        title = ": ".join([run_log.name, ", ".join(parts)]) if parts else run_log.name
        named.append(replace(apply_overrides(run_log, override), name=title, runs_in_file=1))
    return named


def _print_json(document: dict[str, Any]) -> None:
    """In ASCII if stdout cannot encode Unicode."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
    print_json(document, ascii_only=not is_unicode)


# --- glass explain --watch ---


def print_updates(name: str, overrides: RunOverrides, options: ExplainOptions, card: Card | None) -> int:
    """Print new evaluations and findings as the log grows, and the explanation at its end or after Ctrl-C.
    Lines from the standard input are passed on."""
    from glassgpt.explain.watch import FollowedRun
    from glassgpt.show.terminal.explain_view import print_explanation, print_watch_update

    out = make_console()
    with contextlib.ExitStack() as closing:
        source, is_writing = _open_watched(name, closing)
        echo = LineEcho(source) if name == "-" and not options.json else None
        shown = "standard input" if name == "-" else name
        followed = FollowedRun(source, card, overrides, is_writing, name=shown)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                followed.poll()
                is_over = not followed.is_live
                if echo is not None:
                    echo.print_new(is_over)
                if followed.refresh(force=is_over) and not options.json and (update := followed.news()):
                    print_watch_update(update, out)
                if is_over:
                    break
                time.sleep(_POLL_S)
        followed.poll()  # after Ctrl-C, too
        followed.refresh(force=True)
        explanation = followed.explanation
    if explanation is None:
        raise UserError(f"{name}: no training log arrived")
    if options.json:
        _print_json(explanation.as_dict())
    else:
        out.print()
        print_explanation(explanation, out, options.full, options.more)
    return 0


def _open_watched(name: str, closing: contextlib.ExitStack) -> tuple[str, Callable[[], bool] | None]:
    """What to follow, and whether more may come, if that is known: of the standard input and of a pipe a
    copy; of a plain file until Ctrl-C."""
    from glassgpt.runs.reading import DEMO_LOGS, growing_file, source_path
    from glassgpt.runs.run_list import ends_with_lock

    if name == "-":
        if sys.stdin is None:
            raise UserError("there is no standard input to read")
        return closing.enter_context(saved_stream(sys.stdin.fileno()))
    path = source_path(name)
    file = growing_file(path)
    if path.is_fifo():
        pipe = closing.enter_context(path.open("rb", buffering=0))
        return closing.enter_context(saved_stream(pipe.fileno()))
    if path.is_dir() and file.is_symlink():
        raise UserError(f"{file} is not read: it is a symbolic link, which is not followed")
    if not file.is_file():
        raise UserError(no_run_problem(Path(name)))
    return name, None if name in DEMO_LOGS or ends_with_lock(file) else lambda: True


@contextlib.contextmanager
def saved_stream(descriptor: int) -> Iterator[tuple[str, Callable[[], bool]]]:
    """A temporary file that a thread fills with what comes, and whether more may come."""
    with tempfile.NamedTemporaryFile(prefix="glass-watch-", suffix=".log", buffering=0) as file:

        def copy() -> None:
            with contextlib.suppress(OSError, ValueError):  # the input is gone, or the file is closed
                while chunk := os.read(descriptor, 1 << 16):
                    file.write(chunk)

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        yield file.name, thread.is_alive


class LineEcho:
    """Prints the lines of a file as they come, without what a terminal would act on."""

    def __init__(self, path: str) -> None:
        self._path, self._offset, self._lines = path, 0, LineSplitter()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")

    def print_new(self, is_over: bool) -> None:
        """`is_over`: the last line, which has no end, as well."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        blocks = list(self._lines.feed(self._decoder.decode(new)))
        for block in [*blocks, *(self._lines.close() if is_over else ())]:
            for line in split_block(block):
                print(sanitize_text(line.text), flush=True)
