"""What `glass export` and `glass import` did, in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from glassgpt import format
from glassgpt.exchange.export import ExportResult
from glassgpt.exchange.export_formats import dataset_name, needs_meta
from glassgpt.exchange.import_nanogpt import ImportResult
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.sample_view import describe_checkpoint


def print_export(done: ExportResult, to: str, out: Console) -> None:
    origin = done.model.origin
    for complaint in origin.complaints:
        _print_line(out, "warning", complaint, "yellow")
    _print_line(out, "model", describe_checkpoint(origin, done.model.model().parameter_count()))
    for note in done.notes:
        _print_line(out, note.name, f"{note.value}   ({note.reason})")
    _print_line(out, "check", _checked(done))
    _print_line(
        out,
        "files",
        ", ".join(f"{name} {format.format_bytes(size)}" for name, size in done.bytes_by_file.items()),
    )
    _print_line(out, "written", str(done.out_dir))
    for label, text in _next_commands(done, to):
        _print_line(out, label, text)


def _checked(done: ExportResult) -> str:
    proof = done.check
    found = (
        f"differ by at most {proof.max_difference:.1e}"
        if proof.max_difference
        else "are equal to the last bit"
    )
    text = (
        f"read back by {proof.loaded_by}: logits {found} (the largest is {proof.max_logit:.3g}) over "
        f"{format.pluralize(proof.compared_positions, 'token')}"
    )
    if proof.round_trip_ids:
        text += f"; a text of {format.pluralize(proof.round_trip_ids, 'token')} is read and written alike"
    return text


def _next_commands(done: ExportResult, to: str) -> Iterable[tuple[str, str]]:
    folder = shlex.quote(str(done.out_dir))
    if to == "hf":
        yield "next", f'AutoModelForCausalLM.from_pretrained("{done.out_dir}"), AutoTokenizer likewise'
        yield "", f"glass sample --init_from={folder}"
    elif to == "glass":
        yield "next", f"glass sample --init_from={folder}"
        yield "", "a loader of a few lines is in README.md there"
    else:
        absolute = shlex.quote(str(done.out_dir.absolute()))
        yield "next", "in nanoGPT's folder:"
        if needs_meta(done.model.tokenizer):
            place = f"data/{dataset_name(done.model)}"
            yield "", f"mkdir -p {place} && cp {absolute}/meta.pkl {place}/"
        yield "", f"python sample.py --out_dir={absolute}"


def print_import(done: ImportResult, out: Console) -> None:
    told = done.run
    shape = told.shape
    parts = [format.pluralize(shape.n_layer, "layer"), format.pluralize(shape.n_head, "head")]
    parts += [f"{shape.n_embd} wide", f"context {shape.block_size}"]
    _print_line(out, "model", f"{', '.join(parts)}, after {format.pluralize(told.saved_iter, 'update')}")
    if done.update_count:
        counted = (
            format.pluralize(done.update_count, "line"),
            format.pluralize(done.evaluation_count, "evaluation"),
        )
        _print_line(out, "log", f"{counted[0]} about iterations, {counted[1]}")
    for choice in told.choices:
        _print_line(out, choice.name, f"{choice.value}   ({choice.reason})")
    folder = shlex.quote(str(told.run_dir))
    _print_line(out, "written", str(told.run_dir))
    _print_line(out, "next", f"glass show {folder}")
    _print_line(out, "", f"glass explain {folder}")
    if told.dataset is not None:
        _print_line(out, "", f"glass sample {folder}")
        planned = told.config.max_iters
        # A run that has done its updates is refused where nothing says how far it should go.
        more = f" --max_iters={2 * planned}" if told.saved_iter >= planned else ""
        _print_line(out, "", f"glass train --init_from=resume --out_dir={folder}{more}")


def _print_line(out: Console, label: str, text: str, style: str = "") -> None:
    out.print(Text.assemble((f"{label:<13} ", "bold"), (sanitize_text(text), style)), soft_wrap=True)
