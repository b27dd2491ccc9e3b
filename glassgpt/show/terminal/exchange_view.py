"""What `glass export` and `glass import` did, in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from glassgpt import format
from glassgpt.exchange.export import Exported
from glassgpt.exchange.import_nanogpt import Imported
from glassgpt.exchange.to_nanogpt import dataset_name, needs_meta
from glassgpt.sanitize import harmless
from glassgpt.show.terminal.sample_view import describe_origin


def show_export(done: Exported, to: str, out: Console) -> None:
    origin = done.parcel.origin
    for complaint in origin.complaints:
        _line(out, "warning", complaint, "yellow")
    _line(out, "model", describe_origin(origin, done.parcel.model().parameter_count()))
    for note in done.notes:
        _line(out, note.name, f"{note.value}   ({note.reason})")
    _line(out, "check", _checked(done))
    _line(out, "files", ", ".join(f"{name} {format.size(size)}" for name, size in done.files.items()))
    _line(out, "written", str(done.out))
    for label, text in _next(done, to):
        _line(out, label, text)


def _checked(done: Exported) -> str:
    proof = done.proof
    found = f"differ by at most {proof.difference:.1e}" if proof.difference else "are equal to the last bit"
    text = (
        f"read back by {proof.reader}: logits {found} (the largest is {proof.largest:.3g}) over "
        f"{format.plural(proof.tokens, 'token')}"
    )
    if proof.ids:
        text += f"; a text of {format.plural(proof.ids, 'token')} is read and written alike"
    return text


def _next(done: Exported, to: str) -> Iterable[tuple[str, str]]:
    folder = shlex.quote(str(done.out))
    if to == "hf":
        yield "next", f'AutoModelForCausalLM.from_pretrained("{done.out}"), AutoTokenizer likewise'
        yield "", f"glass sample --init_from={folder}"
    elif to == "glass":
        yield "next", f"glass sample --init_from={folder}"
        yield "", "a loader of a few lines is in README.md there"
    else:
        absolute = shlex.quote(str(done.out.absolute()))
        yield "next", "in nanoGPT's folder:"
        if needs_meta(done.parcel.tokenizer):
            place = f"data/{dataset_name(done.parcel)}"
            yield "", f"mkdir -p {place} && cp {absolute}/meta.pkl {place}/"
        yield "", f"python sample.py --out_dir={absolute}"


def show_import(done: Imported, out: Console) -> None:
    told = done.told
    shape = told.shape
    parts = [format.plural(shape.n_layer, "layer"), format.plural(shape.n_head, "head")]
    parts += [f"{shape.n_embd} wide", f"context {shape.block_size}"]
    _line(out, "model", f"{', '.join(parts)}, after {format.plural(told.saved_iter, 'update')}")
    if done.updates:
        counted = format.plural(done.updates, "line"), format.plural(done.evaluations, "evaluation")
        _line(out, "log", f"{counted[0]} about iterations, {counted[1]}")
    for choice in told.choices:
        _line(out, choice.name, f"{choice.value}   ({choice.reason})")
    folder = shlex.quote(str(told.run_dir))
    _line(out, "written", str(told.run_dir))
    _line(out, "next", f"glass show {folder}")
    _line(out, "", f"glass explain {folder}")
    if told.dataset is not None:
        _line(out, "", f"glass sample {folder}")
        planned = told.config.max_iters
        # A run that has done its updates is refused where nothing says how far it should go.
        more = f" --max_iters={2 * planned}" if told.saved_iter >= planned else ""
        _line(out, "", f"glass train --init_from=resume --out_dir={folder}{more}")


def _line(out: Console, label: str, text: str, style: str = "") -> None:
    out.print(Text.assemble((f"{label:<13} ", "bold"), (harmless(text), style)), soft_wrap=True)
