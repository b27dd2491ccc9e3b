"""glass export: a model as a folder for other programs, written whole or not at all, and checked first.

A folder that exists is replaced only if it is an export that nobody has touched: glassgpt.json in it names
every file and its SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from glassgpt import format
from glassgpt.config import Choice, TrainConfig
from glassgpt.data.digests import EXPORT_RECORD_FILE, file_sha256, json_sha256, read_recorded_sha256
from glassgpt.data.nanogpt_bin import META_FILE
from glassgpt.errors import UserError
from glassgpt.exchange import glass_folder, proof, to_huggingface, to_nanogpt
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.exportable import ExportableModel, load_exportable_model
from glassgpt.exchange.model_card import TRAINING_FILE, render_model_card
from glassgpt.exchange.proof import LogitCheck
from glassgpt.files import atomic_folder, commit_folder, expand_user_path, writable_problem
from glassgpt.flags import field_types
from glassgpt.recipe import to_toml
from glassgpt.version import VERSION

EXPORTS_DIR = Path("exports")
CARD_FILE = "README.md"
# Decided for the machine it was trained on, or a place there.
_OMITTED_SETTINGS = (
    "out_dir", "data_dir", "device", "compile", "attention", "kernels", "graph", "eval_only", "wandb_log",
    "wandb_project", "wandb_run_name", "backend",
)  # fmt: skip


@dataclass(frozen=True)
class ExportResult:
    out_dir: Path
    model: ExportableModel
    notes: tuple[Choice, ...]  # what was done to the model to fit the layout
    check: LogitCheck
    bytes_by_file: dict[str, int]  # bytes by name


def export(source: str, options: ExportOptions) -> ExportResult:
    parcel = load_exportable_model(source, options.data_dir)
    problems = proof.non_finite_problems(parcel)
    problems += to_nanogpt.problems(parcel) if options.to == "nanogpt" else []
    out = expand_user_path(options.out) if options.out else EXPORTS_DIR / f"{parcel.name}-{options.to}"
    problems += out_dir_problems(out)
    if problems:
        raise UserError(problems)
    with atomic_folder(out, "--out") as work:
        found = _write(work, parcel, options.to)
        (work / CARD_FILE).write_text(render_model_card(parcel, options.to), encoding="utf-8")
        if parcel.origin.settings:
            (work / TRAINING_FILE).write_text(_training_settings(parcel), encoding="utf-8")
        _mark(work, parcel, options.to)
        files = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
        problems = out_dir_problems(out)  # somebody else may have been faster
        if problems:
            raise UserError(problems)
        commit_folder(work, out)
    return ExportResult(out, parcel, tuple(_notes(parcel, options.to)), found, files)


def _write(work: Path, parcel: ExportableModel, to: str) -> LogitCheck:
    if to == "hf":
        to_huggingface.write(work, parcel)
        return proof.check_hf(work, parcel)
    if to == "nanogpt":
        to_nanogpt.write(work, parcel)
        return proof.check_nanogpt(work, parcel)
    glass_folder.write(work, parcel)
    return proof.check_own_format(work, parcel)


def _notes(parcel: ExportableModel, to: str) -> list[Choice]:
    shape, tokenizer = parcel.shape, parcel.tokenizer
    notes = [Choice("tokenizer", tokenizer.name, format.pluralize(tokenizer.vocab_size, "token"))]
    if parcel.padding_rows:
        had = shape.vocab_size + parcel.padding_rows
        reason = f"of {had:,}: the other {parcel.padding_rows} were padding and stand for no token"
        notes.append(Choice("vocabulary", format.pluralize(shape.vocab_size, "row"), reason))
    if to == "hf" and shape.arch == "modern":
        notes += _nanochat_notes(parcel)
    elif to == "hf" and not shape.bias:
        notes.append(Choice("biases", "zeros", "the model has none, and GPT-2's layout wants them"))
    return notes + (_nanogpt_notes(parcel) if to == "nanogpt" else [])


def _nanochat_notes(parcel: ExportableModel) -> list[Choice]:
    shape = parcel.shape
    notes = [Choice("layout", "NanoChat", "its norms have no gains: they are in the matrices that follow")]
    if shape.tie_embeddings and not bool((parcel.weights["transformer.ln_f.weight"] == 1).all()):
        numbers = format.format_count(shape.vocab_size * shape.n_embd)
        reason = f"the embedding times the last norm's gain: {numbers} numbers more than in the run"
        notes.append(Choice("head", "separate", reason))
    if shape.dropout:
        reason = "NanoChat has no dropout elsewhere; it matters only if training continues there"
        notes.append(Choice("dropout", "in attention only", reason))
    return notes


def _nanogpt_notes(parcel: ExportableModel) -> list[Choice]:
    notes = []
    if to_nanogpt.adamw_state(parcel) is None:
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
        place = f"data/{to_nanogpt.dataset_name(parcel)}/{META_FILE}"
        notes.append(Choice(META_FILE, "beside it", f"sample.py looks for it at {place} in nanoGPT's folder"))
        if parcel.tokenizer.name not in ("char", "ids"):
            reason = "sample.py reads a prompt character by character, not as this tokenizer does"
            notes.append(Choice("prompts", "approximate", reason))
    return notes


def _training_settings(parcel: ExportableModel) -> str:
    kept = {
        name: value
        for name, value in parcel.origin.settings.items()
        if name in field_types(TrainConfig) and name not in _OMITTED_SETTINGS
    }
    config = TrainConfig(**kept)  # type: ignore[arg-type]
    began = Path(config.init_from).name if "/" in config.init_from else config.init_from
    return to_toml(replace(config, init_from=began), f"How {parcel.name} was trained.")


# --- the place ---


def out_dir_problems(out: Path) -> list[str]:
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
    changed = sorted((there - written.keys() - {EXPORT_RECORD_FILE}) | _changed(out, written))
    if changed:
        shown = ", ".join(changed[:3])
        return [f"--out={out} was changed since it was written ({shown}): choose another --out"]
    return []


def _mark(work: Path, parcel: ExportableModel, to: str) -> None:
    update = "" if parcel.origin.iter is None else f"@{parcel.origin.iter}"
    content = {
        "written_by": f"glass export --to={to}",
        "glassgpt": VERSION,
        "model": f"{parcel.name}{update}",
        "sha256": {path.name: file_sha256(path) for path in sorted(work.iterdir())},
    }
    to_huggingface.write_json(work / EXPORT_RECORD_FILE, content | {"digest": json_sha256(content)})


def _written(out: Path) -> dict[str, str] | None:
    """What the marker says; None if there is none of ours."""
    try:
        return read_recorded_sha256(out)
    except UserError:
        return None


def _changed(out: Path, written: dict[str, str]) -> set[str]:
    """Files that are not as they were written. One that is gone is no loss."""
    return {
        name
        for name, digest in written.items()
        if (out / name).exists() and not ((out / name).is_file() and file_sha256(out / name) == digest)
    }
