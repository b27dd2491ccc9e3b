"""glass explain, glass compare, glass report: none of them imports torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from glassgpt.account import journal
from glassgpt.cli.command import console, parsed, print_help, wants_help
from glassgpt.errors import UserError
from glassgpt.insight.given import is_given, read_given, with_given
from glassgpt.insight.options import CompareOptions, ExplainOptions, ReportOptions, card_named, check_language
from glassgpt.show.format import harmless
from glassgpt.words import preferred_language, speaking

if TYPE_CHECKING:
    from glassgpt.account.hardware import Card
    from glassgpt.insight.history import History
    from glassgpt.insight.watching import News

Options = TypeVar("Options", ExplainOptions, CompareOptions, ReportOptions)


def explain(words: list[str]) -> int:
    if wants_help(words):
        return print_help(ExplainOptions, "glass explain RUN|LOG|-")
    from glassgpt.insight.explain import explain as explained
    from glassgpt.show.explain import print_explanation

    names, given, options, card = _parsed(
        words, ExplainOptions, 1, "say which run or log to explain; - reads the standard input"
    )
    with speaking(options.lang or preferred_language()):
        if options.watch:
            return _watch(names[0], options, card)
        explanation = explained(_read(names, given)[0], card)
        if options.json:
            _print_json(explanation.as_dict())
        else:
            print_explanation(explanation, console(), options.full)
    return 0


def compare(words: list[str]) -> int:
    if wants_help(words):
        return print_help(CompareOptions, "glass compare A B [C ...]")
    from glassgpt.insight.compare.comparison import compare as compared
    from glassgpt.insight.facts import facts_of
    from glassgpt.show.compare import print_comparison

    names, given, options, card = _parsed(
        words, CompareOptions, None, "glass compare needs at least two runs or logs: glass compare A B"
    )
    with speaking(options.lang or preferred_language()):
        histories = _read(names, given)
        comparison = compared([(history, facts_of(history)) for history in histories], card)
        if options.json:
            _print_json(comparison.as_dict())
        else:
            print_comparison(comparison, console())
    return 0


def report(words: list[str]) -> int:
    if wants_help(words):
        return print_help(ReportOptions, "glass report RUN|LOG|-")
    from glassgpt.insight.explain import explain as explained
    from glassgpt.show.report.page import write_report

    names, given, options, card = _parsed(words, ReportOptions, 1, "say which run or log to report on")
    source = Path(names[0])
    place = Path(options.out) if options.out else _report_place(source)
    with speaking(options.lang or preferred_language()):
        told = explained(_read(names, given)[0], card)
        write_report(place, told.history, told.facts, told.findings, source.name)
    print(harmless(str(place)))
    return 0


def _report_place(source: Path) -> Path:
    if source.is_dir():
        return source / "report.html"
    return Path("report.html") if str(source) == "-" else Path(source.name).with_suffix(".html")


def _parsed(
    words: list[str], kind: type[Options], count: int | None, missing: str
) -> tuple[list[str], list[str], Options, Card | None]:
    """`--a.name=value` apart from the rest; all problems at once."""
    given: list[str] = []
    rest: list[str] = []
    for word in words:
        (given if is_given(word) else rest).append(word)
    names, options, problems = parsed(rest, kind)
    if count is not None and len(names) > count:
        problems.append(f"one run or log at a time, not {' and '.join(names)}; `glass compare` takes several")
    elif len(names) < (count or 2):
        problems.append(missing)
    card = card_named(options.gpu, problems)
    check_language(options.lang, problems)
    if problems:
        raise UserError(problems)
    return names, given, options, card


def _read(names: list[str], given: list[str]) -> list[History]:
    from glassgpt.insight.reading import read_history

    said = read_given(given, len(names))
    if names.count("-") > 1:
        raise UserError("the standard input (-) can be read only once")
    return [with_given(read_history(name), one) for name, one in zip(names, said, strict=True)]


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(journal.plain(document), ensure_ascii=False, indent=1, allow_nan=False))


# --- watching ---


def _watch(name: str, options: ExplainOptions, card: Card | None) -> int:
    from glassgpt.insight.watching import Watch
    from glassgpt.show.explain import print_explanation
    from glassgpt.show.watching import print_news

    watch, out = Watch(name, card), console()
    last = None
    try:
        for news in _follow(name, watch):
            print_news(news, out)
            last = news
    except KeyboardInterrupt:
        last = watch.look() or last
    if last is None:
        raise UserError(f"{name}: no line of a training log came")
    if options.json:
        _print_json(last.explanation.as_dict())
    else:
        out.print()
        print_explanation(last.explanation, out, options.full)
    return 0


def _follow(name: str, watch: Any) -> Iterator[News]:
    from glassgpt.insight.watching import GrowingFile, follow_journal, follow_log

    if name == "-":
        yield from follow_log(sys.stdin.buffer, watch, echo=_echo)
        return
    path = Path(name)
    if path.is_dir() or path.name == journal.NAME:
        file = path / journal.NAME if path.is_dir() else path
        if not file.is_file():
            raise UserError(
                f"{name} holds no run: there is no {journal.NAME} in it; `glass runs` lists the runs"
            )
        yield from follow_journal(file, watch)
        return
    if not path.is_file():
        raise UserError(f"there is no file {name}")
    with path.open("rb") as stream:
        yield from follow_log(GrowingFile(stream), watch)  # type: ignore[arg-type]


def _echo(line: str) -> None:
    print(harmless(line), flush=True)
