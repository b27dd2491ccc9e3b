"""Finds out which trainer wrote a log, and reads the log with that trainer's reader.

    run_logs = read_logs(read_lines(file), "train.log")

The lines decide, never the file's name: every trainer's reader tries the first lines, and the one that
matches most of them reads the whole log. A file may hold the runs of several trainers after one another.

    LogRecognizer    buffers lines until one trainer is clear
    _TrainerSplitter notices where another trainer's run begins
    LogReader        reads the lines of one trainer
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from glassgpt.errors import UserError
from glassgpt.i18n import make_text, say
from glassgpt.runs.builder import FAILURE_KINDS, RunBuilder
from glassgpt.runs.excerpts import merge_excerpts
from glassgpt.runs.exit_status import event_patterns, read_event
from glassgpt.runs.fields import read_counted_metrics, read_line
from glassgpt.runs.file_kinds import looks_like
from glassgpt.runs.header import header_patterns, read_header
from glassgpt.runs.lines import MAX_PLAIN_LINE_CHARS, LogLine, distinct_letters, split_block
from glassgpt.runs.log_numbers import ASCII_DIGITS
from glassgpt.runs.metric_series import may_have_metric, read_metric_line
from glassgpt.runs.notes import complete_from_note, read_note
from glassgpt.runs.prefixes import strip_prefixes
from glassgpt.runs.run_log import RunLog, longest_run
from glassgpt.runs.save_lines import read_save, save_begins
from glassgpt.runs.setup_builder import SetupBuilder
from glassgpt.runs.split_runs import split_runs
from glassgpt.runs.step_form import Columns, StepForm, StepLines, declared_form
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import TRAINERS

LOG_TRAINERS = tuple(trainer for trainer in TRAINERS if trainer.reader is not None)  # others write a journal
KNOWN = ", ".join(trainer.name for trainer in LOG_TRAINERS if not trainer.reads_any_log)

# "Match" below: a reader takes the line for a step or an evaluation of its trainer.
_DECISIVE_LINES = 40  # matches of one reader, after which the others are not tried any more
_DECISIVE_GENERIC_LINES = 2000  # the same for the generic reader, if no other has matched any
_MIN_GENERIC_LINES = 3  # matches of the generic reader that make a file a log
_MIN_SWITCH_LINES = 3  # matches of another reader, and none of the current one, that begin another run
_MIN_GENERIC_SWITCH_LINES = 20  # the same for the generic reader, which may match a summary
_MAX_HEADER_LINES = 10_000  # between two runs
_MAX_UNRECOGNISED_LINES = 2_000_000  # without a match: then the file is not a log
MAX_CLOCK_CHARS = 60  # of a line: its time stamp is within these
_MIN_PIECE_LINES, _MAX_PIECE_LINES = 256, 1 << 20  # of a block, read by one form
_MAX_TRIES, _MAX_SHAPES = 100, 10_000  # of lines that no reader matches: how often each, and how many
_MAX_RANK_LINES = 64  # of other ranks, between two of the lowest one
_MAX_BUFFERED_LINES = 100_000  # until the trainer is clear: some logs begin with the whole source code

# Losses have three decimals or more; a number with fewer at the very end may be cut off.
_TRUNCATED_NUMBER = re.compile(r"(?<![\d.,])[-+]?\d[\d,]*\.?\d{0,2}$")
_DIGITS = b"0123456789"
_LAST_DECIMALS = re.compile(r"\.(\d{1,20})$")
_MAX_TAIL_CHARS = 30  # without its digits, in which a line's end equals that of the line before
# A line that says a loss as a step or an evaluation does; not what was best so far, or the last.
_LOSS = re.compile(
    r"^(?!.{0,200}(?:best|final|lowest|minimum|improve|previous|target|saved|saving)).{0,200}?"
    r"(?<![a-z])loss[\"']?\s{0,4}[:=]?\s{0,8}[\"']?-?\d{1,9}\.\d"
)
# Fewer, or a smaller share of the lines with a loss, are a program's remarks.
_MIN_UNREAD_LOSSES, _MIN_UNREAD_SHARE = 5, 0.1
_LIST_BEGIN, _STRING = re.compile(r'"[^"]{1,100}":\s?\[$'), re.compile(r'".*",?$')
_PROGRAM_ERROR = re.compile(  # argparse's, or the last line of a traceback
    r"\S{1,80}\.py: error: \S|(?:[A-Za-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception): \S"
    r"|(?:[a-z_]\w{0,40}\.){1,6}(?:exc|exceptions?|errors?)\.[A-Z]\w{0,60}: \S"
)
_MAX_LAST_LINES = 20  # of a log without a traceback, where an error is looked for
_MOVING_BAR = re.compile(r"\d%\|.{0,300}?\b[1-9]\d{0,11}/\d{1,12} \[")  # after an error, it went on
# Of a loop that trains, as far as its description says.
_TRAINING_BAR = re.compile(
    r"(?i)(?:[^%]{0,60}\b(?:train|epoch|step)[^%]{0,60}?)?\s{0,8}\d{1,3}%\|[^|]{0,300}"
    r"\|\s*([1-9]\d{0,11})/(\d{1,12}) "
    r"\[([\d:]{4,12})<"
)
MAX_ERROR_CHARS = 160
_QUOTED_LINE = re.compile(r"^\s*(?:```|~~~|>?\s*[-*]?\s*\*\*\s*(?:iter|step)\b)")


def read_log(lines: Iterable[str | LogLine], name: str) -> RunLog:
    """The longest run of `read_logs`."""
    return longest_run(read_logs(lines, name))


def read_logs(lines: Iterable[str | LogLine], name: str, head: str = "") -> tuple[RunLog, ...]:
    """Every run, from `read_lines` or `read_blocks`. UserError where the lines are not a log; it says what
    `head`, the beginning of the text, looks like."""
    recognizer = LogRecognizer()
    for line in lines:
        recognizer.feed(line)
        if recognizer.unrecognised_lines > _MAX_UNRECOGNISED_LINES:
            break
    run_logs = recognizer.build(name) or read_note(recognizer.texts(), name)
    if not run_logs:
        clause = recognizer.why_unrecognised() or looks_like(head)
        losses = sum(map(_has_loss, recognizer.texts()))
        if losses:
            clause += f"; {losses:,} of its lines have a loss, in a form that is not known"
        raise UserError(
            f"{name} is not a training log that glass can read{clause}. It reads GlassGPT's journals and run "
            f"folders, logs of {KNOWN}, lines with an iteration and a loss, CSV and JSON with columns of "
            "steps and losses, and TensorBoard's event files"
        )
    return run_logs


def _has_loss(text: str) -> bool:
    return ("oss" in text or "OSS" in text) and _LOSS.match(text.lower()) is not None


def _ends_alike(text: str, before: str) -> bool:
    """Whether both lines end with the same values, the last with as many decimals: then a last line
    without a line feed is whole."""
    decimals = [match and len(match[1]) for match in map(_LAST_DECIMALS.search, (text, before))]
    tails = [re.sub(r"\d", "", one[-2 * _MAX_TAIL_CHARS :])[-_MAX_TAIL_CHARS:] for one in (text, before)]
    return decimals[0] is not None and decimals[0] == decimals[1] and tails[0] == tails[1]


def _without_prefixes(raw_line: LogLine) -> LogLine:
    text, rank, clock = strip_prefixes(raw_line.text)
    text = text if text.isascii() else text.translate(ASCII_DIGITS)
    return LogLine(text, raw_line.is_incomplete, rank, raw_line.continues_line, clock, raw_line.begins_cell)


class _Candidate:
    """A trainer that may have written the log, and how many lines its reader has matched."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.matched_lines = 0
        self.lines_from_first_match = 0  # the first match and all lines after it
        self._read = trainer.make_reader()
        self._builder = RunBuilder(trainer)  # discarded; a reader needs one to read into

    def feed(self, line: LogLine) -> None:
        self.matched_lines += self._read(line.text, self._builder)
        self.lines_from_first_match += self.matched_lines > 0


class _Candidates:
    """All trainers but one, in the order of `TRAINERS`: the generic one is last."""

    def __init__(self, but: Trainer | None = None) -> None:
        self._all = [_Candidate(trainer) for trainer in LOG_TRAINERS if trainer is not but]
        self._tries_by_shape: Counter[bytes] = Counter()  # of lines that none matched, without their digits
        self.have_match = False

    def feed(self, line: LogLine) -> None:
        if not self.have_match:
            shape = line.text.encode("utf-8", "surrogatepass").translate(None, _DIGITS)
            if self._tries_by_shape[shape] >= _MAX_TRIES:
                return  # a progress bar, a debugging line
            if len(self._tries_by_shape) < _MAX_SHAPES:
                self._tries_by_shape[shape] += 1
        for candidate in self._all:
            candidate.feed(line)
            self.have_match = self.have_match or candidate.matched_lines > 0

    def best(self) -> _Candidate | None:
        """The one with the most matches, the first of equals; the generic one only where no other has any, or
        has so few of so many lines that they are remarks."""
        *known, generic = self._all
        best = max(known, key=lambda candidate: candidate.matched_lines)
        are_remarks = best.matched_lines < _MIN_SWITCH_LINES
        if best.matched_lines and not (are_remarks and generic.matched_lines > 4 * best.matched_lines):
            return best
        return generic if generic.matched_lines >= _MIN_GENERIC_LINES else None

    def first_with_run(self) -> _Candidate | None:
        """The first one with enough matches for a run."""
        for candidate in self._all if self.have_match else ():
            is_generic = candidate.trainer.reads_any_log
            needed = _MIN_GENERIC_SWITCH_LINES if is_generic else _MIN_SWITCH_LINES
            if candidate.matched_lines >= needed:
                return candidate
        return None


class LogRecognizer:
    """Takes lines one by one. Tries all readers until one trainer is clear, then only that one's, until
    another trainer's lines follow. The lines until then are buffered, and read again by the trainer's reader:
    which settings, checkpoints and events count depends on whose log it is."""

    def __init__(self) -> None:
        self.unrecognised_lines = 0  # as long as no reader has matched any
        self._is_empty = True  # no line has any text
        self._candidates = _Candidates()
        self._buffered_lines: list[LogLine] = []
        self._splitter: _TrainerSplitter | None = None

    def feed(self, lines: str | LogLine) -> None:
        """One line, or a block of lines: see `read_blocks`."""
        if isinstance(lines, LogLine):
            self._feed_line(lines)
            return
        texts, at = lines.split("\n"), 0
        while self._splitter is None and at < len(texts):
            for raw_line in split_block(texts[at]):
                self._feed_line(raw_line)
            at += 1
        if self._splitter is not None:
            self._splitter.feed_texts(texts[at:])

    def _feed_line(self, raw_line: LogLine) -> None:
        line = _without_prefixes(raw_line)
        if self._splitter is not None:
            self._splitter.feed(line)
            return
        self._is_empty = self._is_empty and not raw_line.text.strip()
        self._buffered_lines.append(line)
        if len(self._buffered_lines) > _MAX_BUFFERED_LINES:
            del self._buffered_lines[: _MAX_BUFFERED_LINES // 2]
        self._candidates.feed(line)
        best = self._candidates.best()
        self.unrecognised_lines = 0 if best is not None else self.unrecognised_lines + 1
        is_generic = best is not None and best.trainer.reads_any_log
        needed = _DECISIVE_GENERIC_LINES if is_generic else _DECISIVE_LINES
        if best is not None and best.matched_lines >= needed:
            self._splitter = self._replay()
            self._buffered_lines = []

    def build(self, name: str, final: bool = True) -> tuple[RunLog, ...]:
        """Every run so far; none as long as no trainer is recognised."""
        splitter = self._splitter or self._replay()
        if splitter is not None:
            run_logs = splitter.build(name, final)
            is_quoted = final and all(run_log.is_excerpt for run_log in run_logs)
            return complete_from_note(run_logs, self.texts()) if is_quoted else run_logs
        if not final:
            return ()
        # Or a run crashed before its first step: then a line that only one trainer prints identifies it.
        for line, trainer in itertools.product(self._buffered_lines, LOG_TRAINERS):
            if trainer.identifying_line and trainer.identifying_line.search(line.text):
                reader = LogReader(trainer)
                for buffered_line in self._buffered_lines:
                    reader.feed(buffered_line)
                run_logs = reader.build(name)
                has_failed = any(event.kind in FAILURE_KINDS for one in run_logs for event in one.events)
                return run_logs if has_failed else ()
        return ()

    def why_unrecognised(self) -> str:
        """A clause: there is nothing, or a program failed before it printed a step."""
        if self._is_empty:
            return "; it is empty"
        texts = self.texts()
        after: Iterator[str] = itertools.takewhile(lambda text: not _MOVING_BAR.search(text), reversed(texts))
        has_traceback = any(text.startswith("Traceback (") for text in texts)
        # Else a program prints it last; elsewhere it may be a sample of a model.
        after = after if has_traceback else itertools.islice(filter(str.strip, after), _MAX_LAST_LINES)
        if error := next((text for text in after if _PROGRAM_ERROR.match(text)), ""):
            # A bar without a loss may be the training's.
            when = "" if any(map(_MOVING_BAR.search, texts)) else " before it had trained"
            return f'; a program failed{when}: "{error.strip()[:MAX_ERROR_CHARS]}"'
        for bar in filter(None, map(_TRAINING_BAR.match, reversed(texts))):
            return (
                f"; its progress bar goes to {int(bar[1]):,} of {int(bar[2]):,}, after {bar[3]}, but no line "
                "with a step and a loss was recognised"
            )
        return ""

    def texts(self) -> list[str]:
        """Of the lines, as long as no trainer is clear."""
        return [line.text for line in self._buffered_lines]

    def _replay(self) -> _TrainerSplitter | None:
        """Reads the buffered lines with the best candidate. Another trainer's run may come before its first
        match: then with that trainer first."""
        best = self._candidates.best()
        if best is None:
            return None
        first, before = best, self._buffered_lines[: -best.lines_from_first_match]
        if before:
            earlier = _Candidates(but=best.trainer)
            for line in before:
                earlier.feed(line)
            first = earlier.first_with_run() or best
        splitter = _TrainerSplitter(first.trainer)
        for line in self._buffered_lines:
            splitter.feed(line)
        return splitter


def _have_one_pattern(one: StepForm | None, other: StepForm | None) -> bool:
    return one is other or (one is not None and other is not None and one.pattern == other.pattern)


class _TrainerSplitter:
    """One trainer's lines, or those of several after one another: a terminal with two commands, a file that a
    second script was appended to.

    Several lines that another reader matches, and none that the current one does, begin another run.
    """

    def __init__(self, first: Trainer) -> None:
        self._reader = LogReader(first)
        self._earlier_readers: list[LogReader] = []
        self._lines_since_match: list[LogLine] = []
        self._others: _Candidates | None = None
        self._fed_lines = 0  # of the lines since the last match, that the others have been fed
        self._in_list = False  # of JSON, one string per line
        self._piece_lines = _MAX_PIECE_LINES  # lines that are split by their form together

    def feed_texts(self, lines: Sequence[str]) -> None:
        """Equals `feed` for each line, but reads steps of the usual form together."""
        at = 0
        while at < len(lines):
            form, piece = self._reader.form, lines[at : at + self._piece_lines]
            items: Sequence[StepLines | str] = list(form.split(piece)) if form is not None else piece
            ends = itertools.accumulate(1 if isinstance(item, str) else item.line_count for item in items)
            self._reader.expect_lines_of("\n".join(piece[end - 1] for end in ends))
            for item in items:
                at = self._feed_item(item, lines, at)
                if not _have_one_pattern(self._reader.form, form):  # another trainer's, say
                    self._piece_lines = _MIN_PIECE_LINES
                    break
            else:
                self._piece_lines = min(2 * self._piece_lines, _MAX_PIECE_LINES)
        self._reader.expect_lines_of(None)

    def _feed_item(self, item: StepLines | str, lines: Sequence[str], at: int) -> int:
        """Lines from there on, of the current form or a single one of another. Where the next one is."""
        if isinstance(item, str):
            self._feed_raw(item)
            return at + 1
        end, begin_form = at + item.line_count, self._reader.form
        # Of an epoch's lines the reader gets the first, and finds out how they count.
        while at < end and (form := self._reader.form) is not None and form.fixed != item.fixed:
            self._feed_raw(lines[at])
            at += 1
            if not _have_one_pattern(self._reader.form, begin_form):
                return at
        if at < end and (form := self._reader.form) is not None:
            self._reader.latest_step_text = lines[end - 1].rstrip()
            self._reader.feed_steps({name: texts[at - end :] for name, texts in item.columns.items()}, form)
            self._forget_lines_since_match()
            self._reader.builder.stamps.add(self._reader.builder.line, lines[end - 1][:MAX_CLOCK_CHARS])
        return end

    def _feed_raw(self, text: str) -> None:
        for line in split_block(text) if len(text) > MAX_PLAIN_LINE_CHARS else (LogLine(text),):
            self.feed(_without_prefixes(line))

    def _is_repeated(self, text: str) -> bool:
        """A JSON document after the steps may quote the last lines in a list of strings."""
        if self._in_list:
            self._in_list = _STRING.match(text) is not None
            return self._in_list
        self._in_list = text.endswith("[") and _LIST_BEGIN.match(text) is not None
        return False

    def feed(self, line: LogLine) -> None:
        if self._is_repeated(line.text) and self._reader.builder.has_steps:
            self._reader.skip(line)
            return
        items_before = self._reader.builder.non_step_count
        if self._reader.feed(line):
            self._forget_lines_since_match()
            return
        if self._reader.builder.has_quoted_lines or len(self._lines_since_match) > _MAX_HEADER_LINES:
            return  # a text may quote several runs, in any order
        self._lines_since_match.append(line)
        is_item = self._reader.builder.non_step_count != items_before
        if not is_item and len(self._lines_since_match) < _MIN_SWITCH_LINES:
            return  # too few to begin another run: mostly a line of this one follows, and all is well
        self._others = self._others or _Candidates(but=self._reader.trainer)
        for unfed_line in self._lines_since_match[self._fed_lines :]:
            self._others.feed(unfed_line)
        self._fed_lines = len(self._lines_since_match)
        if is_item and not self._others.have_match:
            # A checkpoint or an event of this run: another's header comes after it.
            self._lines_since_match, self._fed_lines = [], 0
        other = self._others.first_with_run()
        if other is None:
            return
        # These lines, which the current reader has read, are the beginning of the other trainer's run.
        lines = self._lines_since_match
        self._lines_since_match, self._fed_lines, self._others = [], 0, None
        header_lines = len(lines) - other.lines_from_first_match
        self._reader.drop_trailing_setup()
        self._earlier_readers.append(self._reader)
        line_count = sum(not line.continues_line for line in lines)
        self._reader = LogReader(other.trainer, self._reader.builder.line - line_count)
        for header_line in lines[:header_lines]:
            self._reader.feed_header(header_line)
        for run_line in lines[header_lines:]:
            self.feed(run_line)

    def _forget_lines_since_match(self) -> None:
        if self._lines_since_match:
            self._lines_since_match, self._fed_lines = [], 0
            if self._others is not None and self._others.have_match:  # the others hold no state to reset
                self._others = None

    def build(self, name: str, final: bool) -> tuple[RunLog, ...]:
        by_reader = [
            reader.build(name, last_line=later.lines_before)
            for reader, later in itertools.pairwise((*self._earlier_readers, self._reader))
        ]
        by_reader.append(self._reader.build(name, final))
        total = sum(run_logs[0].runs_in_file for run_logs in by_reader)
        return tuple(replace(one, runs_in_file=total) for run_logs in by_reader for one in run_logs)


class LogReader:
    """Reads the lines of one trainer, one by one. `build` may be called at any time."""

    def __init__(self, trainer: Trainer, lines_before: int = 0) -> None:
        """`lines_before`: of the file, that another trainer wrote."""
        self.trainer = trainer
        self.lines_before = lines_before
        self.builder = RunBuilder(trainer)
        self.builder.line = lines_before
        self._read_line = trainer.make_reader()
        self._lowest_rank: int | None = None
        self._of_other_ranks: deque[str] = deque(maxlen=_MAX_RANK_LINES)
        self._ends_mid_line = False
        self.latest_step_text = ""
        self._has_other_evals = False  # evaluations that are not printed as this trainer does
        self._has_other_saves = False  # the same, of saves
        self._unread_losses = 0  # lines with a loss that are neither step nor evaluation
        self._setup_at_last_step: SetupBuilder | None = None  # None: nothing has been read since
        self.expect_lines_of(None)

    def expect_lines_of(self, block: str | None) -> None:
        """The next lines are of this block, so only some patterns can match. None: they can be any lines."""
        letters = None if block is None else distinct_letters(block)
        self._event_patterns, self._header_patterns = event_patterns(letters), header_patterns(letters)
        self._may_have_metrics = block is None or may_have_metric(block)

    def feed(self, line: LogLine) -> bool:
        """Whether the line is a step or an evaluation, or another rank's."""
        builder, text, rank = self.builder, line.text, line.rank
        builder.line += not line.continues_line
        builder.clock = line.clock
        if line.begins_cell:
            builder.begin_cell()
        if line.clock or text[-4:].isdecimal():  # the second may be as `date` prints it
            builder.stamps.add(builder.line, line.clock, text)
        self._ends_mid_line = line.is_incomplete and not _ends_alike(text, self.latest_step_text)
        if self._ends_mid_line:
            text = text[:-40] + _TRUNCATED_NUMBER.sub("", text[-40:])
        # A log that began without quotation marks is not a quotation; its samples may have them later.
        if ("`" in text or "*" in text) and (builder.has_quoted_lines or not builder.has_steps):
            if not builder.has_quoted_lines and _QUOTED_LINE.match(text):
                builder.has_quoted_lines = True
                builder.forget_events()  # the text before the first quotation may speak of one
            builder.fence_count += text.lstrip("> ").startswith("```")
        if rank is not None:  # every rank prints the same: only the lowest one is read
            self._lowest_rank = rank if self._lowest_rank is None else min(rank, self._lowest_rank)
            if rank != self._lowest_rank:
                if "loss" in text:  # the last stage of a pipeline may be the only one to have it
                    self._of_other_ranks.append(text)
                    self._read_other_ranks()
                read_event(text, builder, self._event_patterns)
                return True
        items_before = builder.non_step_count
        if self._read_line(text, builder):
            self._setup_at_last_step, self.latest_step_text = None, text
            self._read_other_ranks()
            self._of_other_ranks.clear()
            if text[:5].lower() == "final":
                read_event(text, builder, self._event_patterns)
            return True
        is_unread = builder.non_step_count == items_before and not builder.has_quoted_lines
        if is_unread and ("oss" in text or "OSS" in text) and not self._read_other_eval(text):
            self._unread_losses += _has_loss(text)
        if is_unread and self.trainer.has_saves_around_it and builder.has_steps and not builder.in_traceback:
            self._read_other_save(text)
        builder.note_line(text)
        self._setup_at_last_step = self._setup_at_last_step or builder.setup.copy()
        if not read_event(text, builder, self._event_patterns):
            read_header(text, builder, self._header_patterns)
            if self._may_have_metrics and may_have_metric(text):
                is_begun = builder.has_steps or builder.awaits_step
                metrics = read_counted_metrics(text, is_begun)
                builder.add_metrics(metrics or (read_metric_line(text) if is_begun else {}))
        elif "wall_s" in builder.setup.values:
            self._setup_at_last_step.values["wall_s"] = builder.setup.values["wall_s"]
        return False

    def _read_other_ranks(self) -> None:
        """Lines with a loss, since this rank's latest one: only where that is none."""
        while self.builder.has_placeholder_loss and self._of_other_ranks:
            self._read_line(self._of_other_ranks.popleft(), self.builder)

    def _read_other_eval(self, text: str) -> bool:
        """A home-made loop's, whose steps look like this trainer's: of the step before, as the line says."""
        line = read_line(text)
        step, val_loss = line.of("iteration"), line.of("val_loss")
        if step is None or val_loss is None or line.of("loss") is not None or not step.is_count:
            return False
        has_own = self.builder.last_val_loss is not None and not self._has_other_evals
        if has_own or step.number != self.builder.last_iteration or "test" in line.words:
            return False
        self._has_other_evals = True
        self.builder.add_eval(step.number, val_loss.value)
        return True

    def _read_other_save(self, text: str) -> None:
        """What somebody prints around a trainer, where no save is printed as this trainer does."""
        builder, lower = self.builder, text.lower()
        if (builder.has_saves and not self._has_other_saves) or save_begins(lower) is None:
            return
        self._has_other_saves = True
        last = builder.last_iteration
        if last is not None and builder.iteration_by_count:
            last = builder.iteration_by_count.get(last, last)
        read_save(lower, builder, last if last is None else max(last, builder.iterations_done or 0))

    def skip(self, line: LogLine) -> None:
        """Count the line, and read nothing from it."""
        self.builder.line += not line.continues_line

    @property
    def form(self) -> StepForm | None:
        """Of its usual steps, as far as it is known. A version of a trainer may have another, or none."""
        declared = self.builder.trainer.plain_step
        learned: StepForm | None = getattr(self._read_line, "form", None)
        return declared_form(declared) if declared else learned

    def feed_steps(self, columns: Columns, form: StepForm) -> None:
        """Lines of the usual form, as their groups."""
        self._ends_mid_line = False
        self._setup_at_last_step = None
        totals, begin = columns.get("planned_count"), 0
        # A run plans one number of iterations: where it changes, another one begins.
        lengths = [len(columns["iteration"])]
        if totals is not None and totals.count(totals[0]) != len(totals):
            lengths = [len(list(group)) for _, group in itertools.groupby(totals)]
        for length in lengths:
            end = begin + length
            numbers: dict[str, list[float]] = {}
            for name, texts in columns.items():
                if name == "planned_count":
                    last_iteration = int(texts[begin]) + self.trainer.first_iteration - 1
                    self.builder.setup.values["planned_iterations"] = last_iteration
                    continue
                part = texts[begin:end]
                if name == "tokens_per_s":
                    part = [text.replace(",", "") for text in part]
                column, values = form.numbers(name, part)
                numbers[column] = values
            if self.builder.trainer.plain_step:
                self.builder.add_steps(numbers)
            else:
                self._read_line.add_steps(numbers, self.builder)  # type: ignore[attr-defined]
            begin = end

    def feed_header(self, line: LogLine) -> None:
        """A line from before the run: only what it says about the setup counts."""
        self.builder.line += not line.continues_line
        self.builder.clock = line.clock
        if not self._read_line(line.text, self.builder):
            read_header(line.text, self.builder, self._header_patterns)
        self.builder.drop_pending_checkpoints()  # nothing is saved before the first step

    def drop_trailing_setup(self) -> None:
        """Settings after the last step belong to the next run. The wall time does not."""
        if self._setup_at_last_step is not None:
            self.builder.reset_setup(self._setup_at_last_step)

    def build(self, name: str, final: bool = True, last_line: int | None = None) -> tuple[RunLog, ...]:
        """Its runs. `final`: the log ends here. Otherwise building does not affect what is read later.
        `last_line`: of this trainer, if the reader has read more."""
        if final:
            close = getattr(self._read_line, "close", None)
            if close is not None:
                close(self.builder)
            self.builder.finish()
        built = self.builder.build(name, self._ends_mid_line)
        lines_read, unread = built.iterations_logged + len(built.evals), self._unread_losses
        are_many = unread >= max(_MIN_UNREAD_LOSSES, _MIN_UNREAD_SHARE * (lines_read + unread))
        run_log = replace(
            built,
            first_line=self.lines_before + 1,
            last_line=self.builder.line if last_line is None else last_line,
            unread_loss_lines=unread,
            notes=(*built.notes, say("log.unread_losses", count=unread)) if are_many else built.notes,
        )
        whole = merge_excerpts(run_log) if run_log.is_excerpt else run_log
        return tuple(map(_with_note_of_begin, split_runs(whole, self.builder.failed_launches)))


def _with_note_of_begin(run_log: RunLog) -> RunLog:
    """With a note where the log begins in the middle of a run: with a resume, or without its first lines."""
    steps, interval = run_log.steps, run_log.log_interval()
    if interval is None or run_log.is_excerpt or not run_log.has_iteration_numbers:
        return run_log
    first = int(steps.iteration[0])
    if first <= run_log.trainer.first_iteration + 2 * max(1, interval):
        return run_log
    if not run_log.segments[0].resumed:
        return replace(run_log, notes=(*run_log.notes, say("log.begins_late", first=first)))
    notes = make_text([say("log.begins_resumed", first=first), run_log.trainer.resumed_log_note])
    return replace(run_log, notes=(*run_log.notes, *notes))
