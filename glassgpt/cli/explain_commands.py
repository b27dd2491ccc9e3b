"""glass explain, glass compare, glass report: none of them imports torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from glassgpt.cli.command import make_console, parse_options, print_help, wants_help
from glassgpt.errors import UserError
from glassgpt.explain.explain_options import (
    CompareOptions,
    ExplainOptions,
    ReportOptions,
    check_language,
    parse_card,
)
from glassgpt.files import expand_user_path
from glassgpt.i18n import preferred_language, use_language
from glassgpt.record import journal
from glassgpt.runs.overrides import RunOverrides, apply_overrides, is_override_flag, parse_overrides
from glassgpt.sanitize import sanitize_line, sanitize_text

if TYPE_CHECKING:
    from glassgpt.estimate.cards import Card
    from glassgpt.explain.watch import LogWatcher, WatchUpdate
    from glassgpt.runs.run_log import RunLog

Options = TypeVar("Options", ExplainOptions, CompareOptions, ReportOptions)


def explain(words: list[str]) -> int:
    if wants_help(words):
        return print_help(ExplainOptions, "glass explain RUN|LOG|-")
    from glassgpt.explain.explanation import explain as explained
    from glassgpt.show.terminal.explain_view import print_explanation

    missing = "say which run or log to explain; - reads the standard input"
    names, given, options, card = _parse_command_line(words, ExplainOptions, 1, missing)
    with use_language(options.lang or preferred_language()):
        if options.watch:
            return _watch(names[0], given[0], options, card)
        explanation = explained(_read_histories(names, given)[0], card)
        if options.json:
            _print_json(explanation.as_dict())
        else:
            print_explanation(explanation, make_console(), options.full)
    return 0


def compare(words: list[str]) -> int:
    if wants_help(words):
        return print_help(CompareOptions, "glass compare A B [C ...]")
    from glassgpt.compare.comparison import compare as compared
    from glassgpt.runs.facts import compute_facts
    from glassgpt.show.terminal.compare_view import print_comparison

    missing = "glass compare needs at least two runs or logs: glass compare A B"
    names, given, options, card = _parse_command_line(words, CompareOptions, None, missing)
    with use_language(options.lang or preferred_language()):
        histories = _read_histories(names, given)
        comparison = compared([(history, compute_facts(history)) for history in histories], card)
        if options.json:
            _print_json(comparison.as_dict())
        else:
            print_comparison(comparison, make_console())
    return 0


def report(words: list[str]) -> int:
    if wants_help(words):
        return print_help(ReportOptions, "glass report RUN|LOG|-")
    from glassgpt.explain.explanation import explain as explained
    from glassgpt.show.report.page import check_report_path, write_report

    names, given, options, card = _parse_command_line(
        words, ReportOptions, 1, "say which run or log to report on"
    )
    source = Path(names[0])
    place = expand_user_path(options.out) if options.out else _report_place(source)
    check_report_path(place, source)
    with use_language(options.lang or preferred_language()):
        told = explained(_read_histories(names, given)[0], card)
        name = "-" if names[0] == "-" else source.resolve().name
        write_report(place, told.log, told.facts, told.findings, name)
    print(sanitize_line(str(place)))
    return 0


def _report_place(source: Path) -> Path:
    if source.is_dir():
        return source / "report.html"
    return Path("report.html") if str(source) == "-" else Path(source.name).with_suffix(".html")


def _parse_command_line(
    words: list[str], kind: type[Options], count: int | None, missing: str
) -> tuple[list[str], list[RunOverrides], Options, Card | None]:
    """Names, what is said about each of them, options, the card; all problems at once."""
    about, rest = _split_overrides(words)
    names, options, problems = parse_options(rest, kind)
    if count is not None and len(names) > count:
        problems.append(f"one run or log at a time, not {' and '.join(names)}; `glass compare` takes several")
    elif len(names) < (count or 2):
        problems.append(missing)
    if names.count("-") > 1:
        problems.append("the standard input (-) can be read only once")
    problems += [f"there is no file or folder {name}" for name in names if name != "-" and not _exists(name)]
    card = parse_card(options.gpu, problems)
    check_language(options.lang, problems)
    given: list[RunOverrides] = []
    try:
        given = parse_overrides(about, max(1, len(names)))
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(problems)
    return names, given, options, card


def _split_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """`--a.name=value` and `--a.name value`, and the rest."""
    about: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not is_override_flag(word):
            rest.append(word)
            continue
        about.append(word)
        if "=" not in word and left and not left[0].startswith("--"):
            about.append(left.pop(0))
    return about, rest


def _exists(name: str) -> bool:
    try:
        return os.path.lexists(name)
    except ValueError:  # a NUL in it
        return False


def _read_histories(names: list[str], given: list[RunOverrides]) -> list[RunLog]:
    from glassgpt.runs.open import read_run_log

    histories, problems = [], []
    for name, said in zip(names, given, strict=True):
        try:
            histories.append(apply_overrides(read_run_log(name), said))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return histories


def _print_json(document: dict[str, Any]) -> None:
    """Letters as they are, where the reader can take them."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
    print(
        json.dumps(
            journal.nonfinite_to_words(document), ensure_ascii=not is_unicode, indent=1, allow_nan=False
        )
    )


# --- watching ---


def _watch(name: str, given: RunOverrides, options: ExplainOptions, card: Card | None) -> int:
    from glassgpt.explain.watch import LogWatcher
    from glassgpt.show.terminal.explain_view import print_explanation
    from glassgpt.show.terminal.watch_view import print_watch_update

    watch, out = LogWatcher(name, card, given), make_console()
    last = None
    try:
        for news in _follow(name, watch, None if options.json else _echo):
            last = news
            if not options.json:
                print_watch_update(news, out)
    except KeyboardInterrupt:
        last = watch.refresh() or last
    if last is None:
        raise UserError(f"{name}: no line of a training log came")
    if options.json:
        _print_json(last.explanation.as_dict())
    else:
        out.print()
        print_explanation(last.explanation, out, options.full)
    return 0


def _follow(name: str, watch: LogWatcher, echo: Callable[[str], None] | None) -> Iterator[WatchUpdate]:
    from glassgpt.explain.watch import GrowingFile, follow
    from glassgpt.runs.run_list import is_running

    if name == "-" and sys.stdin is None:
        raise UserError("there is no standard input to read")
    if name == "-":
        # Not sys.stdin: a thread that waits in its lock would keep the process from ending.
        with open(os.dup(sys.stdin.fileno()), "rb", buffering=0) as stream:
            yield from follow(stream, watch, echo)
        return
    path = Path(name)
    file = path / journal.FILE_NAME if path.is_dir() else path
    if path.is_fifo():
        with path.open("rb", buffering=0) as pipe:
            yield from follow(pipe, watch)
        return
    if path.is_dir() and file.is_symlink():
        raise UserError(f"{file} is not read: it is a symbolic link, which is not followed")
    if not file.is_file():
        raise UserError(
            f"{name} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"
        )
    with file.open("rb") as stream:
        # A run's journal ends with its run; any other file may grow for ever.
        ends = file.name == journal.FILE_NAME
        growing = GrowingFile(stream, lambda: ends and not is_running(file.parent), path=file)
        yield from follow(growing, watch)  # type: ignore[arg-type]


def _echo(line: str) -> None:
    print(sanitize_text(line), flush=True)
