"""Reads runs out of a text about them: a note, an issue or a chat, with tables and prose, in three languages.

    | setting        | before (train2) | after (train1) |
    |----------------|-----------------|----------------|
    | n_embd         | 384             | 768            |
    | time (iter 800)| ~3900 ms        | ~9340 ms       |
    | MFU            | ~12.9%          | **15.4%**      |

    before, after = read_note(text.split("\\n"), "note.md")

Columns with values are runs, and their heads are the names by which prose speaks of them. A table's value has
priority over one in prose. Only what the text states as measured is read: ranges, limits and flags in advice
(`train ~1.0-1.5`, `<200ms`, `--batch_size=24`) are not. Quoted log lines are read by excerpts.py.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace

from glassgpt.config import ConfigValue
from glassgpt.runs.log_numbers import ASCII_DIGITS, parse_count
from glassgpt.runs.note_words import (
    CARD_NAME,
    CONTRASTED_NAMES,
    METRICS,
    PROSE_MFU,
    PROSE_MS,
    PROSE_PARAMETERS,
    QUOTED_LOSS,
    ROUNDED_LOSS,
    TABLE_CELL,
    last_iteration,
    metric_of_row,
    perplexities_as_losses,
    stated_settings,
)
from glassgpt.runs.noted_run import (
    NotedRun,
    build_run_log,
    fits_shape,
    plain_text,
    read_cell,
    read_head,
    record_device,
)
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import TRAINERS

_MAX_CHARS = 300_000  # of a text that is read as a note
_MAX_LINE_CHARS = 2_000
_MAX_RUNS = 8
_MIN_VALUE_SHARE = 0.5  # of a run's column: more of its cells are words


def read_note(lines: Sequence[str], name: str) -> tuple[RunLog, ...]:
    """The runs that the text is about, in its order; none where it has no numbers of a run."""
    texts = _clean_lines(lines)
    note = _Note(texts)
    runs = [run for run in note.runs if run.has_content][:_MAX_RUNS]
    whole = "\n".join(texts).lower()
    named = max(TRAINERS, key=lambda trainer: whole.count(trainer.name.lower()))
    trainer = _noted_trainer(named if named.name.lower() in whole else TRAINERS[-1])
    logs = [build_run_log(run, trainer, name if len(runs) == 1 else f"{name}: {run.title}") for run in runs]
    events = tuple(perplexities_as_losses(texts))
    return tuple(
        replace(
            log,
            events=events,
            event_counts={"perplexity-as-loss": len(events)} if events else {},
            runs_in_file=len(logs),
        )
        for log in logs
    )


def complete_from_note(run_logs: Sequence[RunLog], lines: Sequence[str]) -> tuple[RunLog, ...]:
    """A run whose lines are quoted, with the settings that the text around them states. Of several runs it is
    not clear whose settings these are."""
    if len(run_logs) != 1:
        return tuple(run_logs)
    settings: dict[str, ConfigValue] = {}
    for text in _clean_lines(lines):
        for name, value, _ in stated_settings(text):
            settings.setdefault(name, value)
    setup = run_logs[0].setup
    return (replace(run_logs[0], setup=replace(setup, settings=settings | dict(setup.settings))),)


def _clean_lines(lines: Sequence[str]) -> list[str]:
    """Bounded, in one spelling: the patterns below never see long runs of spaces."""
    texts, chars = [], 0
    for line in lines:
        chars += len(line)
        if chars > _MAX_CHARS:
            break
        text = unicodedata.normalize("NFC", line[:_MAX_LINE_CHARS].translate(ASCII_DIGITS))
        texts.append(re.sub(r"\s+", " ", text).strip())
    return texts


def _noted_trainer(trainer: Trainer) -> Trainer:
    """Its numbers as prose states them: times of steady iterations, and not every line."""
    return replace(
        trainer,
        step_time_includes_eval=False,
        clock_reads_before_sync=False,
        evaluates_before_first_step=False,
        logs_checkpoints=False,
    )


class _Note:
    """The runs of a text: first its tables, then its prose."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.runs: list[NotedRun] = []
        in_table: set[int] = set()
        for start, rows in _tables(texts):
            in_table.update(range(start, start + len(rows) + 1))
            self._read_table(start, rows)
        prose = [(at, text) for at, text in enumerate(texts) if at not in in_table]
        self._has_table = bool(self.runs)
        if not self._has_table:
            self.runs = _contrasted_runs([text for _, text in prose])
        self._read_prose(prose)

    # --- tables ---

    def _read_table(self, start: int, rows: list[list[str]]) -> None:
        head, *body = rows
        metrics = [metric_of_row(row[0]) for row in body]
        columns = []
        for column in range(1, len(head)):
            known = [
                row[column] for row, metric in zip(body, metrics, strict=True) if metric and column < len(row)
            ]
            parsed = sum(TABLE_CELL.match(cell) is not None for cell in known)
            if known and parsed >= _MIN_VALUE_SHARE * len(known):
                columns.append(column)
        if not columns or (self.runs and len(columns) != len(self.runs)):
            return
        if not self.runs:
            self.runs = [NotedRun(title=plain_text(head[column])) for column in columns]
        for run, column in zip(self.runs, columns, strict=True):
            read_head(run, head[column])
            cells = [
                (metric, row[0], row[column], start + 3 + offset)
                for offset, (row, metric) in enumerate(zip(body, metrics, strict=True))
                if metric and column < len(row)
            ]
            # The context is the factor of the tokens that is neither batch_size nor accumulation.
            for metric, label, cell, line in sorted(
                cells, key=lambda cell: cell[0] == "tokens_per_iteration"
            ):
                read_cell(run, metric, label, cell, line)
        for run in self.runs:  # a name of two runs is none
            others = set().union(*(other.names for other in self.runs if other is not run))
            run.names -= others

    # --- prose ---

    def _read_prose(self, prose: Sequence[tuple[int, str]]) -> None:
        context: tuple[str | None, int | None] = (None, None)  # metric and iteration that a list is about
        in_code = False
        for at, text in prose:
            if text.lstrip("> ").startswith("```"):
                in_code = not in_code
                continue
            if in_code or text.startswith("#"):
                context = (None, None)
            if in_code:
                continue
            context = self._read_quoted_losses(at, text, context)
            for run, name, value in self._settings_of_runs(text):
                run.settings.setdefault(name, value)
            if not self._has_table:
                self._read_sentence(at, text)

    def _mentions(self, text: str) -> list[tuple[int, NotedRun]]:
        found = []
        for run in self.runs:
            for name in run.names:
                pattern = name if not self._has_table else rf"(?<!\w){re.escape(name)}"
                found += [(match.start(), run) for match in re.finditer(pattern, text, re.IGNORECASE)]
        return sorted(found, key=lambda mention: mention[0])

    def _run_at(self, text: str, position: int) -> NotedRun | None:
        """The run that the text speaks of here: the latest named before, else the next after."""
        if len(self.runs) == 1:
            return self.runs[0]
        mentions = self._mentions(text)
        before = [run for at, run in mentions if at <= position]
        after = [run for at, run in mentions if at > position]
        return before[-1] if before else after[0] if after else None

    def _read_quoted_losses(
        self, at: int, text: str, context: tuple[str | None, int | None]
    ) -> tuple[str | None, int | None]:
        """Losses with as many decimals as a log has, and the run and the iteration that they are of."""
        metric, iteration = context
        kinds = ("val_loss", "train_loss")
        named = [kind for kind in kinds if METRICS[kind].search(text)]
        if len(named) == 1:
            metric = named[0]
        for match in QUOTED_LOSS.finditer(text):
            before = text[: match.start()]
            iteration = last_iteration(before) or iteration
            run = self._run_at(text, match.start())
            if run is not None and metric and iteration is not None:
                run.evals.setdefault((iteration, metric), (float(match[1]), at + 1))
        return metric, last_iteration(text) or iteration

    def _settings_of_runs(self, text: str) -> Iterator[tuple[NotedRun, str, ConfigValue]]:
        """A setting belongs to the run whose values the line repeats, else to the run named closest to it,
        else to the runs whose MFU and time fit the shape that the line states."""
        stated = list(stated_settings(text))
        mentions = self._mentions(text) if stated else []
        shape = {name: value for name, value, _ in stated}
        for name, value, position in stated:
            owners = self.runs
            if len(self.runs) > 1:
                others = {(other, known) for other, known, _ in stated if other != name}
                owners = [run for run in self.runs if others & run.settings.items()]
                if len(owners) != 1 and mentions:
                    owners = [min(mentions, key=lambda mention: abs(mention[0] - position))[1]]
                elif len(owners) != 1:
                    owners = [run for run in self.runs if fits_shape(run, shape)]
            for run in owners:
                yield run, name, value

    def _read_sentence(self, at: int, text: str) -> None:
        """Rounded numbers, in a text without a table."""
        for sentence in re.split(r"(?<=[.;।؛!?])\s+|\n", text):
            iteration = last_iteration(sentence)
            for kind, pattern in ROUNDED_LOSS.items():
                for match in pattern.finditer(sentence):
                    run = self._run_at(sentence, match.start())
                    clause = _clause_around(sentence, match.start(), self._mentions(sentence))
                    own = last_iteration(clause) or iteration
                    if run is not None and own is not None:
                        run.evals.setdefault((own, kind), (float(match[1] or match[2]), at + 1))
                        run.iteration = max(own, run.iteration or 0)
            for name, pattern in (("ms", PROSE_MS), ("mfu", PROSE_MFU), ("parameters", PROSE_PARAMETERS)):
                for match in pattern.finditer(sentence):
                    run = self._run_at(sentence, match.start())
                    text_value = next(group for group in match.groups() if group)
                    if run is None:
                        continue
                    if name == "parameters":
                        run.values.setdefault("parameters", parse_count(text_value))
                    else:
                        value = float(text_value.replace(",", ""))
                        run.measured.setdefault(name, (value, None, at + 1))
            for match in CARD_NAME.finditer(sentence):
                run = self._run_at(sentence, match.start())
                if run is not None and run.settings.get("device") != "cpu":
                    record_device(run, match[0])


def _tables(texts: Sequence[str]) -> Iterator[tuple[int, list[list[str]]]]:
    """Markdown's: the line of the head, then its rows without the ruler."""
    at = 0
    while at + 1 < len(texts):
        ruler = texts[at + 1].strip()
        if "|" in texts[at] and ruler and set(ruler) <= set("|-: ") and "-" in ruler and "|" in ruler:
            rows = [_cells(texts[at])]
            end = at + 2
            while end < len(texts) and "|" in texts[end]:
                rows.append(_cells(texts[end]))
                end += 1
            yield at, rows
            at = end
        else:
            at += 1


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _clause_around(sentence: str, position: int, mentions: list[tuple[int, NotedRun]]) -> str:
    """From the mention of a run before the position to the next one."""
    starts = [at for at, _ in mentions if at <= position]
    ends = [at for at, _ in mentions if at > position]
    return sentence[starts[-1] if starts else 0 : ends[0] if ends else len(sentence)]


def _contrasted_runs(texts: Sequence[str]) -> list[NotedRun]:
    """The runs that a text without a table speaks of: two where it contrasts them, else one."""
    whole = "\n".join(texts)
    for patterns in CONTRASTED_NAMES:
        names = [patterns[0], rf"{patterns[1]}|{CARD_NAME.pattern}" if "GPU" in patterns[1] else patterns[1]]
        found = [re.search(name, whole, re.IGNORECASE) for name in names]
        if found[0] and found[1]:
            runs = [
                NotedRun(title=match[0], names={name})
                for match, name in zip(found, names, strict=True)
                if match
            ]
            if "CPU" in patterns[0]:
                runs[0].settings["device"] = "cpu"
            return runs
    return [NotedRun(title="")]
