"""glass export: writes a model as a folder for other programs, checked before it appears.

    glass export runs/mine --to hf

The folder appears complete or not at all. An existing folder is replaced only if it is an unchanged export:
glassgpt.json in it has the SHA-256 of every file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from glassgpt.config import Choice, TrainConfig
from glassgpt.data.digests import EXPORT_RECORD_FILE, file_sha256, json_sha256, read_recorded_sha256
from glassgpt.data.nanogpt_bin import META_FILE
from glassgpt.errors import UserError, raise_if_any
from glassgpt.exchange import export_formats, logit_check
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.export_formats import ExportableModel, load_exportable_model
from glassgpt.exchange.logit_check import LogitCheck
from glassgpt.exchange.model_card import TRAINING_FILE, render_model_card
from glassgpt.files import atomic_folder, commit_folder, expand_user_path, writable_problem
from glassgpt.flags import known_settings
from glassgpt.format import format_count, pluralize
from glassgpt.recipe import to_toml
from glassgpt.version import VERSION

EXPORTS_DIR = Path("exports")
CARD_FILE = "README.md"
# Paths, and settings that depend on the machine of the training run.
_OMITTED_SETTINGS = (
    "out_dir", "data_dir", "device", "compile", "attention", "kernels", "graph", "eval_only", "wandb_log",
    "wandb_project", "wandb_run_name", "backend",
)  # fmt: skip


@dataclass(frozen=True)
class ExportResult:
    out_dir: Path
    model: ExportableModel
    notes: tuple[Choice, ...]  # what was changed to fit the format
    check: LogitCheck
    bytes_by_file: dict[str, int]


def export(source: str, options: ExportOptions) -> ExportResult:
    exportable = load_exportable_model(source, options.data_dir)
    problems = logit_check.non_finite_problems(exportable)
    problems += export_formats.nanogpt_problems(exportable) if options.to == "nanogpt" else []
    out = expand_user_path(options.out) if options.out else EXPORTS_DIR / f"{exportable.name}-{options.to}"
    problems += out_dir_problems(out)
    raise_if_any(problems)
    with atomic_folder(out, "--out") as folder:
        if options.to == "hf":
            export_formats.write_huggingface(folder, exportable)
            check = logit_check.check_huggingface(folder, exportable)
        elif options.to == "nanogpt":
            export_formats.write_nanogpt(folder, exportable)
            check = logit_check.check_nanogpt(folder, exportable)
        else:
            export_formats.write_glass(folder, exportable)
            check = logit_check.check_own_format(folder, exportable)
        (folder / CARD_FILE).write_text(render_model_card(exportable, options.to), encoding="utf-8")
        if exportable.origin.settings:
            (folder / TRAINING_FILE).write_text(_training_settings(exportable), encoding="utf-8")
        update = "" if exportable.origin.iter is None else f"@{exportable.origin.iter}"
        record = {  # by which a later export recognises an unchanged folder
            "written_by": f"glass export --to={options.to}",
            "glassgpt": VERSION,
            "model": f"{exportable.name}{update}",
            "sha256": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
        }
        export_formats.write_json(folder / EXPORT_RECORD_FILE, record | {"digest": json_sha256(record)})
        bytes_by_file = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        raise_if_any(out_dir_problems(out))  # again: another process may have written there meanwhile
        commit_folder(folder, out)
    return ExportResult(out, exportable, tuple(_notes(exportable, options.to)), check, bytes_by_file)


def _notes(exportable: ExportableModel, to: str) -> list[Choice]:
    """What a user should know about the exported model."""
    shape, tokenizer = exportable.shape, exportable.tokenizer
    notes = [Choice("tokenizer", tokenizer.name, pluralize(tokenizer.vocab_size, "token"))]
    if exportable.padding_rows:
        padded = shape.vocab_size + exportable.padding_rows
        reason = f"of {padded:,}: the other {exportable.padding_rows} were padding"
        notes.append(Choice("vocabulary", pluralize(shape.vocab_size, "row"), reason))
    if to == "nanogpt":
        if export_formats.adamw_state(exportable) is None:
            reason = (
                "not every parameter has an AdamW state: sample.py loads the model, train.py cannot resume it"
            )
            notes.append(Choice("optimizer", "omitted", reason))
        else:
            notes.append(Choice("optimizer", "AdamW", "included: nanoGPT's train.py can resume"))
        if exportable.shape.activation == "gelu_new":
            difference = logit_check.gelu_difference(exportable)
            reason = (
                f"nanoGPT has no other; this model was trained with GPT-2's tanh GELU, so its logits there "
                f"differ by up to {difference:.2g}, as those of GPT-2 itself do"
            )
            notes.append(Choice("activation", "exact GELU", reason))
        if export_formats.needs_meta(exportable.tokenizer):
            path = f"data/{export_formats.dataset_name(exportable)}/{META_FILE}"
            notes.append(
                Choice(META_FILE, "beside it", f"sample.py looks for it at {path} in nanoGPT's folder")
            )
            if exportable.tokenizer.name not in ("char", "ids"):
                reason = "sample.py reads a prompt character by character, not as this tokenizer does"
                notes.append(Choice("prompts", "approximate", reason))
    if to == "hf" and shape.arch == "gpt2" and not shape.bias:
        notes.append(Choice("biases", "zeros", "the model has none, and GPT-2's layout requires them"))
    if to == "hf" and shape.arch == "modern":
        reason = "its norms have no gains: ours are multiplied into the matrices that follow"
        notes.append(Choice("layout", "NanoChat", reason))
        if shape.tie_embeddings and not bool((exportable.weights["transformer.ln_f.weight"] == 1).all()):
            numbers = format_count(shape.vocab_size * shape.n_embd)
            reason = f"the embedding times the last norm's gain: {numbers} more parameters than in the run"
            notes.append(Choice("head", "separate", reason))
        if shape.dropout:
            reason = "NanoChat has no other dropout; it matters only for further training"
            notes.append(Choice("dropout", "in attention only", reason))
    return notes


def _training_settings(exportable: ExportableModel) -> str:
    """training.toml: the settings of the run that do not depend on its machine."""
    values = {
        name: value
        for name, value in known_settings(exportable.origin.settings).items()
        if name not in _OMITTED_SETTINGS
    }
    config = TrainConfig(**values)
    init_from = Path(config.init_from).name if "/" in config.init_from else config.init_from
    return to_toml(replace(config, init_from=init_from), f"How {exportable.name} was trained.")


def out_dir_problems(out: Path) -> list[str]:
    """Why `out` must not be written or replaced."""
    if not out.exists() and not out.is_symlink():
        problem = writable_problem(out, "--out")
        return [problem] if problem else []
    if not out.is_dir() or out.is_symlink():
        return [f"--out={out} is not a folder: choose another --out"]
    names = {path.name for path in out.iterdir()}
    if not names:
        return []
    try:
        recorded = read_recorded_sha256(out)
    except UserError:
        recorded = None
    if recorded is None:
        return [f"--out={out} contains files that `glass export` did not write: choose another --out"]
    changed = names - recorded.keys() - {EXPORT_RECORD_FILE}
    for name, digest in recorded.items():  # a missing file may be written again
        path = out / name
        if path.exists() and not (path.is_file() and file_sha256(path) == digest):
            changed.add(name)
    if changed:
        shown = ", ".join(sorted(changed)[:3])
        return [f"--out={out} was changed since it was written ({shown}): choose another --out"]
    return []
