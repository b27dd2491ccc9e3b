"""glass import nanogpt: nanoGPT's out_dir and what it printed, as a run of ours.

The ckpt.pt is read without executing anything in it (training/checkpoint/nanogpt_ckpt.py), the log as
`glass explain` reads it. The run's folder appears whole or not at all, and the folder it
came from is left as it was.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.config import Choice, TrainConfig
from glassgpt.data.dataset import Dataset, open_dataset
from glassgpt.data.manifest import MANIFEST_FILE
from glassgpt.data.tokenizers import dataset_tokenizer_digest, write_tokenizer
from glassgpt.errors import UserError
from glassgpt.estimate.batching import plan_batch
from glassgpt.exchange.exchange_options import ImportOptions
from glassgpt.exchange.nanogpt_journal import IMPORT_SOURCE, NanogptRun, journal_records
from glassgpt.files import atomic_folder, commit_folder, expand_user_path, writable_problem
from glassgpt.recipe import Recipe, build_config
from glassgpt.record import journal
from glassgpt.record.journal import Journal
from glassgpt.record.run_dir import (
    NANOGPT_CKPT_FILE,
    RUNS_DIR,
    TOKENIZER_DIR,
    LockedRunDir,
    check_out_dir_is_free,
    first_free_run_dir,
)
from glassgpt.runs.open import read_run_log
from glassgpt.runs.run_log import RunLog
from glassgpt.training.checkpoint.nanogpt_ckpt import NanoGPTCheckpoint, read_nanogpt_ckpt
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.job import TrainingProgress
from glassgpt.training.weight_source import from_nanogpt_ckpt, vocab_size_matches

_MEASURED_ON = "random batches of nanoGPT's"  # so no later evaluation compares with its losses
_LOGGED_LOSS_TOLERANCE = 6e-5  # a loss in a log has four decimals


@dataclass(frozen=True)
class ImportResult:
    run: NanogptRun
    update_count: int  # in the log
    evaluation_count: int


def import_run(out_dir: str, options: ImportOptions) -> ImportResult:
    path = _find_ckpt(out_dir)
    ckpt = read_nanogpt_ckpt(path)
    problems: list[str] = []
    history = _read_log(options.log, ckpt, problems)
    dataset = _find_dataset(ckpt, options.data_dir, problems)
    out = (
        expand_user_path(options.out)
        if options.out
        else first_free_run_dir(RUNS_DIR / path.absolute().parent.name)
    )
    problems += _place_problems(out)
    if problems:
        raise UserError(problems)
    told = _describe_run(ckpt, out, history, dataset, options.log)
    with atomic_folder(out, "--out") as work:
        _write_run(work, told, ckpt)
        commit_folder(work, out)
    if history is None:
        return ImportResult(told, 0, 0)
    return ImportResult(told, len(history.steps), len(history.evals))


# --- what there is ---


def _find_ckpt(out_dir: str) -> Path:
    path = expand_user_path(out_dir)
    if path.is_dir():
        path = path / NANOGPT_CKPT_FILE
    if not path.is_file():
        raise UserError(f"{out_dir} is no out_dir of nanoGPT's: there is no {NANOGPT_CKPT_FILE} in it")
    return path


def _read_log(name: str, ckpt: NanoGPTCheckpoint, problems: list[str]) -> RunLog | None:
    if not name:
        return None
    try:
        history = read_run_log(str(expand_user_path(name)) if name != "-" else name)
    except UserError as error:
        problems += error.problems
        return None
    if history.trainer.id != IMPORT_SOURCE:
        problems.append(f"--log={name} is a log of {history.trainer.name}, not of nanoGPT")
        return None
    problem = _log_mismatch(name, history, ckpt)
    problems += [problem] if problem else []
    return history


def _log_mismatch(name: str, history: RunLog, ckpt: NanoGPTCheckpoint) -> str | None:
    """A log of another run would tell another story of these weights."""
    here = [
        done.val_loss for done in history.evals if done.iteration == ckpt.iter and done.val_loss is not None
    ]
    said, best = [loss for loss in here if math.isfinite(loss)], ckpt.best_val_loss
    if (
        said
        and best is not None
        and math.isfinite(best)
        and all(abs(loss - best) > _LOGGED_LOSS_TOLERANCE for loss in said)
    ):
        return (
            f"--log={name} is of another run: after {ckpt.iter} updates it has a validation loss of "
            f"{said[-1]:.4f}, {ckpt.path} of {best:.4f}"
        )
    return None


def _find_dataset(ckpt: NanoGPTCheckpoint, data_dir: str, problems: list[str]) -> Dataset | None:
    """The run's data, where there is any: by flag, beside nanoGPT's folder, or here."""
    name = str(ckpt.settings.get("dataset", ""))
    folders = [ckpt.path.absolute().parent.parent / "data" / name, Path("data") / name] if name else []
    for folder in [expand_user_path(data_dir)] if data_dir else folders:
        if data_dir or any((folder / file).exists() for file in (MANIFEST_FILE, "train.bin")):
            try:
                return _fitting(open_dataset(folder), ckpt)
            except UserError as error:
                problems += error.problems
                return None
    return None


def _fitting(dataset: Dataset, ckpt: NanoGPTCheckpoint) -> Dataset:
    vocabulary = dataset.manifest.vocab_size
    if not vocab_size_matches(from_nanogpt_ckpt(ckpt.path), vocabulary):
        raise UserError(
            f"{dataset.directory} has a vocabulary of {vocabulary}, {ckpt.path} of {ckpt.model_config.vocab_size}: "
            "give the folder it was trained on by --data_dir=FOLDER"
        )
    return dataset


def _place_problems(out: Path) -> list[str]:
    try:
        check_out_dir_is_free(str(out))
    except UserError as error:
        return [problem.replace("--out_dir", "--out") for problem in error.problems]
    if out.is_dir() and any(out.iterdir()):
        return [f"--out={out} is not empty: choose another --out"]
    problem = writable_problem(out, "--out")
    return [problem] if problem else []


# --- what becomes of it ---


def _describe_run(
    ckpt: NanoGPTCheckpoint, out: Path, history: RunLog | None, dataset: Dataset | None, log: str
) -> NanogptRun:
    config = _config(ckpt, dataset)
    plan, _ = plan_batch(config, "cpu", None)
    written = ckpt.path if log in ("", "-") else expand_user_path(log)
    return NanogptRun(
        run_dir=out,
        config=config,
        shape=ckpt.model_config,
        plan=plan,
        dataset=dataset,
        history=history,
        choices=_choices(ckpt, history, dataset),
        saved_iter=ckpt.iter,
        val_loss=ckpt.best_val_loss,
        ended_at=written.stat().st_mtime,
    )


def _config(ckpt: NanoGPTCheckpoint, dataset: Dataset | None) -> TrainConfig:
    """nanoGPT's settings, and the model as its weights have it."""
    names = ("n_layer", "n_head", "n_embd", "block_size", "dropout", "bias")
    settings: dict[str, Any] = dict(ckpt.settings) | {
        name: getattr(ckpt.model_config, name) for name in names
    }
    if dataset is not None and dataset.directory != Path("data") / str(settings.get("dataset")):
        settings["data_dir"] = str(dataset.directory)
    return build_config(Recipe(ckpt.path.parent.name, "", settings), {})


def _choices(ckpt: NanoGPTCheckpoint, history: RunLog | None, dataset: Dataset | None) -> list[Choice]:
    where = "its log" if history is not None else "its checkpoint alone: give its output by --log=FILE"
    choices = [Choice("imported", "nanoGPT", f"from {where}")]
    if not ckpt.settings:
        choices.append(Choice("config", "defaults", "the checkpoint does not say how it was trained"))
    if dataset is None:
        reason = "to sample or resume, prepare it or give its folder by --data_dir"
        choices.append(Choice("data", "not found", reason))
    if history is not None:
        reason = "an evaluation took what its iteration took beyond a usual one; saving is in it"
        choices.append(Choice("times", "worked out", reason))
        choices.append(Choice("lr", "worked out", "from the settings; nanoGPT does not print it"))
    return choices


def _write_run(work: Path, told: NanogptRun, ckpt: NanoGPTCheckpoint) -> None:
    place = LockedRunDir(work)
    try:
        place.write_config(told.config)
    finally:
        place.close()
    if told.dataset is not None:
        write_tokenizer(work / TOKENIZER_DIR, told.dataset)
    saver = Saver(work, keep=1)
    try:
        head = {"lm_head.weight"}  # which is the embedding, and is saved once
        weights = {name: tensor for name, tensor in ckpt.weights.items() if name not in head}
        saver.save({"model": weights, "optimizer": ckpt.optimizer}, _state(told))
        saver.poll(wait=True)
    finally:
        saver.close()
    record = Journal(work / journal.FILE_NAME)
    try:
        for line in journal_records(told):
            record.write(journal.abbreviate_home_paths(line))
    finally:
        record.close()


def _state(told: NanogptRun) -> dict[str, Any]:
    done, data = told.saved_iter, told.dataset
    loss = told.val_loss if told.val_loss is not None and math.isfinite(told.val_loss) else None
    progress = TrainingProgress(iter=done, sequences=done * told.plan.sequences, val_loss=loss)
    if loss is not None:
        progress.best_val_loss, progress.best_iter = loss, done
    return {
        "iter": done,
        "val_loss": loss,
        "progress": dataclasses.asdict(progress),
        "scaler": {},
        "model": dataclasses.asdict(told.shape),
        "config": dataclasses.asdict(told.config),
        "data_hash": "" if data is None else data.hash,
        "measured_on": _MEASURED_ON,
        "tokenizer": "" if data is None else dataset_tokenizer_digest(data),
    }
