"""glass import nanogpt: converts nanoGPT's out_dir and its log to a GlassGPT run.

    glass import nanogpt out-shakespeare-char --log train.log

The ckpt.pt is read without executing anything in it (training/checkpoint/nanogpt_ckpt.py), the log as `glass
explain` reads it. The new run's folder appears complete or not at all. nanoGPT's folder is not changed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.config import Choice, is_dataset_folder
from glassgpt.data.dataset import Dataset, open_dataset
from glassgpt.data.tokenizers import dataset_tokenizer_digest, write_tokenizer
from glassgpt.errors import UserError, collect_problems, raise_if_any
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
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.train_state import TrainingProgress
from glassgpt.training.weight_source import vocab_size_matches

_MEASURED_ON = "random batches of nanoGPT's"  # so its losses are not compared with later evaluations
_LOGGED_LOSS_TOLERANCE = 6e-5  # a loss in a log has four decimals


@dataclass(frozen=True)
class ImportResult:
    run: NanogptRun
    update_count: int  # in the log
    evaluation_count: int
    left_out_count: int = 0  # updates in a very long log that the journal does not get


def import_run(out_dir: str, options: ImportOptions) -> ImportResult:
    path = expand_user_path(out_dir)
    if path.is_dir():
        path = path / NANOGPT_CKPT_FILE
    if not path.is_file():
        raise UserError(f"{out_dir} is not an out_dir of nanoGPT: there is no {NANOGPT_CKPT_FILE} in it")
    ckpt = read_nanogpt_ckpt(path)
    problems: list[str] = []
    run_log = _read_log(options.log, ckpt, problems) if options.log else None
    dataset = _find_dataset(ckpt, options.data_dir, problems)
    if options.out:
        out = expand_user_path(options.out)
    else:
        out = first_free_run_dir(RUNS_DIR / path.absolute().parent.name)
    try:
        check_out_dir_is_free(str(out))
    except UserError as error:
        problems += [problem.replace("--out_dir", "--out") for problem in error.problems]
    else:
        if out.is_dir() and any(out.iterdir()):
            problems.append(f"--out={out} is not empty: choose another --out")
        elif problem := writable_problem(out, "--out"):
            problems.append(problem)
    raise_if_any(problems)
    run = _describe_run(ckpt, out, run_log, dataset, options.log)
    with atomic_folder(out, "--out") as folder:
        _write_run(folder, run, ckpt)
        commit_folder(folder, out)
    if run_log is None:
        return ImportResult(run, 0, 0)
    return ImportResult(run, len(run_log.steps), len(run_log.evals), run_log.left_out.lines)


# --- reading nanoGPT's files ---


def _read_log(name: str, ckpt: LoadedCheckpoint, problems: list[str]) -> RunLog | None:
    """The log, if it is nanoGPT's and of the checkpoint's run; else the reason is appended to `problems`."""
    try:
        run_log = read_run_log(str(expand_user_path(name)) if name != "-" else name)
    except UserError as error:
        problems += error.problems
        return None
    if run_log.trainer.id != IMPORT_SOURCE:
        problems.append(f"--log={name} is a log of {run_log.trainer.name}, not of nanoGPT")
        return None
    logged = [evaluation.val_loss for evaluation in run_log.evals if evaluation.iteration == ckpt.iter]
    losses = [loss for loss in logged if loss is not None and math.isfinite(loss)]
    saved = ckpt.val_loss
    if saved is None or not math.isfinite(saved):
        return run_log
    if losses and all(abs(loss - saved) > _LOGGED_LOSS_TOLERANCE for loss in losses):
        problems.append(
            f"--log={name} is of another run: after {ckpt.iter} updates it has a validation loss of "
            f"{losses[-1]:.4f}, {ckpt.description} of {saved:.4f}"
        )
    return run_log


def _find_dataset(ckpt: LoadedCheckpoint, data_dir: str, problems: list[str]) -> Dataset | None:
    """The run's dataset, if found: in --data_dir, beside nanoGPT's folder, or in data/ here."""
    name = str(ckpt.settings.get("dataset", ""))
    folders = [ckpt.folder.absolute().parent / "data" / name, Path("data") / name] if name else []
    for folder in [expand_user_path(data_dir)] if data_dir else folders:
        if not data_dir and not is_dataset_folder(folder):
            continue
        with collect_problems(problems):
            dataset = open_dataset(folder)
            vocab_size = dataset.manifest.vocab_size
            if vocab_size_matches(ckpt, vocab_size):
                return dataset
            problems.append(
                f"{dataset.directory} has a vocabulary of {vocab_size}, {ckpt.description} of "
                f"{ckpt.model_config.vocab_size}: give its training data with --data_dir=FOLDER"
            )
        return None
    return None


# --- writing the run ---


def _describe_run(
    ckpt: LoadedCheckpoint, out: Path, run_log: RunLog | None, dataset: Dataset | None, log: str
) -> NanogptRun:
    """nanoGPT's settings, the model's shape from its weights, and what could not be imported."""
    names = ("n_layer", "n_head", "n_embd", "block_size", "dropout", "bias")
    settings: dict[str, Any] = dict(ckpt.settings) | {
        name: getattr(ckpt.model_config, name) for name in names
    }
    if dataset is not None and dataset.directory != Path("data") / str(settings.get("dataset")):
        settings["data_dir"] = str(dataset.directory)
    config = build_config(Recipe(ckpt.folder.name, "", settings), {})

    source = "its log" if run_log is not None else "its checkpoint alone: give its output with --log=FILE"
    choices = [Choice("imported", "nanoGPT", f"from {source}")]
    if not ckpt.settings:
        reason = "the checkpoint does not say how it was trained"
        choices.append(Choice("config", "defaults", reason, notable=True))
    if dataset is None:
        reason = "to sample or resume, prepare it or give its folder with --data_dir"
        choices.append(Choice("data", "not found", reason, notable=True))
    if run_log is not None:
        reason = "an evaluation is the excess of its iteration over a steady one, with saving"
        choices.append(Choice("times", "estimated", reason, notable=True))
        choices.append(Choice("lr", "estimated", "from the settings; nanoGPT does not print it"))

    newest = Path(ckpt.description) if log in ("", "-") else expand_user_path(log)
    return NanogptRun(
        run_dir=out,
        config=config,
        shape=ckpt.model_config,
        plan=plan_batch(config, "cpu", None)[0],
        dataset=dataset,
        run_log=run_log,
        choices=choices,
        saved_iter=ckpt.iter or 0,
        val_loss=ckpt.val_loss,
        ended_at=newest.stat().st_mtime,
    )


def _write_run(folder: Path, run: NanogptRun, ckpt: LoadedCheckpoint) -> None:
    run_dir = LockedRunDir(folder)
    try:
        run_dir.write_config(run.config)
    finally:
        run_dir.close()
    if run.dataset is not None:
        write_tokenizer(folder / TOKENIZER_DIR, run.dataset)
    updates, dataset = run.saved_iter, run.dataset
    val_loss = run.val_loss if run.val_loss is not None and math.isfinite(run.val_loss) else None
    progress = TrainingProgress(iter=updates, sequences=updates * run.plan.sequences, val_loss=val_loss)
    if val_loss is not None:
        progress.best_val_loss, progress.best_iter = val_loss, updates
    state = {  # as our own trainer would have saved it
        "iter": updates,
        "val_loss": val_loss,
        "progress": dataclasses.asdict(progress),
        "scaler": {},
        "model": dataclasses.asdict(run.shape),
        "config": dataclasses.asdict(run.config),
        "data_hash": "" if dataset is None else dataset.hash,
        "measured_on": _MEASURED_ON,
        "tokenizer": "" if dataset is None else dataset_tokenizer_digest(dataset),
    }
    saver = Saver(folder, keep=1)
    try:
        # lm_head.weight is tied to the embedding, which is saved once.
        weights = {name: tensor for name, tensor in ckpt.weights.items() if name != "lm_head.weight"}
        saver.save({"model": weights, "optimizer": ckpt.optimizer}, state)
        saver.poll(wait=True)
    finally:
        saver.close()
    written = Journal(folder / journal.FILE_NAME)
    try:
        for record in journal_records(run):
            written.write(journal.abbreviate_home_paths(record))
    finally:
        written.close()
