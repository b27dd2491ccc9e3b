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

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glassgpt.config import ConfigValue
from glassgpt.errors import UserError
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.estimate.flops import attention_flops_per_token, six_n_flops_per_token
from glassgpt.runs import note_words as words
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.header import KNOWN_SETTINGS, parse_setting
from glassgpt.runs.log_numbers import ASCII_DIGITS, MAX_COUNT, parse_count, parse_ms
from glassgpt.runs.model_size import implied_layers
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import A100_PEAK, Trainer
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
    trainer = replace(  # its numbers as prose states them: times of steady iterations, and not every line
        named if named.name.lower() in whole else TRAINERS[-1],
        step_time_includes_eval=False,
        clock_reads_before_sync=False,
        evaluates_before_first_step=False,
        logs_checkpoints=False,
    )
    logs = [build_run_log(run, trainer, name if len(runs) == 1 else f"{name}: {run.title}") for run in runs]
    events = tuple(words.perplexities_as_losses(texts))
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
        for name, value, _ in words.stated_settings(text):
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
        metrics = [words.metric_of_row(row[0]) for row in body]
        columns = []
        for column in range(1, len(head)):
            known = [
                row[column] for row, metric in zip(body, metrics, strict=True) if metric and column < len(row)
            ]
            parsed = sum(words.TABLE_CELL.match(cell) is not None for cell in known)
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
        named = [kind for kind in kinds if words.METRICS[kind].search(text)]
        if len(named) == 1:
            metric = named[0]
        for match in words.QUOTED_LOSS.finditer(text):
            before = text[: match.start()]
            iteration = words.last_iteration(before) or iteration
            run = self._run_at(text, match.start())
            if run is not None and metric and iteration is not None:
                run.evals.setdefault((iteration, metric), (float(match[1]), at + 1))
        return metric, words.last_iteration(text) or iteration

    def _settings_of_runs(self, text: str) -> Iterator[tuple[NotedRun, str, ConfigValue]]:
        """A setting belongs to the run whose values the line repeats, else to the run named closest to it,
        else to the runs whose MFU and time fit the shape that the line states."""
        stated = list(words.stated_settings(text))
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
            iteration, mentions = words.last_iteration(sentence), self._mentions(sentence)
            for kind, pattern in words.ROUNDED_LOSS.items():
                for match in pattern.finditer(sentence):
                    # From the mention of a run before it to the next one.
                    begin = max((place for place, _ in mentions if place <= match.start()), default=0)
                    end = min((place for place, _ in mentions if place > match.start()), default=None)
                    own = words.last_iteration(sentence[begin:end]) or iteration
                    run = self._run_at(sentence, match.start())
                    if run is not None and own is not None:
                        run.evals.setdefault((own, kind), (float(match[1] or match[2]), at + 1))
                        run.iteration = max(own, run.iteration or 0)
            for name, pattern in words.PROSE_VALUES.items():
                for match in pattern.finditer(sentence):
                    number = next(group for group in match.groups() if group)
                    run = self._run_at(sentence, match.start())
                    if run is not None and name == "parameters":
                        run.set_count(name, number)
                    elif run is not None:
                        run.measured.setdefault(name, (float(number.replace(",", "")), None, at + 1))
            for match in words.CARD_NAME.finditer(sentence):
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


def _contrasted_runs(texts: Sequence[str]) -> list[NotedRun]:
    """The runs that a text without a table speaks of: two where it contrasts them, else one."""
    whole = "\n".join(texts)
    for patterns in words.CONTRASTED_NAMES:
        names = [
            patterns[0],
            rf"{patterns[1]}|{words.CARD_NAME.pattern}" if "GPU" in patterns[1] else patterns[1],
        ]
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


# --- one run, value by value: the first that the text states of anything counts ---


@dataclass
class NotedRun:
    """What the text says about one run."""

    title: str = ""
    names: set[str] = field(default_factory=set)
    settings: dict[str, ConfigValue] = field(default_factory=dict)
    values: dict[str, int | float | str] = field(default_factory=dict)  # fields of LoggedSetup
    measured: dict[str, tuple[float, int | None, int]] = field(default_factory=dict)  # value, iteration, line
    evals: dict[tuple[int | None, str], tuple[float, int]] = field(default_factory=dict)  # value, line
    iteration: int | None = None  # the last one

    def set_count(self, name: str, text: str) -> None:
        count = _count_or_none(text)
        if count is not None:
            self.values.setdefault(name, count)

    @property
    def has_content(self) -> bool:
        """A loss with its iteration, or a time with what was timed."""
        has_loss = any(at is not None or self.iteration is not None for at, _ in self.evals)
        return has_loss or ("ms" in self.measured and ("mfu" in self.measured or bool(self.settings)))


def _count_or_none(text: str) -> int | None:
    """None for more than anything has."""
    try:
        return parse_count(text)
    except ValueError:
        return None


def plain_text(cell: str) -> str:
    return re.sub(r"[*_`]{1,3}", "", cell).strip() if not re.fullmatch(r"`?\w+`?", cell) else cell.strip("`")


def read_head(run: NotedRun, head: str) -> None:
    """`4070 Ti (5000 iterations, GPU)`: names, the last iteration, the device."""
    for phrase in re.split(r"[(),/|;]", plain_text(head)):
        phrase = phrase.strip()
        if match := words.ITERATION_BEFORE.search(phrase) or words.ITERATION_AFTER.search(phrase):
            run.iteration = words.parse_iteration(match[1]) or run.iteration
        elif len(phrase) > 1:
            run.names.add(phrase)
            if phrase.upper() == "CPU":
                run.settings["device"] = "cpu"
            elif words.CARD_NAME.search(phrase):
                record_device(run, phrase)


def record_device(run: NotedRun, text: str) -> None:
    match = words.CARD_NAME.search(text)
    if match is None or "device_name" in run.values:
        return
    try:
        run.values["device_name"] = resolve_card_name(match[0]).card.name
    except UserError:
        run.values["device_name"] = match[0]


def read_cell(run: NotedRun, metric: str, label: str, cell: str, line: int) -> None:
    plain = plain_text(cell)
    if metric == "device_name":
        record_device(run, plain)
        return
    match = words.TABLE_CELL.match(cell)
    if metric in KNOWN_SETTINGS:
        value = parse_setting(plain.split(" ")[0])
        if value is not None:
            run.settings.setdefault(metric, value)
        return
    if metric == "tokens_per_iteration" and (product := words.TOKEN_PRODUCT.match(plain)):
        _record_batch(run, product)
        return
    if match is None:
        return
    number, unit = match["number"], match["unit"] or ""
    iteration = words.last_iteration(match["rest"]) or words.last_iteration(label) or run.iteration
    if metric in ("parameters", "tokens_per_iteration"):
        if not match["high"]:
            run.set_count(metric, number + (unit if unit in "kKMBG" else ""))
    elif metric in ("val_loss", "train_loss"):
        if not match["high"]:
            run.evals.setdefault((iteration, metric), (float(number), line))
    elif metric == "ms":
        _record_time(run, match, iteration, line)
    elif metric in ("loss", "mfu", "tokens_per_s") and not match["high"]:
        scale = parse_count(f"1{unit}") if unit and unit in "kKMBG" else 1
        value = scale * float(number.replace(",", ""))
        run.measured.setdefault(metric, (value, iteration, line))


def _record_time(run: NotedRun, match: re.Match[str], iteration: int | None, line: int) -> None:
    """`116-1505ms`: the shortest is a steady iteration, the longest one that evaluates. A time that the cell
    doubts, or says to include an evaluation, is not that of a steady one."""
    unit = match["unit"] if match["unit"] in ("ms", "s") else "ms"
    ms = parse_ms(match["number"], unit)
    is_doubted = match["rest"].lstrip().startswith("?") or words.EVALUATION_WORD.search(match["rest"])
    if is_doubted:
        run.measured.setdefault("eval_ms", (ms, iteration, line))
        return
    run.measured.setdefault("ms", (ms, iteration, line))
    if match["high"]:
        high = parse_ms(match["high"].strip(" -–—"), unit)
        if high > 2 * ms:
            run.measured.setdefault("eval_ms", (high, iteration, line))


def _record_batch(run: NotedRun, product: re.Match[str]) -> None:
    """`16 × 1024 × 32 = 524k`: tokens per iteration, and the context as the remaining factor."""
    factors = [float(factor.replace(",", "")) for factor in re.split(r"\s*[x×*]\s*", product[1])]
    tokens = round(math.prod(factors))
    stated = _count_or_none(product[2]) if product[2] else tokens
    if not 0 < tokens < MAX_COUNT or stated is None or abs(stated / tokens - 1) > 0.02:
        return
    run.values.setdefault("tokens_per_iteration", tokens)
    known = [run.settings.get(name) for name in ("batch_size", "gradient_accumulation_steps")]
    rest = list(factors)
    for value in known:
        if isinstance(value, int) and value in rest:
            rest.remove(value)
    if len(factors) - len(rest) == 2 and len(rest) == 1:
        run.settings.setdefault("block_size", round(rest[0]))


def fits_shape(run: NotedRun, shape: Mapping[str, ConfigValue]) -> bool:
    """Whether a model of this depth and width, with the run's batch and some context, takes the FLOPs of the
    run's MFU and time, as nanoGPT counts them. The vocabulary's share is unknown, and left out."""
    layers, width, batch = shape.get("n_layer"), shape.get("n_embd"), run.settings.get("batch_size")
    if not (isinstance(layers, int) and isinstance(width, int) and isinstance(batch, int)):
        return False
    if "ms" not in run.measured or "mfu" not in run.measured:
        return False
    mfu, seconds = run.measured["mfu"][0], run.measured["ms"][0] / 1000
    rounding = 0.5 * 10.0 ** -len(f"{mfu:g}".partition(".")[2])
    low, high = ((mfu + sign * rounding) / 100 * A100_PEAK * seconds for sign in (-1, 1))
    matrices = six_n_flops_per_token(12 * layers * width**2)
    return any(
        low <= batch * context * (matrices + attention_flops_per_token(layers, width, context)) <= high
        for context in (2**power for power in range(5, 14))
    )


def build_run_log(run: NotedRun, trainer: Trainer, name: str) -> RunLog:
    noted = [at for at, _ in run.evals] + [at for _, at, _ in run.measured.values()]
    last = run.iteration
    if last is None:
        last = max((at for at in noted if at is not None), default=None)
    # Time and MFU of one table are of one iteration, whichever of the two rows says which.
    timed = [run.measured[key][1] for key in ("ms", "mfu") if key in run.measured]
    timed_at = next((at for at in timed if at is not None), last)
    rows: dict[int, dict[str, Any]] = {}
    lines: dict[int, int] = {}
    for metric, (value, at, line) in run.measured.items():
        place = (last if at is None else at) if metric == "loss" else timed_at
        if metric != "eval_ms":
            rows.setdefault(place or 0, {})[metric] = value
            lines[place or 0] = line
    evals: dict[int, dict[str, Any]] = {}
    eval_lines: dict[int, int] = {}
    for (at, kind), (value, line) in run.evals.items():
        place = last if at is None else at
        if place is not None:
            evals.setdefault(place, {})[kind] = value
            eval_lines.setdefault(place, line)

    builder = RunBuilder(trainer)
    builder.has_quoted_lines = True
    builder.setup.settings |= run.settings
    builder.setup.values |= run.values
    builder.setup.values["parameters_are_claimed"] = "parameters" in run.values
    for place in sorted({*rows, *evals}):
        if place in evals:
            builder.line = eval_lines[place]
            eval_ms = run.measured["eval_ms"][0] if "eval_ms" in run.measured and place == last else None
            builder.add_eval(place, **evals[place], ms=eval_ms)
        if place in rows:
            builder.line = lines[place]
            builder.add_step(place, **rows[place])
    builder.finish()
    own_lines = [*lines.values(), *eval_lines.values()]
    built = builder.build(name, ends_mid_line=False)
    run_log = replace(
        built,
        segments=tuple(replace(segment, has_startup=False) for segment in built.segments),
        first_line=min(own_lines, default=0),
        last_line=max(own_lines, default=0),
        is_excerpt=True,
        has_iteration_numbers=last is not None,
    )
    if layers := implied_layers(run_log):
        settings = {**run_log.setup.settings, "n_layer": layers}
        run_log = replace(run_log, setup=replace(run_log.setup, settings=settings))
    return run_log
