"""Samples in the terminal: as they are written, or those of two models side by side.

The text goes to stdout, what is said about it to stderr; so `glass sample > text.txt` holds text alone.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt import format
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import Sampler
from glassgpt.sanitize import sanitize_text
from glassgpt.training.weight_source import LoadedCheckpoint

SEPARATOR = "-" * 15


def describe_model(writer: Sampler) -> str:
    return describe_checkpoint(writer.checkpoint, writer.model.parameter_count())


def describe_checkpoint(origin: LoadedCheckpoint, parameters: int) -> str:
    """Which model this is: where from, how far trained, how good, how large."""
    parts = [origin.description]
    if origin.iter is not None:
        parts.append(f"after {format.pluralize(origin.iter, 'update')}")
    if origin.val_loss is not None and math.isfinite(origin.val_loss):
        parts.append(f"validation loss {origin.val_loss:.4f}")
    elif origin.iter is not None:
        parts.append("its validation loss was not measured")
    parts.append(f"{format.format_count(parameters)} parameters")
    return ", ".join(parts)


def print_model_info(writer: Sampler, err: Console) -> None:
    for complaint in writer.checkpoint.complaints:
        err.print(Text(sanitize_text(f"warning       {complaint}"), style="yellow"), soft_wrap=True)
    lines = [("model", describe_model(writer))]
    lines += [(choice.name, f"{choice.value}   ({choice.reason})") for choice in writer.choices]
    for label, text in lines:
        err.print(Text.assemble((f"{label:<14}", "bold"), sanitize_text(text)), soft_wrap=True)


def print_prompt_truncation(writer: Sampler, prompt: Sequence[int], err: Console) -> None:
    context = writer.model.config.block_size
    if len(prompt) > context:
        text = f"of its {len(prompt):,} tokens the model sees the last {context:,}, its whole context"
        err.print(Text.assemble((f"{'prompt':<14}", "bold"), text), soft_wrap=True)


def stream_samples(
    writer: Sampler, text: str, prompt: list[int], options: SampleOptions, err: Console
) -> None:
    """The first sample of a group is shown while it is written; the others were written meanwhile."""
    text = writer.visible_prompt(prompt, text)
    started, done, waiting = time.perf_counter(), 0, [text]
    _write_stdout(text)
    for pieces in writer.sample(prompt, options):
        if pieces:
            _write_stdout(pieces[0])
            waiting = [*waiting, *[text] * (len(pieces) - len(waiting))]
            waiting = [before + piece for before, piece in zip(waiting, pieces, strict=True)]
            continue
        for sample in waiting[1:]:
            _write_stdout(f"\n{SEPARATOR}\n{sample}")
        done += len(waiting)
        _write_stdout(f"\n{SEPARATOR}\n{text if done < options.num_samples else ''}")
        waiting = [text]
    seconds = time.perf_counter() - started
    total = options.num_samples * options.max_new_tokens
    err.print(
        Text(
            f"{total:,} tokens in {format.format_duration(seconds)}: {format.format_count(total / seconds)} tok/s",
            style="dim",
        )
    )


def _write_stdout(text: str) -> None:
    sys.stdout.write(sanitize_text(text))
    sys.stdout.flush()


def print_side_by_side(
    writers: Sequence[Sampler], text: str, prompts: Sequence[list[int]], options: SampleOptions, out: Console
) -> None:
    """A column for each model, a row for each sample: same prompt, same seed."""
    table = Table(show_lines=True)
    for writer in writers:
        table.add_column(Text(sanitize_text(describe_model(writer))), ratio=1, overflow="fold")
    columns = [
        [writer.visible_prompt(prompt, text) + sample for sample in _samples(writer, prompt, options)]
        for writer, prompt in zip(writers, prompts, strict=True)
    ]
    for row in zip(*columns, strict=True):
        table.add_row(*(Text(sanitize_text(sample)) for sample in row))
    out.print(table)


def _samples(writer: Sampler, prompt: list[int], options: SampleOptions) -> list[str]:
    done: list[str] = []
    group: list[str] = []
    for pieces in writer.sample(prompt, options):
        if pieces:
            group = group or [""] * len(pieces)
            group = [before + piece for before, piece in zip(group, pieces, strict=True)]
        else:
            done, group = done + group, []
    return done
