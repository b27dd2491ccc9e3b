"""A run as a text states it, value by value, and the RunLog of it.

    run = NotedRun()
    read_cell(run, "ms", "time (iter 800)", "~3900 ms", line=4)
    build_run_log(run, trainer, "note.md")

notes.py finds the tables and the sentences; the first value that the text states of anything counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from glassgpt.config import ConfigValue
from glassgpt.errors import UserError
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.estimate.flops import attention_flops_per_token, six_n_flops_per_token
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.header import KNOWN_SETTINGS, parse_setting
from glassgpt.runs.log_numbers import MAX_COUNT, parse_count, parse_ms
from glassgpt.runs.model_size import implied_layers
from glassgpt.runs.note_words import (
    CARD_NAME,
    EVALUATION_WORD,
    ITERATION_AFTER,
    ITERATION_BEFORE,
    TABLE_CELL,
    TOKEN_PRODUCT,
    last_iteration,
    parse_iteration,
)
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import A100_PEAK, Trainer


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

    @property
    def has_content(self) -> bool:
        """A loss with its iteration, or a time with what was timed."""
        has_loss = any(at is not None or self.iteration is not None for at, _ in self.evals)
        return has_loss or ("ms" in self.measured and ("mfu" in self.measured or bool(self.settings)))


def plain_text(cell: str) -> str:
    return re.sub(r"[*_`]{1,3}", "", cell).strip() if not re.fullmatch(r"`?\w+`?", cell) else cell.strip("`")


def read_head(run: NotedRun, head: str) -> None:
    """`4070 Ti (5000 iterations, GPU)`: names, the last iteration, the device."""
    for phrase in re.split(r"[(),/|;]", plain_text(head)):
        phrase = phrase.strip()
        if match := ITERATION_BEFORE.search(phrase) or ITERATION_AFTER.search(phrase):
            run.iteration = parse_iteration(match[1]) or run.iteration
        elif len(phrase) > 1:
            run.names.add(phrase)
            if phrase.upper() == "CPU":
                run.settings["device"] = "cpu"
            elif CARD_NAME.search(phrase):
                record_device(run, phrase)


def record_device(run: NotedRun, text: str) -> None:
    match = CARD_NAME.search(text)
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
    match = TABLE_CELL.match(cell)
    if metric in KNOWN_SETTINGS:
        value = parse_setting(plain.split(" ")[0])
        if value is not None:
            run.settings.setdefault(metric, value)
        return
    if metric == "tokens_per_iteration" and (product := TOKEN_PRODUCT.match(plain)):
        _record_batch(run, product)
        return
    if match is None:
        return
    number, unit = match["number"], match["unit"] or ""
    iteration = last_iteration(match["rest"]) or last_iteration(label) or run.iteration
    if metric in ("parameters", "tokens_per_iteration"):
        if not match["high"]:
            run.values.setdefault(metric, parse_count(number + (unit if unit in "kKMBG" else "")))
    elif metric in ("val_loss", "train_loss"):
        if not match["high"]:
            run.evals.setdefault((iteration, metric), (float(number), line))
    elif metric == "ms":
        _record_time(run, match, iteration, line)
    elif metric in ("loss", "mfu", "tokens_per_s") and not match["high"]:
        value = parse_count(number + unit) if unit and unit in "kKMBG" else float(number.replace(",", ""))
        run.measured.setdefault(metric, (value, iteration, line))


def _record_time(run: NotedRun, match: re.Match[str], iteration: int | None, line: int) -> None:
    """`116-1505ms`: the shortest is a steady iteration, the longest one that evaluates. A time that the cell
    doubts, or says to include an evaluation, is not that of a steady one."""
    unit = match["unit"] if match["unit"] in ("ms", "s") else "ms"
    ms = parse_ms(match["number"], unit)
    is_doubted = match["rest"].lstrip().startswith("?") or EVALUATION_WORD.search(match["rest"])
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
    if not 0 < tokens < MAX_COUNT or (product[2] and abs(parse_count(product[2]) / tokens - 1) > 0.02):
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
    last = (
        max((at for at in noted if at is not None), default=None) if run.iteration is None else run.iteration
    )
    # Time and MFU of one table are of one iteration, whichever of the two rows says which.
    timed = [run.measured[key][1] for key in ("ms", "mfu") if key in run.measured]
    timed_at = next((at for at in timed if at is not None), last)
    rows: dict[int, dict[str, float]] = {}
    lines: dict[int, int] = {}
    for metric, (value, at, line) in run.measured.items():
        place = (last if at is None else at) if metric == "loss" else timed_at
        if metric != "eval_ms":
            rows.setdefault(place or 0, {})[metric] = value
            lines[place or 0] = line
    evals: dict[int, dict[str, float]] = {}
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
            builder.add_eval(place, evals[place].get("val_loss"), evals[place].get("train_loss"), ms=eval_ms)
        if place in rows:
            row, builder.line = rows[place], lines[place]
            builder.add_step(
                place,
                row.get("loss"),
                ms=row.get("ms", math.nan),
                mfu=row.get("mfu", math.nan),
                tokens_per_s=row.get("tokens_per_s", math.nan),
            )
    builder.finish()
    own_lines = [*lines.values(), *eval_lines.values()]
    run_log = replace(
        builder.build(name, ends_mid_line=False),
        first_line=min(own_lines, default=0),
        last_line=max(own_lines, default=0),
        is_excerpt=True,
        has_iteration_numbers=last is not None,
    )
    run_log = replace(
        run_log, segments=tuple(replace(segment, has_startup=False) for segment in run_log.segments)
    )
    if layers := implied_layers(run_log):
        settings = {**run_log.setup.settings, "n_layer": layers}
        run_log = replace(run_log, setup=replace(run_log.setup, settings=settings))
    return run_log
