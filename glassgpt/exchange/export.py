"""glass export: a model as a folder for other programs, written whole or not at all, and checked first.

A folder that exists is replaced only if it is an export that nobody has touched: glassgpt.json in it names
every file and its SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from glassgpt import format
from glassgpt.config import Choice, TrainConfig
from glassgpt.data.digests import MARKER, file_sha256, json_sha256, recorded_digests
from glassgpt.data.nanogpt_bin import META
from glassgpt.errors import UserError
from glassgpt.exchange import glass_folder, proof, to_huggingface, to_nanogpt
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.exportable import Parcel, open_parcel
from glassgpt.exchange.model_card import TRAINING, write_card
from glassgpt.exchange.proof import Proof
from glassgpt.files import move_into_place, staging, writable_problem
from glassgpt.flags import field_types
from glassgpt.paths import user_path
from glassgpt.recipe import to_toml
from glassgpt.version import VERSION

EXPORTS = Path("exports")
CARD = "README.md"
# Decided for the machine it was trained on, or a place there.
_NOT_TOLD = (
    "out_dir", "data_dir", "device", "compile", "attention", "kernels", "graph", "eval_only", "wandb_log",
    "wandb_project", "wandb_run_name", "backend",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    out: Path
    parcel: Parcel
    notes: tuple[Choice, ...]  # what was done to the model to fit the layout
    proof: Proof
    files: dict[str, int]  # bytes by name


def export(source: str, options: ExportOptions) -> Exported:
    parcel = open_parcel(source, options.data_dir)
    problems = proof.not_finite(parcel)
    problems += to_nanogpt.problems(parcel) if options.to == "nanogpt" else []
    out = user_path(options.out) if options.out else EXPORTS / f"{parcel.name}-{options.to}"
    problems += place_problems(out)
    if problems:
        raise UserError(problems)
    with staging(out, "--out") as work:
        found = _write(work, parcel, options.to)
        (work / CARD).write_text(write_card(parcel, options.to), encoding="utf-8")
        if parcel.origin.settings:
            (work / TRAINING).write_text(_training_settings(parcel), encoding="utf-8")
        _mark(work, parcel, options.to)
        files = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
        problems = place_problems(out)  # somebody else may have been faster
        if problems:
            raise UserError(problems)
        move_into_place(work, out)
    return Exported(out, parcel, tuple(_notes(parcel, options.to)), found, files)


def _write(work: Path, parcel: Parcel, to: str) -> Proof:
    if to == "hf":
        to_huggingface.write(work, parcel)
        return proof.check_hf(work, parcel)
    if to == "nanogpt":
        to_nanogpt.write(work, parcel)
        return proof.check_nanogpt(work, parcel)
    glass_folder.write(work, parcel)
    return proof.check_own_format(work, parcel)


def _notes(parcel: Parcel, to: str) -> list[Choice]:
    shape, tokenizer = parcel.shape, parcel.tokenizer
    notes = [Choice("tokenizer", tokenizer.name, format.plural(tokenizer.vocab_size, "token"))]
    if parcel.padding:
        had = shape.vocab_size + parcel.padding
        reason = f"of {had:,}: the other {parcel.padding} were padding and stand for no token"
        notes.append(Choice("vocabulary", format.plural(shape.vocab_size, "row"), reason))
    if to == "hf" and shape.arch == "modern":
        notes += _nanochat_notes(parcel)
    elif to == "hf" and not shape.bias:
        notes.append(Choice("biases", "zeros", "the model has none, and GPT-2's layout wants them"))
    return notes + (_nanogpt_notes(parcel) if to == "nanogpt" else [])


def _nanochat_notes(parcel: Parcel) -> list[Choice]:
    shape = parcel.shape
    notes = [Choice("layout", "NanoChat", "its norms have no gains: they are in the matrices that follow")]
    if shape.tie_embeddings and not bool((parcel.weights["transformer.ln_f.weight"] == 1).all()):
        numbers = format.count(shape.vocab_size * shape.n_embd)
        reason = f"the embedding times the last norm's gain: {numbers} numbers more than in the run"
        notes.append(Choice("head", "separate", reason))
    if shape.dropout:
        reason = "NanoChat has no dropout elsewhere; it matters only if training continues there"
        notes.append(Choice("dropout", "in attention only", reason))
    return notes


def _nanogpt_notes(parcel: Parcel) -> list[Choice]:
    notes = []
    if to_nanogpt.adamw_memory(parcel) is None:
        reason = "there is no AdamW state of every parameter: sample.py loads it, train.py cannot resume it"
        notes.append(Choice("optimizer", "left out", reason))
    else:
        notes.append(Choice("optimizer", "AdamW", "included: nanoGPT's train.py can resume"))
    if parcel.shape.activation == "gelu_new":
        difference = proof.gelu_difference(parcel)
        reason = (
            f"nanoGPT has no other; this model learned with GPT-2's tanh, so its logits change by up to "
            f"{difference:.2g} there, as they do for GPT-2 itself"
        )
        notes.append(Choice("activation", "exact GELU", reason))
    if to_nanogpt.needs_meta(parcel.tokenizer):
        place = f"data/{to_nanogpt.dataset_name(parcel)}/{META}"
        notes.append(Choice(META, "beside it", f"sample.py looks for it at {place} in nanoGPT's folder"))
        if parcel.tokenizer.name not in ("char", "ids"):
            reason = "sample.py reads a prompt character by character, not as this tokenizer does"
            notes.append(Choice("prompts", "approximate", reason))
    return notes


def _training_settings(parcel: Parcel) -> str:
    kept = {
        name: value
        for name, value in parcel.origin.settings.items()
        if name in field_types(TrainConfig) and name not in _NOT_TOLD
    }
    config = TrainConfig(**kept)  # type: ignore[arg-type]
    began = Path(config.init_from).name if "/" in config.init_from else config.init_from
    return to_toml(replace(config, init_from=began), f"How {parcel.name} was trained.")


# --- the place ---


def place_problems(out: Path) -> list[str]:
    """Why nothing may be written there."""
    if not out.exists() and not out.is_symlink():
        problem = writable_problem(out, "--out")
        return [problem] if problem else []
    if not out.is_dir() or out.is_symlink():
        return [f"--out={out} is not a folder: choose another --out"]
    there = {path.name for path in out.iterdir()}
    if not there:
        return []
    written = _written(out)
    if written is None:
        return [f"--out={out} holds something that `glass export` did not write: choose another --out"]
    changed = sorted((there - written.keys() - {MARKER}) | _changed(out, written))
    if changed:
        shown = ", ".join(changed[:3])
        return [f"--out={out} was changed since it was written ({shown}): choose another --out"]
    return []


def _mark(work: Path, parcel: Parcel, to: str) -> None:
    update = "" if parcel.origin.iter is None else f"@{parcel.origin.iter}"
    content = {
        "written_by": f"glass export --to={to}",
        "glassgpt": VERSION,
        "model": f"{parcel.name}{update}",
        "sha256": {path.name: file_sha256(path) for path in sorted(work.iterdir())},
    }
    to_huggingface.write_json(work / MARKER, content | {"digest": json_sha256(content)})


def _written(out: Path) -> dict[str, str] | None:
    """What the marker says; None if there is none of ours."""
    try:
        return recorded_digests(out)
    except UserError:
        return None


def _changed(out: Path, written: dict[str, str]) -> set[str]:
    """Files that are not as they were written. One that is gone is no loss."""
    return {
        name
        for name, digest in written.items()
        if (out / name).exists() and not ((out / name).is_file() and file_sha256(out / name) == digest)
    }
