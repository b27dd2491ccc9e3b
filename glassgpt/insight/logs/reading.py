"""From lines to a History: find out whose log it is, then read it as that.

The format is told by the lines, never by the name of the file: every grammar reads the first lines, and the
one that understands most of them reads the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from glassgpt.errors import UserError
from glassgpt.insight.history import Format, History
from glassgpt.insight.logs import build_nanogpt, generic, litgpt, llmc, nanochat, nanogpt
from glassgpt.insight.logs.header import read_header
from glassgpt.insight.logs.huggingface import FORMAT as HUGGINGFACE
from glassgpt.insight.logs.huggingface import TrainerReader
from glassgpt.insight.logs.incidents import read_incident
from glassgpt.insight.logs.modded import FORMAT as MODDED
from glassgpt.insight.logs.modded import ModdedReader
from glassgpt.insight.logs.quoting import in_order
from glassgpt.insight.logs.recording import Recording
from glassgpt.insight.logs.text import Line
from glassgpt.insight.logs.wrapping import unwrapped

Reader = Callable[[str, Recording], bool]

# In the order in which a tie is decided; the one that reads anything is asked last.
_GRAMMARS: tuple[tuple[Format, Callable[[], Reader]], ...] = (
    (nanogpt.FORMAT, lambda: nanogpt.read),
    (nanochat.FORMAT, lambda: nanochat.read),
    (build_nanogpt.FORMAT, lambda: build_nanogpt.read),
    (llmc.FORMAT, lambda: llmc.read),
    (MODDED, ModdedReader),
    (litgpt.FORMAT, lambda: litgpt.read),
    (HUGGINGFACE, TrainerReader),
    (generic.FORMAT, generic.GenericReader),
)
KNOWN = ", ".join(format.title for format, _ in _GRAMMARS[:-1])

_ENOUGH = 40  # lines about iterations that one grammar understood: the others need not be asked any more
_LEAST_UNKNOWN = 3  # such lines make a log of a trainer that we do not know
_LONGEST_NOISE = 2_000_000  # lines without one about an iteration: it is no log
_LONGEST_PREAMBLE = 100_000  # lines kept until the format is clear; modded-nanogpt begins with its source

# Losses have three decimals or more; a number with fewer at the very end may have lost some.
_CUT_NUMBER = re.compile(r"(?<![\d.,])[-+]?\d[\d,]*\.?\d{0,2}$")
_QUOTE = re.compile(r"^\s*(?:```|~~~|>?\s*[-*]?\s*\*\*\s*(?:iter|step)\b)")


class _Candidate:
    """A grammar, and how many lines it has understood so far."""

    def __init__(self, format: Format, make: Callable[[], Reader]) -> None:
        self.format, self.make = format, make
        self.read = make()
        self.recording = Recording(format)  # only to read into
        self.understood = 0


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
    """Takes lines one by one; asks all grammars until one is clearly right, then only that one."""

    def __init__(self) -> None:
        self._candidates = [_Candidate(format, make) for format, make in _GRAMMARS]
        self._kept: list[Line] = []
        self._seen = 0
        self._log: LogReader | None = None

    def feed(self, line: Line) -> None:
        if self._log is not None:
            self._log.feed(line)
            return
        self._seen += 1
        self._kept.append(line)
        if len(self._kept) > _LONGEST_PREAMBLE:
            del self._kept[: _LONGEST_PREAMBLE // 2]
        text, _ = unwrapped(line.text)
        for candidate in self._candidates:
            candidate.understood += candidate.read(text, candidate.recording)
        if max(candidate.understood for candidate in self._candidates[:-1]) >= _ENOUGH:
            self._log = self._reread()
            self._kept = []

    @property
    def is_empty(self) -> bool:
        return self._log is None and not any(line.text.strip() for line in self._kept)

    def is_hopeless(self) -> bool:
        """So much, and nothing of it understood."""
        return self._log is None and self._seen > _LONGEST_NOISE and self._best() is None

    def history(self, name: str, final: bool = True) -> History | None:
        """None as long as it is no log of a known kind."""
        log = self._log or self._reread()
        return None if log is None else log.history(name, final)

    def _reread(self) -> LogReader | None:
        best = self._best()
        if best is None:
            return None
        log = LogReader(best.format, best.make())
        for line in self._kept:
            log.feed(line)
        return log

    def _best(self) -> _Candidate | None:
        *known, unknown = self._candidates
        best = max(known, key=lambda candidate: candidate.understood)  # the first of equals
        if best.understood:
            return best
        return unknown if unknown.understood >= _LEAST_UNKNOWN else None


class LogReader:
    """Reads lines of a known format one by one; `history` may be asked for at any time."""

    def __init__(self, format: Format, read: Reader) -> None:
        self._recording = Recording(format)
        self._read = read
        self._lowest_rank: int | None = None
        self._torn = False

    def feed(self, line: Line) -> None:
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
        elif not self._read(text, into) and not read_incident(text, into):
            read_header(text, into)

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
