"""From lines to a History: find out whose log it is, then read it as that.

The trainer is told by the lines, never by the name of the file: every grammar reads the first lines, and the
one that understands most of them reads the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from glassgpt.errors import UserError
from glassgpt.runs.builder import RunBuilder, SetupBuilder
from glassgpt.runs.crash_patterns import read_event
from glassgpt.runs.excerpts import merge_excerpts
from glassgpt.runs.header import read_header
from glassgpt.runs.lines import LogLine
from glassgpt.runs.prefixes import strip_prefixes
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Reader, Trainer
from glassgpt.runs.trainers import TRAINERS

# Those with lines to read, and the reader that each has made for a log.
_READERS = tuple((trainer, trainer.reader) for trainer in TRAINERS if trainer.reader is not None)
KNOWN = ", ".join(trainer.name for trainer, _ in _READERS if not trainer.reads_any_log)

_FAILURE_KINDS = {"oom", "traceback", "abort", "kill", "interrupt"}

_DECISIVE_LINES = (
    40  # lines about iterations that one grammar understood: the others need not be asked any more
)
_MIN_GENERIC_LINES = 3  # such lines make a log of a trainer that we do not know
_MIN_SWITCH_LINES, _MIN_GENERIC_SWITCH_LINES = 3, 20  # such lines after a run make another trainer's
_MAX_HEADER_LINES = 10_000  # lines between a run and that
_MAX_UNRECOGNISED_LINES = 2_000_000  # lines without one about an iteration: it is no log
_MAX_BUFFERED_LINES = 100_000  # lines kept until the trainer is clear: some logs begin with the whole source

# Losses have three decimals or more; a number with fewer at the very end may have lost some.
_TRUNCATED_NUMBER = re.compile(r"(?<![\d.,])[-+]?\d[\d,]*\.?\d{0,2}$")
_QUOTED_LINE = re.compile(r"^\s*(?:```|~~~|>?\s*[-*]?\s*\*\*\s*(?:iter|step)\b)")


class _ParserCandidate:
    """A grammar, and how many lines it has understood so far."""

    def __init__(self, trainer: Trainer, make: Callable[[], Reader]) -> None:
        self.trainer, self.make_parser = trainer, make
        self.parse = make()
        self.builder = RunBuilder(trainer)  # only to read into
        self.matched_lines = 0

    @property
    def has_run(self) -> bool:
        """Whether these are the lines of a run. The one that reads anything may see one in a summary."""
        return self.matched_lines >= (
            _MIN_GENERIC_SWITCH_LINES if self.trainer.reads_any_log else _MIN_SWITCH_LINES
        )


def read_log(lines: Iterable[LogLine], name: str) -> RunLog:
    """What the log says. UserError where it is none."""
    reader = LogRecognizer()
    for line in lines:
        reader.feed(line)
        if reader.is_unrecognisable():
            break
    history = reader.build(name)
    if history is None:
        empty = " (it is empty)" if reader.is_empty else ""
        raise UserError(
            f"{name} is not a training log that glass can read{empty}: it knows GlassGPT's journals and run "
            f"folders, {KNOWN}, and lines that say an iteration and a loss"
        )
    return history


class LogRecognizer:
    """Takes lines one by one; asks all grammars until one is clearly right, then only that one, until
    another trainer's lines follow."""

    def __init__(self) -> None:
        self._candidates = _new_candidates()
        self._buffered_lines: list[LogLine] = []
        self._line_count = 0
        self._splitter: _RunSplitter | None = None

    def feed(self, line: LogLine) -> None:
        if self._splitter is not None:
            self._splitter.feed(line)
            return
        self._line_count += 1
        self._buffered_lines.append(line)
        if len(self._buffered_lines) > _MAX_BUFFERED_LINES:
            del self._buffered_lines[: _MAX_BUFFERED_LINES // 2]
        _match_line(self._candidates, line)
        if max(candidate.matched_lines for candidate in self._candidates[:-1]) >= _DECISIVE_LINES:
            self._splitter = self._replay()
            self._buffered_lines = []

    @property
    def is_empty(self) -> bool:
        return self._splitter is None and not any(line.text.strip() for line in self._buffered_lines)

    def is_unrecognisable(self) -> bool:
        """So much, and nothing of it understood."""
        return (
            self._splitter is None
            and self._line_count > _MAX_UNRECOGNISED_LINES
            and _best_candidate(self._candidates) is None
        )

    def build(self, name: str, final: bool = True) -> RunLog | None:
        """None as long as it is no log of a known kind."""
        runs = self._splitter or self._replay()
        if runs is None:
            return self._build_failed_start(name) if final else None
        return runs.build(name, final)

    def _build_failed_start(self, name: str) -> RunLog | None:
        """A run that introduced itself, and ended before its first iteration."""
        log = _introduced(self._buffered_lines)
        if log is None:
            return None
        for line in self._buffered_lines:
            log.feed(line)
        history = log.build(name)
        return history if _FAILURE_KINDS & {event.kind for event in history.events} else None

    def _replay(self) -> _RunSplitter | None:
        """By the one that understands most; but before its first line there may be another's run."""
        best = _best_candidate(self._candidates)
        if best is None:
            return None
        before = _new_candidates(but=best.trainer)
        for line in self._buffered_lines[: _count_lines_before_match(best, self._buffered_lines)]:
            _match_line(before, line)
        runs = _RunSplitter(_first_with_run(before) or best)
        for line in self._buffered_lines:
            runs.feed(line)
        return runs


def _introduced(lines: Iterable[LogLine]) -> LogReader | None:
    """By the first line that only one trainer prints."""
    for line in lines:
        text, _ = strip_prefixes(line.text)
        for trainer, make in _READERS:
            if trainer.introduction and trainer.introduction.search(text):
                return LogReader(trainer, make())
    return None


def _new_candidates(but: Trainer | None = None) -> list[_ParserCandidate]:
    return [
        _ParserCandidate(trainer, make) for trainer, make in _READERS if but is None or trainer.id != but.id
    ]


def _best_candidate(candidates: list[_ParserCandidate]) -> _ParserCandidate | None:
    *known, unknown = candidates
    best = max(known, key=lambda candidate: candidate.matched_lines)  # the first of equals
    if best.matched_lines:
        return best
    return unknown if unknown.matched_lines >= _MIN_GENERIC_LINES else None


def _match_line(candidates: list[_ParserCandidate], line: LogLine) -> None:
    text, _ = strip_prefixes(line.text)
    for candidate in candidates:
        candidate.matched_lines += candidate.parse(text, candidate.builder)


def _first_with_run(candidates: list[_ParserCandidate]) -> _ParserCandidate | None:
    return next((candidate for candidate in candidates if candidate.has_run), None)


def _count_lines_before_match(candidate: _ParserCandidate, lines: Iterable[LogLine]) -> int:
    """The number of lines before the first one that it understands."""
    read, into = candidate.make_parser(), RunBuilder(candidate.trainer)
    count = 0
    for line in lines:
        if read(strip_prefixes(line.text)[0], into):
            break
        count += 1
    return count


class _RunSplitter:
    """One trainer's run, or those of several after one another: a terminal with two commands, a file that a
    second script was appended to.

    Several lines that another trainer understands, and none of this one among them, begin that one's run.
    """

    def __init__(self, first: _ParserCandidate) -> None:
        self._reader = LogReader(first.trainer, first.make_parser())
        self._earlier_readers: list[LogReader] = []
        self._lines_since_match: list[LogLine] = []  # the last line that the log understood
        self._other_candidates: list[_ParserCandidate] = []  # who have been asked about these

    def feed(self, line: LogLine) -> None:
        happened = self._reader.non_step_count
        if self._reader.feed(line):
            if self._lines_since_match:
                self._lines_since_match = []
                if any(
                    other.matched_lines for other in self._other_candidates
                ):  # else they are as good as new
                    self._other_candidates = []
            return
        if self._reader.has_quoted_lines or len(self._lines_since_match) > _MAX_HEADER_LINES:
            return  # a text may quote several, in any order
        self._other_candidates = self._other_candidates or _new_candidates(but=self._reader.trainer)
        self._lines_since_match.append(line)
        _match_line(self._other_candidates, line)
        if self._reader.non_step_count != happened and not any(
            other.matched_lines for other in self._other_candidates
        ):
            self._lines_since_match = []  # that it was saved, or how it ended: what introduces another comes later
        other = _first_with_run(self._other_candidates)
        if other is not None:
            self._switch_trainer(other, self._lines_since_match)

    def _switch_trainer(self, other: _ParserCandidate, lines: list[LogLine]) -> None:
        """These, which were taken for this one's, are the beginning of the other's run."""
        begin = _count_lines_before_match(other, lines)
        self._reader.drop_trailing_setup()
        self._earlier_readers.append(self._reader)
        self._reader = LogReader(other.trainer, other.make_parser(), self._reader.line - len(lines))
        self._lines_since_match, self._other_candidates = [], []
        for line in lines[:begin]:
            self._reader.feed_header(line)
        for line in lines[begin:]:
            self.feed(line)

    def build(self, name: str, final: bool) -> RunLog:
        last = self._reader.build(name, final)
        return replace(last, earlier=tuple(log.build(name) for log in self._earlier_readers))


class LogReader:
    """Reads lines of a known trainer one by one; `history` may be asked for at any time."""

    def __init__(self, trainer: Trainer, read: Reader, line: int = 0) -> None:
        """`line`: how many lines of the file come before it."""
        self.trainer = trainer
        self._builder = RunBuilder(trainer)
        self._builder.line = line
        self._parse_line = read
        self._lowest_rank: int | None = None
        self._ends_mid_line = False
        self._setup_at_last_step: SetupBuilder | None = (
            None  # as they were after its last line about an iteration
        )

    @property
    def line(self) -> int:
        return self._builder.line

    @property
    def non_step_count(self) -> int:
        """How often something beside iterations was told: evaluations, saves, what befell the process."""
        return self._builder.non_step_count

    @property
    def has_quoted_lines(self) -> bool:
        return self._builder.has_quoted_lines

    def feed_header(self, line: LogLine) -> None:
        """A line from before the run: of what happened in it, it says nothing."""
        self._builder.line += 1
        text, _ = strip_prefixes(line.text)
        if not self._parse_line(text, self._builder):
            read_header(text, self._builder)
        self._builder.drop_unnumbered_saves()  # nothing is saved before the first iteration

    def drop_trailing_setup(self) -> None:
        """What was said about a run after its last iteration was about another. Not how long it took."""
        if self._setup_at_last_step is not None:
            self._builder.setup = self._setup_at_last_step

    def feed(self, line: LogLine) -> bool:
        """Whether it is about an iteration, or another rank's."""
        into = self._builder
        into.line += 1
        text, rank = strip_prefixes(line.text)
        self._ends_mid_line = line.is_incomplete
        if line.is_incomplete:
            text = text[:-40] + _TRUNCATED_NUMBER.sub("", text[-40:])
        # A log that began without quotation marks is none; what its model writes later may have them.
        if ("`" in text or "*" in text) and (into.has_quoted_lines or not into.has_steps):
            into.has_quoted_lines = into.has_quoted_lines or _QUOTED_LINE.match(text) is not None
            into.fence_count += text.lstrip("> ").startswith("```")
        if rank is not None and not self._is_lowest_rank(rank):
            read_event(text, into)
            return True
        if self._parse_line(text, into):
            self._setup_at_last_step = None
            return True
        self._setup_at_last_step = self._setup_at_last_step or into.setup.copy()
        if not read_event(text, into):
            read_header(text, into)
        elif "wall_s" in into.setup.values:
            self._setup_at_last_step.values["wall_s"] = into.setup.values["wall_s"]
        return False

    def _is_lowest_rank(self, rank: int) -> bool:
        """Every rank prints the same; the lowest one speaks for all."""
        if self._lowest_rank is None or rank < self._lowest_rank:
            self._lowest_rank = rank
        return rank == self._lowest_rank

    def build(self, name: str, final: bool = True) -> RunLog:
        """`final`: the log ends here. Asked for before, it changes nothing that comes later."""
        close = getattr(self._parse_line, "close", None)
        if close is not None and final:
            close(self._builder)
        whole = self._builder.build(name, self._ends_mid_line, final)
        return merge_excerpts(whole) if whole.is_excerpt else whole
