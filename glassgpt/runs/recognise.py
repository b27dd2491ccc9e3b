"""From lines to a History: find out whose log it is, then read it as that.

The trainer is told by the lines, never by the name of the file: every grammar reads the first lines, and the
one that understands most of them reads the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from glassgpt.errors import UserError
from glassgpt.runs.builder import Notes, Recording
from glassgpt.runs.crash_patterns import read_incident
from glassgpt.runs.excerpts import in_order
from glassgpt.runs.header import read_header
from glassgpt.runs.lines import Line
from glassgpt.runs.prefixes import unwrapped
from glassgpt.runs.run_log import History
from glassgpt.runs.trainer import Reader, Trainer
from glassgpt.runs.trainers import TRAINERS

# Those with lines to read, and the reader that each has made for a log.
_READERS = tuple((trainer, trainer.reader) for trainer in TRAINERS if trainer.reader is not None)
KNOWN = ", ".join(trainer.name for trainer, _ in _READERS if not trainer.reads_any_log)

_FAILED = {"oom", "traceback", "abort", "kill", "interrupt"}

_ENOUGH = 40  # lines about iterations that one grammar understood: the others need not be asked any more
_LEAST_UNKNOWN = 3  # such lines make a log of a trainer that we do not know
_LEAST_OTHER, _LEAST_OF_ANYTHING = 3, 20  # such lines after a run make another trainer's
_LONGEST_INTRODUCTION = 10_000  # lines between a run and that
_LONGEST_NOISE = 2_000_000  # lines without one about an iteration: it is no log
_LONGEST_PREAMBLE = 100_000  # lines kept until the trainer is clear: some logs begin with the whole source

# Losses have three decimals or more; a number with fewer at the very end may have lost some.
_CUT_NUMBER = re.compile(r"(?<![\d.,])[-+]?\d[\d,]*\.?\d{0,2}$")
_QUOTE = re.compile(r"^\s*(?:```|~~~|>?\s*[-*]?\s*\*\*\s*(?:iter|step)\b)")


class _Candidate:
    """A grammar, and how many lines it has understood so far."""

    def __init__(self, trainer: Trainer, make: Callable[[], Reader]) -> None:
        self.trainer, self.make = trainer, make
        self.read = make()
        self.recording = Recording(trainer)  # only to read into
        self.understood = 0

    @property
    def is_another(self) -> bool:
        """Whether these are the lines of a run. The one that reads anything may see one in a summary."""
        return self.understood >= (_LEAST_OF_ANYTHING if self.trainer.reads_any_log else _LEAST_OTHER)


def read_log(lines: Iterable[Line], name: str) -> History:
    """What the log says. UserError where it is none."""
    reader = Recognizer()
    for line in lines:
        reader.feed(line)
        if reader.is_hopeless():
            break
    history = reader.history(name)
    if history is None:
        empty = " (it is empty)" if reader.is_empty else ""
        raise UserError(
            f"{name} is not a training log that glass can read{empty}: it knows GlassGPT's journals and run "
            f"folders, {KNOWN}, and lines that say an iteration and a loss"
        )
    return history


class Recognizer:
    """Takes lines one by one; asks all grammars until one is clearly right, then only that one, until
    another trainer's lines follow."""

    def __init__(self) -> None:
        self._candidates = _candidates()
        self._kept: list[Line] = []
        self._seen = 0
        self._runs: _Runs | None = None

    def feed(self, line: Line) -> None:
        if self._runs is not None:
            self._runs.feed(line)
            return
        self._seen += 1
        self._kept.append(line)
        if len(self._kept) > _LONGEST_PREAMBLE:
            del self._kept[: _LONGEST_PREAMBLE // 2]
        _ask(self._candidates, line)
        if max(candidate.understood for candidate in self._candidates[:-1]) >= _ENOUGH:
            self._runs = self._reread()
            self._kept = []

    @property
    def is_empty(self) -> bool:
        return self._runs is None and not any(line.text.strip() for line in self._kept)

    def is_hopeless(self) -> bool:
        """So much, and nothing of it understood."""
        return self._runs is None and self._seen > _LONGEST_NOISE and _best(self._candidates) is None

    def history(self, name: str, final: bool = True) -> History | None:
        """None as long as it is no log of a known kind."""
        runs = self._runs or self._reread()
        if runs is None:
            return self._failed_start(name) if final else None
        return runs.history(name, final)

    def _failed_start(self, name: str) -> History | None:
        """A run that introduced itself, and ended before its first iteration."""
        log = _introduced(self._kept)
        if log is None:
            return None
        for line in self._kept:
            log.feed(line)
        history = log.history(name)
        return history if _FAILED & {event.kind for event in history.events} else None

    def _reread(self) -> _Runs | None:
        """By the one that understands most; but before its first line there may be another's run."""
        best = _best(self._candidates)
        if best is None:
            return None
        before = _candidates(but=best.trainer)
        for line in self._kept[: _first_understood(best, self._kept)]:
            _ask(before, line)
        runs = _Runs(_another(before) or best)
        for line in self._kept:
            runs.feed(line)
        return runs


def _introduced(lines: Iterable[Line]) -> LogReader | None:
    """By the first line that only one trainer prints."""
    for line in lines:
        text, _ = unwrapped(line.text)
        for trainer, make in _READERS:
            if trainer.introduction and trainer.introduction.search(text):
                return LogReader(trainer, make())
    return None


def _candidates(but: Trainer | None = None) -> list[_Candidate]:
    return [_Candidate(trainer, make) for trainer, make in _READERS if but is None or trainer.id != but.id]


def _best(candidates: list[_Candidate]) -> _Candidate | None:
    *known, unknown = candidates
    best = max(known, key=lambda candidate: candidate.understood)  # the first of equals
    if best.understood:
        return best
    return unknown if unknown.understood >= _LEAST_UNKNOWN else None


def _ask(candidates: list[_Candidate], line: Line) -> None:
    text, _ = unwrapped(line.text)
    for candidate in candidates:
        candidate.understood += candidate.read(text, candidate.recording)


def _another(candidates: list[_Candidate]) -> _Candidate | None:
    return next((candidate for candidate in candidates if candidate.is_another), None)


def _first_understood(candidate: _Candidate, lines: Iterable[Line]) -> int:
    """The number of lines before the first one that it understands."""
    read, into = candidate.make(), Recording(candidate.trainer)
    count = 0
    for line in lines:
        if read(unwrapped(line.text)[0], into):
            break
        count += 1
    return count


class _Runs:
    """One trainer's run, or those of several after one another: a terminal with two commands, a file that a
    second script was appended to.

    Several lines that another trainer understands, and none of this one among them, begin that one's run.
    """

    def __init__(self, first: _Candidate) -> None:
        self._log = LogReader(first.trainer, first.make())
        self._earlier: list[LogReader] = []
        self._since: list[Line] = []  # the last line that the log understood
        self._others: list[_Candidate] = []  # who have been asked about these

    def feed(self, line: Line) -> None:
        happened = self._log.happened
        if self._log.feed(line):
            if self._since:
                self._since = []
                if any(other.understood for other in self._others):  # else they are as good as new
                    self._others = []
            return
        if self._log.is_quoted or len(self._since) > _LONGEST_INTRODUCTION:
            return  # a text may quote several, in any order
        self._others = self._others or _candidates(but=self._log.trainer)
        self._since.append(line)
        _ask(self._others, line)
        if self._log.happened != happened and not any(other.understood for other in self._others):
            self._since = []  # that it was saved, or how it ended: what introduces another comes later
        other = _another(self._others)
        if other is not None:
            self._turn_to(other, self._since)

    def _turn_to(self, other: _Candidate, lines: list[Line]) -> None:
        """These, which were taken for this one's, are the beginning of the other's run."""
        begin = _first_understood(other, lines)
        self._log.forget_what_followed()
        self._earlier.append(self._log)
        self._log = LogReader(other.trainer, other.make(), self._log.line - len(lines))
        self._since, self._others = [], []
        for line in lines[:begin]:
            self._log.introduce(line)
        for line in lines[begin:]:
            self.feed(line)

    def history(self, name: str, final: bool) -> History:
        last = self._log.history(name, final)
        return replace(last, earlier=tuple(log.history(name) for log in self._earlier))


class LogReader:
    """Reads lines of a known trainer one by one; `history` may be asked for at any time."""

    def __init__(self, trainer: Trainer, read: Reader, line: int = 0) -> None:
        """`line`: how many lines of the file come before it."""
        self.trainer = trainer
        self._recording = Recording(trainer)
        self._recording.line = line
        self._read = read
        self._lowest_rank: int | None = None
        self._torn = False
        self._notes: Notes | None = None  # as they were after its last line about an iteration

    @property
    def line(self) -> int:
        return self._recording.line

    @property
    def happened(self) -> int:
        """How often something beside iterations was told: evaluations, saves, what befell the process."""
        return self._recording.happened

    @property
    def is_quoted(self) -> bool:
        return self._recording.quoted

    def introduce(self, line: Line) -> None:
        """A line from before the run: of what happened in it, it says nothing."""
        self._recording.line += 1
        text, _ = unwrapped(line.text)
        if not self._read(text, self._recording):
            read_header(text, self._recording)
        self._recording.drop_waiting_saves()  # nothing is saved before the first iteration

    def forget_what_followed(self) -> None:
        """What was said about a run after its last iteration was about another. Not how long it took."""
        if self._notes is not None:
            self._recording.notes = self._notes

    def feed(self, line: Line) -> bool:
        """Whether it is about an iteration, or another rank's."""
        into = self._recording
        into.line += 1
        text, rank = unwrapped(line.text)
        self._torn = line.torn
        if line.torn:
            text = text[:-40] + _CUT_NUMBER.sub("", text[-40:])
        # A log that began without quotation marks is none; what its model writes later may have them.
        if ("`" in text or "*" in text) and (into.quoted or not into.has_steps):
            into.quoted = into.quoted or _QUOTE.match(text) is not None
            into.block += text.lstrip("> ").startswith("```")
        if rank is not None and not self._is_first(rank):
            read_incident(text, into)
            return True
        if self._read(text, into):
            self._notes = None
            return True
        self._notes = self._notes or into.notes.copy()
        if not read_incident(text, into):
            read_header(text, into)
        elif "wall_s" in into.notes.said:
            self._notes.said["wall_s"] = into.notes.said["wall_s"]
        return False

    def _is_first(self, rank: int) -> bool:
        """Every rank prints the same; the lowest one speaks for all."""
        if self._lowest_rank is None or rank < self._lowest_rank:
            self._lowest_rank = rank
        return rank == self._lowest_rank

    def history(self, name: str, final: bool = True) -> History:
        """`final`: the log ends here. Asked for before, it changes nothing that comes later."""
        close = getattr(self._read, "close", None)
        if close is not None and final:
            close(self._recording)
        whole = self._recording.history(name, self._torn, final)
        return in_order(whole) if whole.quoted else whole
