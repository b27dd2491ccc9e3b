"""Everything a run needs, set up in the order it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassgpt import schedule
from glassgpt.config import Choice, TrainConfig, dataset_folder, profile_window, requested_trackers
from glassgpt.data.batches import DocumentWindows
from glassgpt.data.dataset import Dataset, open_dataset, verify
from glassgpt.data.shards import TokenArray
from glassgpt.data.token_classes import token_classes
from glassgpt.data.tokenizers import (
    IdsTokenizer,
    Tokenizer,
    dataset_tokenizer,
    dataset_tokenizer_digest,
    end_of_text_id,
)
from glassgpt.errors import UserError, raise_if_any
from glassgpt.estimate import flops
from glassgpt.estimate.batching import eval_batch_rows, tokens_to_evaluate
from glassgpt.estimate.decide import model_vocab_size
from glassgpt.estimate.forecast import TokenCounts, forecast_workload
from glassgpt.estimate.local_history import read_rows, speed_from_history
from glassgpt.estimate.loss_law import expected_loss_curve
from glassgpt.estimate.step_timing import LogInterval
from glassgpt.estimate.training_workload import WEIGHT_BYTES
from glassgpt.format import format_percent
from glassgpt.model.gpt import GPT, make_gpt_config
from glassgpt.record import journal
from glassgpt.record.ledger import Ledger
from glassgpt.record.machine import usable_memory
from glassgpt.record.run_dir import LockedRunDir, RunDirInfo, make_run_dir
from glassgpt.record.sink import Listener, NullSink, Sink, Trackers
from glassgpt.training import probe
from glassgpt.training.checkpoint.saver import NoSaver, Saver
from glassgpt.training.compute_plan import plan_compute
from glassgpt.training.device import ExecutionConfig, choose_device, configure_model
from glassgpt.training.distributed.fsdp import shard
from glassgpt.training.distributed.process_group import ALONE, ProcessGroup
from glassgpt.training.evaluate import EvalWindows
from glassgpt.training.forecast_check import ForecastCheck
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.loss_parts import LossParts
from glassgpt.training.out_of_memory import check_memory
from glassgpt.training.profiler import UpdateProfiler
from glassgpt.training.run_request import RunRequest
from glassgpt.training.train_state import Sampling, TrainSetup, TrainState
from glassgpt.training.weight_compatibility import check_compatible, check_updates_left, choose_init_state

# Larger weights are drawn only once it is clear that the run fits into memory.
_MAX_EARLY_WEIGHTS_SHARE = 0.1  # of main memory
_MAX_VERIFIED_TOKENS = 50_000_000  # larger datasets are not read through at every start


def set_up(
    request: RunRequest,
    listeners: Sequence[Listener],
    ledger: Ledger,
    signals: StopSignals,
    group: ProcessGroup = ALONE,
    trackers: Trackers | None = None,
) -> tuple[TrainSetup, TrainState]:
    """Opens the data, makes the open decisions, builds the model; then makes or locks the run's folder."""
    config = request.config
    tracker_names = requested_trackers(config)
    if tracker_names and trackers is None:
        raise UserError(f"--track={config.track}: train() of glassgpt opens trackers, and not this function")
    if trackers is not None and group.is_rank_zero:
        trackers.check_installed(tracker_names)

    # Data, and every decision that the settings leave open.
    dataset, splits = _open_splits(config)
    restores_training_state, init_choices = _check_and_choose_init_state(request, dataset)
    get_model = _start_drawing_weights(request, dataset)
    compute, compute_choices = plan_compute(request, dataset, group)
    sampling, sample_choices = _choose_sampling(config, dataset, group)
    document_windows, document_choices = _choose_document_windows(config, dataset, splits["train"])
    execution, batch_plan, device = compute.execution, compute.spec.batch, compute.device
    eval_tokens = tokens_to_evaluate(config, batch_plan, len(splits["val"]))

    # What to expect. A run that cannot fit into memory ends here.
    if config.history == "on":
        rows, workload = read_rows(), compute.spec.workload
        threads = torch.get_num_threads() if device.type == "cpu" else None
        known = speed_from_history(
            rows, compute.machine_name, workload, compute.flops_per_token, compute.hardware.card, threads
        )
        compute = replace(compute, hardware=replace(compute.hardware, measured=known))
    token_counts = TokenCounts(batch_plan.tokens, eval_tokens, len(splits["val"]))
    forecast = forecast_workload(
        compute.spec.workload, compute.flops_per_token, compute.hardware, token_counts
    )
    check_memory(config, compute, forecast.memory)

    # Model, batches, optimizer.
    if compute.kernel_build is not None:
        compute.kernel_build.wait_until_recorded()
    memory_before_bytes = probe.reset_memory_peak(str(device))
    torch.manual_seed(config.seed)
    model = _build_model(get_model(), config, execution, group)
    loader = BatchLoader(
        splits["train"],
        config.block_size,
        batch_plan,
        config.seed,
        device,
        execution.data_on_card,
        document_windows,
    )
    learner = Learner(model, config, execution, batch_plan, loader, ledger, group, compute.kernel_build)
    expected_curve = None
    if config.init_from == "scratch":
        target_tokens = round(batch_plan.tokens * loader.target_share)
        vocab_size = compute.model_config.vocab_size
        expected_curve = expected_loss_curve(config, vocab_size, target_tokens, dataset.manifest.info())

    choices = _collect_choices(
        request,
        init_choices + compute_choices,
        sample_choices + document_choices,
        eval_tokens,
        len(splits["val"]),
    )

    # The run's folder, and what is written to it.
    signals.is_graceful = True  # from here on there is something to save
    with ExitStack() as undo:
        run_dir = _open_run_dir(request, group)
        undo.callback(run_dir.close)  # its lock, if one of the following fails
        tokenizer_digest = dataset_tokenizer_digest(dataset)
        eval_rows = eval_batch_rows(config, device.type)
        eval_windows = {
            split: EvalWindows(tokens, config.block_size, eval_tokens, eval_rows, device, group)
            for split, tokens in splits.items()
        }
        tokenizer = _shared_tokenizer(dataset, group, sampling)
        loss_parts = LossParts(token_classes(tokenizer, splits["train"]), config.block_size, device)
        passage = eval_windows["val"].choose_passage(tokenizer)
        profiler = UpdateProfiler(profile_window(config), run_dir.directory, device, group.is_rank_zero)
        sink, saver = _open_outputs(run_dir, config, group, execution.shard, listeners, trackers)
        forecast_check = ForecastCheck(forecast, expected_curve, memory_before_bytes=memory_before_bytes)
        undo.pop_all()
    setup = TrainSetup(
        config=config,
        choices=choices,
        restores_training_state=restores_training_state,
        process_group=group,
        compute_plan=compute,
        dataset=dataset,
        tokenizer_digest=tokenizer_digest,
        splits=splits,
        loader=loader,
        learner=learner,
        eval_tokens=eval_tokens,
        eval_windows=eval_windows,
        loss_parts=loss_parts,
        passage=passage,
        sampling=sampling,
        profiler=profiler,
        run_dir_handle=run_dir,
        sink=sink,
        saver=saver,
        ledger=ledger,
    )
    return setup, TrainState(signals, LogInterval(ledger), forecast_check)


# --- data ---


def _open_splits(config: TrainConfig) -> tuple[Dataset, dict[str, TokenArray]]:
    dataset = open_dataset(dataset_folder(config))
    # Without a manifest file, as in nanoGPT's folders, the manifest was derived from the files just now.
    if dataset.has_manifest_file and sum(dataset.manifest.tokens.values()) < _MAX_VERIFIED_TOKENS:
        verify(dataset)
    splits: dict[str, TokenArray] = {split: dataset.tokens(split) for split in ("train", "val")}
    problems, val_tokens = too_few_tokens(config, len(splits["train"])), len(splits["val"])
    if val_tokens < 2:
        problems.append(
            f"the validation split has {val_tokens} tokens, too few to evaluate; prepare more text"
        )
    raise_if_any(problems)
    return dataset, splits


def too_few_tokens(config: TrainConfig, train_tokens: int) -> list[str]:
    if train_tokens >= config.block_size + 1:
        return []
    return [
        f"the training split has {train_tokens} tokens, fewer than --block_size={config.block_size} + 1; "
        "prepare more text or lower --block_size"
    ]


def _choose_document_windows(
    config: TrainConfig, dataset: Dataset, tokens: TokenArray
) -> tuple[DocumentWindows | None, list[Choice]]:
    if config.documents == "joined":
        return None, []
    separator = end_of_text_id(dataset)
    if separator is None:
        raise UserError(
            f"--documents=apart must see where documents end, and {dataset.manifest.tokenizer} has no token "
            "for that; prepare the dataset with --tokenizer=gpt2 or bpe:N, or leave it out"
        )
    windows = DocumentWindows(tokens, separator, config.block_size)
    filled = format_percent(windows.filled_fraction)
    reason = f"{len(windows):,} sequences of one document each, {filled} full"
    return windows, [Choice("documents", "apart", reason)]


def _shared_tokenizer(dataset: Dataset, group: ProcessGroup, sampling: Sampling | None) -> Tokenizer:
    """The same on all ranks. Where one lacks the tokenizer's table, all do without it. Collective.

    `sampling`: has the tokenizer already, on the rank that samples."""
    tokenizer: Tokenizer | None = None if sampling is None else sampling.tokenizer
    if tokenizer is None:
        with contextlib.suppress(UserError):  # nanoGPT's folders do not have GPT-2's table
            tokenizer = dataset_tokenizer(dataset)
    have_it = int(group.all_reduce_sum(np.array([tokenizer is not None], dtype=np.int64))[0])
    if tokenizer is None or have_it < group.world_size:
        tokenizer = IdsTokenizer(dataset.manifest.vocab_size)
    return tokenizer


def _choose_sampling(
    config: TrainConfig, dataset: Dataset, group: ProcessGroup
) -> tuple[Sampling | None, list[Choice]]:
    """Whether there is a sample at the end, and its prompt. Rank 0 decides and samples: another machine may
    not have the tokenizer's table. A preset's prompt may have characters that the dataset does not have."""
    sampling: Sampling | None = None
    choices: list[Choice] = []
    if group.is_rank_zero and config.sample_tokens:
        try:
            tokenizer = dataset_tokenizer(dataset)
            sampling = Sampling(tokenizer, [])
            if config.sample_start:
                start = tokenizer.encode(config.sample_start).tolist()
                sampling = Sampling(tokenizer, start)
                choices = [Choice("sample_start", config.sample_start, "as set")]
        except UserError as error:
            if sampling is None:  # nanoGPT's folders do not have GPT-2's table
                choices = [Choice("sample_tokens", 0, f"no sample: {error}", notable=True)]
            else:
                reason = f"not {config.sample_start!r}: {error}"
                choices = [Choice("sample_start", "", reason, notable=True)]
    if not group.broadcast_from_rank_zero(lambda: sampling is not None):
        return None, choices
    return sampling or Sampling(None, []), choices


# --- model ---


def _check_and_choose_init_state(request: RunRequest, dataset: Dataset) -> tuple[bool, list[Choice]]:
    """Whether to restore the training state too, not only weights. Raises if the weights cannot be used."""
    config, loaded = request.config, request.init_checkpoint
    if loaded is None:
        return False, []
    if request.own_checkpoint is not None:  # checked once the folder is locked, and the tensors are read
        return True, []
    check_compatible(config, dataset, loaded)
    is_same_run = loaded.folder == request.resume_dir
    restores_training_state, choice = choose_init_state(config, dataset, loaded, is_same_run)
    if restores_training_state:
        check_updates_left(config, loaded.iter or 0)
    return restores_training_state, [choice]


def _start_drawing_weights(request: RunRequest, dataset: Dataset) -> Callable[[], GPT]:
    """Returns what gives the model. It is made on the CPU, so that every device starts from the same weights;
    if the run is on another device, in a thread, while that one is prepared."""
    config, initial = request.config, request.init_checkpoint
    origin = None if initial is None else initial.model_config.vocab_size
    model_config = make_gpt_config(config, model_vocab_size(dataset.manifest.vocab_size, origin))
    generator = torch.Generator().manual_seed(config.seed)
    draw = partial(GPT, model_config, empty=initial is not None, generator=generator)
    weight_bytes = WEIGHT_BYTES * flops.model_parameters(config, model_config.vocab_size)
    is_small = weight_bytes < _MAX_EARLY_WEIGHTS_SHARE * usable_memory()[0]
    if choose_device(config.device)[0].type == "cpu" or not is_small:
        return draw
    pool = ThreadPoolExecutor(1, "weights")
    model = pool.submit(draw)
    pool.shutdown(wait=False)
    return model.result


def _build_model(model: GPT, config: TrainConfig, execution: ExecutionConfig, group: ProcessGroup) -> GPT:
    configure_model(model, execution, config.activation_checkpointing)
    if execution.shard:  # block by block: the whole model need not fit
        shard(model, execution.device, group.world_size)
    return model.to(execution.device)


def _collect_choices(
    request: RunRequest,
    init_and_compute: Sequence[Choice],
    sample_and_documents: Sequence[Choice],
    eval_tokens: int,
    val_tokens: int,
) -> list[Choice]:
    """All decisions about the run, in the order in which the journal and the console list them."""
    config, choices = request.config, list(request.choices)
    if config.embedding_lr is not None and (config.optimizer != "muon" or config.tie_embeddings):
        reason = "not used: only muon with tie_embeddings=False has its own rate for the embedding"
        choices.append(Choice("embedding_lr", config.embedding_lr, reason, notable=True))
    choices += init_and_compute
    if config.optimizer == "muon":
        rates = f"matrices of the blocks at {config.matrix_lr:g}"
        rates += f"; AdamW for the rest at {config.learning_rate:g}"
        if config.embedding_lr is not None and not config.tie_embeddings:
            rates += f", embedding at {config.embedding_lr:g}"
        choices.append(Choice("optimizer", "muon", rates))
    curve = config.schedule if config.decay_lr else "constant"
    choices.append(Choice("schedule", curve, schedule.describe_schedule(config)))
    choices += sample_and_documents
    if eval_tokens >= val_tokens - 1:
        return [*choices, Choice("eval_tokens", val_tokens - 1, "the whole validation split, every time")]
    reason = f"of {val_tokens:,}, evenly spaced, always the same"
    reason += "; all at the end" if config.closing_eval else ""
    return [*choices, Choice("eval_tokens", eval_tokens, reason)]


# --- output ---


def _open_run_dir(request: RunRequest, group: ProcessGroup) -> LockedRunDir | RunDirInfo:
    """The run's folder. Rank 0 makes and locks it, and broadcasts where it is."""
    locked: list[LockedRunDir] = []

    def lock() -> list[Any]:
        run_dir = LockedRunDir(request.resume_dir or make_run_dir(request.config.out_dir, request.name))
        locked.append(run_dir)
        return [str(run_dir.directory), run_dir.process_number, run_dir.start_id, run_dir.was_finished]

    directory, process_number, start_id, was_finished = group.broadcast_from_rank_zero(lock)
    return locked[0] if locked else RunDirInfo(Path(directory), process_number, start_id, was_finished)


def _open_outputs(
    run_dir: LockedRunDir | RunDirInfo,
    config: TrainConfig,
    group: ProcessGroup,
    is_sharded: bool,
    listeners: Sequence[Listener],
    trackers: Trackers | None,
) -> tuple[Sink | NullSink, Saver | NoSaver]:
    """Rank 0 writes the journal and the checkpoints. Of a sharded model every rank saves its shard."""
    directory, keep = run_dir.directory, config.keep_checkpoints
    sink: Sink | NullSink = NullSink()
    if group.is_rank_zero:
        feeds = trackers.make_feeds(config, directory) if trackers else {}
        path = directory / journal.FILE_NAME
        sink = Sink(path, run_dir.process_number, listeners, feeds, run_dir.start_id)
    if is_sharded:
        if not directory.is_dir():
            raise UserError(f"--shard needs a folder that every machine sees, and {directory} is not one")
        return sink, Saver(directory, keep, group)
    return sink, Saver(directory, keep) if group.is_rank_zero else NoSaver()
