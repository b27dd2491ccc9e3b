"""`glass sample` in the terminal: samples as they are generated, or those of two models side by side.

Samples go to stdout, everything about them to stderr; so `glass sample > text.txt` holds samples alone.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt.config import Choice
from glassgpt.format import format_count, format_duration, pluralize
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import Sampler
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.text_lines import print_line
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint

SEPARATOR = "-" * 15


def describe_checkpoint(loaded: LoadedCheckpoint, parameters: int) -> str:
    """Source, updates, validation loss and size of a model."""
    parts = [loaded.description]
    if loaded.iter is not None:
        parts.append(f"after {pluralize(loaded.iter, 'update')}")
    if loaded.val_loss is not None and math.isfinite(loaded.val_loss):
        parts.append(f"validation loss {loaded.val_loss:.4f}")
    elif loaded.iter is not None:
        parts.append("validation loss not measured")
    parts.append(f"{format_count(parameters)} parameters")
    return ", ".join(parts)


def print_model(loaded: LoadedCheckpoint, parameters: int, choices: Sequence[Choice], out: Console) -> None:
    """Warnings about the checkpoint, the model, and the choices that were made for it."""
    for warning in loaded.warnings:
        print_line(out, "warning", warning, "yellow")
    print_line(out, "model", describe_checkpoint(loaded, parameters))
    for choice in choices:
        print_line(out, choice.name, f"{choice.value}   ({choice.reason})")


def print_prompt_truncation(sampler: Sampler, prompt: Sequence[int], err: Console) -> None:
    """A line if the prompt is longer than the context."""
    context = sampler.model.config.block_size
    if len(prompt) > context:
        text = f"{len(prompt):,} tokens; the model sees the last {context:,}, its whole context"
        print_line(err, "prompt", text)


def stream_samples(
    sampler: Sampler, text: str, prompt: list[int], options: SampleOptions, err: Console
) -> None:
    """Print samples: the first of a batch token by token, the others when the batch is done."""
    text = sampler.visible_prompt(prompt, text)
    started, done, batch = time.perf_counter(), 0, [text]
    _write_stdout(text)
    for pieces in sampler.sample(prompt, options):
        if pieces:
            _write_stdout(pieces[0])
            batch = [*batch, *[text] * (len(pieces) - len(batch))]
            batch = [before + piece for before, piece in zip(batch, pieces, strict=True)]
            continue
        for sample in batch[1:]:
            _write_stdout(f"\n{SEPARATOR}\n{sample}")
        done += len(batch)
        _write_stdout(f"\n{SEPARATOR}\n{text if done < options.num_samples else ''}")
        batch = [text]
    seconds = time.perf_counter() - started
    tokens = options.num_samples * options.max_new_tokens
    speed = f"{format_count(tokens / seconds)} tok/s"
    mbu = sampler.bandwidth_use(prompt, options, seconds)
    summary = f"{tokens:,} tokens in {format_duration(seconds)}: {speed}" + (f", MBU {mbu}" if mbu else "")
    err.print(Text(summary, style="dim"))


def _write_stdout(text: str) -> None:
    sys.stdout.write(sanitize_text(text))
    sys.stdout.flush()


def print_side_by_side(
    samplers: Sequence[Sampler], text: str, prompts: Sequence[list[int]], options: SampleOptions, out: Console
) -> None:
    """A column for each model, a row for each sample: same prompt, same seed."""
    table = Table(show_lines=True)
    columns = []
    for sampler, prompt in zip(samplers, prompts, strict=True):
        title = describe_checkpoint(sampler.checkpoint, sampler.model.parameter_count())
        table.add_column(Text(sanitize_text(title)), ratio=1, overflow="fold")
        visible = sampler.visible_prompt(prompt, text)
        samples: list[str] = []
        batch: list[str] = []
        for pieces in sampler.sample(prompt, options):
            if pieces:
                batch = batch or [visible] * len(pieces)
                batch = [before + piece for before, piece in zip(batch, pieces, strict=True)]
            else:
                samples, batch = samples + batch, []
        columns.append(samples)
    for row in zip(*columns, strict=True):
        table.add_row(*(Text(sanitize_text(sample)) for sample in row))
    out.print(table)
