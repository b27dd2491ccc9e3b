"""Everything a run needs, set up in the order it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from glassgpt import config as settings
from glassgpt import schedule
from glassgpt.config import Choice, TrainConfig
from glassgpt.data.dataset import Dataset, open_dataset, verify
from glassgpt.data.document_windows import DocumentWindows
from glassgpt.data.shards import TokenArray
from glassgpt.data.tokenizers import dataset_tokenizer, dataset_tokenizer_digest, end_of_text_id
from glassgpt.errors import UserError
from glassgpt.estimate.batching import eval_batch_rows, tokens_to_evaluate
from glassgpt.estimate.forecast import TokenCounts
from glassgpt.estimate.meter import LogInterval
from glassgpt.format import format_percent
from glassgpt.model.gpt import GPT
from glassgpt.record import journal
from glassgpt.record.clock import Ledger
from glassgpt.record.run_dir import LockedRunDir, RunDirInfo, make_run_dir
from glassgpt.record.sink import Listener, NullSink, Sink, Trackers
from glassgpt.training import probe
from glassgpt.training.checkpoint.saver import NoSaver, Saver
from glassgpt.training.device import configure_model
from glassgpt.training.distributed.fsdp import shard
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.evaluate import EvalWindows
from glassgpt.training.forecast_check import ForecastCheck
from glassgpt.training.init_weights import check_compatible, check_updates_left, choose_init_state
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.job import Job, Sampling, TrainingProgress
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.optimizers import describe_rates
from glassgpt.training.out_of_memory import check_memory
from glassgpt.training.profiler import UpdateProfiler
from glassgpt.training.run_choices import ComputePlan, plan_compute
from glassgpt.training.run_forecast import expected_loss_curve, forecast_run
from glassgpt.training.task import RunRequest

_MAX_VERIFIED_TOKENS = 50_000_000  # larger datasets are not read through at every start


def set_up(
    task: RunRequest,
    listeners: Sequence[Listener],
    ledger: Ledger,
    stop: StopSignals,
    team: ProcessGroup | None = None,
    trackers: Trackers | None = None,
) -> Job:
    """Reads the data, decides what is open, builds the model; makes the run's folder if all is well."""
    team = team or ProcessGroup()
    config = task.config
    requested_trackers = settings.requested_trackers(config)
    if requested_trackers and trackers is None:
        raise UserError(f"--track={config.track}: train() of glassgpt opens trackers, and not this function")
    if trackers is not None and team.is_rank_zero:
        trackers.check_installed(requested_trackers)
    dataset, splits = _open_text(config)
    takes_everything, takeover_choices = _check_and_choose_init_state(task, dataset)
    equipment, its_choices = plan_compute(task, dataset, splits["train"].nbytes, team)
    sampling, sample_choices = _sampling_from(team, config, dataset)
    passages, passage_choices = _choose_document_windows(config, dataset, splits["train"])
    placement, plan, device = equipment.execution, equipment.batch_plan, equipment.device
    eval_tokens = tokens_to_evaluate(config, plan, len(splits["val"]))

    portions = TokenCounts(plan.tokens, eval_tokens, len(splits["val"]))
    effort = forecast_run(config, equipment, splits["train"].nbytes, portions)
    check_memory(config, equipment, splits["train"].nbytes, effort.memory)

    held_before = probe.begin_memory_peak(str(device))
    model = _build_model(task, equipment, team)
    stream = BatchLoader(
        splits["train"], config.block_size, plan, config.seed, device, placement.data_on_card, passages
    )
    learner = Learner(model, config, placement, plan, stream, ledger, team)
    course = expected_loss_curve(config, equipment, dataset, stream.target_share)

    stop.is_graceful = True  # from here on there is something to save
    with ExitStack() as undo:
        place = _open_run_dir(task, team)
        undo.callback(place.close)  # its lock, if one of the following fails
        job = Job(
            config=config,
            choices=[
                *task.notes,
                *_without_work(config),
                *takeover_choices,
                *its_choices,
                *_describe_learning(config),
                *sample_choices,
                *passage_choices,
                _describe_evaluation(eval_tokens, len(splits["val"]), config.closing_eval),
            ],
            restores_training_state=takes_everything,
            process_group=team,
            stop=stop,
            compute_plan=equipment,
            dataset=dataset,
            tokenizer_digest=dataset_tokenizer_digest(dataset),
            splits=splits,
            loader=stream,
            model=model,
            learner=learner,
            eval_tokens=eval_tokens,
            eval_windows=_windows(config, splits, eval_tokens, device, team),
            sampling=sampling,
            profiler=UpdateProfiler(
                settings.profile_window(config), place.directory, device, team.is_rank_zero
            ),
            run_dir_handle=place,
            sink=_make_sink(place, config, team, listeners, trackers),
            saver=_make_saver(place.directory, config, team, placement.shard),
            ledger=ledger,
            interval=LogInterval(ledger),
            forecast_check=ForecastCheck(effort, course, memory_before_bytes=held_before),
            progress=TrainingProgress(),
        )
        undo.pop_all()
        return job


# --- text ---


def _open_text(config: TrainConfig) -> tuple[Dataset, dict[str, TokenArray]]:
    dataset = open_dataset(settings.data_dir(config))
    # What nanoGPT's folders are said to hold was read from the files just now.
    if dataset.has_manifest_file and sum(dataset.manifest.tokens.values()) < _MAX_VERIFIED_TOKENS:
        verify(dataset)
    splits: dict[str, TokenArray] = {split: dataset.tokens(split) for split in ("train", "val")}
    _check_lengths(config, splits)
    return dataset, splits


def too_few_tokens(config: TrainConfig, train_tokens: int) -> list[str]:
    if train_tokens >= config.block_size + 1:
        return []
    return [
        f"the training split has {train_tokens} tokens, fewer than --block_size={config.block_size} + 1; "
        "prepare more text or lower --block_size"
    ]


def _check_lengths(config: TrainConfig, splits: Mapping[str, TokenArray]) -> None:
    train, val = len(splits["train"]), len(splits["val"])
    problems = too_few_tokens(config, train)
    if val < 2:
        problems.append(f"the validation split has {val} tokens, too few to evaluate; prepare more text")
    if problems:
        raise UserError(problems)


def _windows(
    config: TrainConfig,
    splits: Mapping[str, TokenArray],
    eval_tokens: int,
    device: torch.device,
    team: ProcessGroup,
) -> dict[str, EvalWindows]:
    rows = eval_batch_rows(config, device.type)
    return {
        split: EvalWindows(tokens, config.block_size, eval_tokens, rows, device, team)
        for split, tokens in splits.items()
    }


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
    passages = DocumentWindows(tokens, separator, config.block_size)
    share = (
        f"{len(passages):,} sequences of one document each, {format_percent(passages.filled_fraction)} full"
    )
    return passages, [Choice("documents", "apart", share)]


def _sampling_from(
    team: ProcessGroup, config: TrainConfig, dataset: Dataset
) -> tuple[Sampling | None, list[Choice]]:
    """The first process decides for all, and writes; another machine may not have the tokenizer's table."""
    sampling, choices = _choose_sampling(config, dataset) if team.is_rank_zero else (None, [])
    there_is_one = team.broadcast_from_rank_zero(lambda: sampling is not None)
    return (sampling or Sampling(None, [])) if there_is_one else None, choices


def _choose_sampling(config: TrainConfig, dataset: Dataset) -> tuple[Sampling | None, list[Choice]]:
    """A preset's start may not be writable in the characters of your text; then a sample starts at will."""
    if not config.sample_tokens:
        return None, []
    try:
        tokenizer = dataset_tokenizer(dataset)
    except UserError as error:  # nanoGPT's folders do not carry GPT-2's table
        return None, [Choice("sample_tokens", 0, f"no sample: {error}")]
    if not config.sample_start:
        return Sampling(tokenizer, []), []
    try:
        start = tokenizer.encode(config.sample_start).tolist()
    except UserError as error:
        return Sampling(tokenizer, []), [Choice("sample_start", "", f"not {config.sample_start!r}: {error}")]
    return Sampling(tokenizer, start), [Choice("sample_start", config.sample_start, "as set")]


# --- the model ---


def _build_model(task: RunRequest, equipment: ComputePlan, team: ProcessGroup) -> GPT:
    """On the CPU first, so that every device starts from the same weights."""
    placement = equipment.execution
    torch.manual_seed(task.config.seed)
    model = GPT(equipment.model_config, empty=task.init_checkpoint is not None)
    configure_model(model, placement, task.config.activation_checkpointing)
    if placement.shard:  # block by block: the whole of it need not fit
        shard(model, placement.device, team.world_size)
    return model.to(placement.device)


def _check_and_choose_init_state(task: RunRequest, dataset: Dataset) -> tuple[bool, list[Choice]]:
    """Complains before anything is made, if these weights cannot be begun with."""
    config, origin = task.config, task.init_checkpoint
    if origin is None:
        return False, []
    check_compatible(config, dataset, origin)
    everything, choice = choose_init_state(config, dataset, origin, origin.folder == task.resume_dir)
    if everything:
        check_updates_left(config, origin.iter or 0)
    return everything, [choice]


def _describe_learning(config: TrainConfig) -> list[Choice]:
    rates = [Choice("optimizer", "muon", describe_rates(config))] if config.optimizer == "muon" else []
    shape = config.schedule if config.decay_lr else "constant"
    return [*rates, Choice("schedule", shape, schedule.describe_schedule(config))]


def _without_work(config: TrainConfig) -> list[Choice]:
    """A setting that does nothing here says so."""
    if config.embedding_lr is None or (config.optimizer == "muon" and not config.tie_embeddings):
        return []
    reason = "not used: only muon with tie_embeddings=False has a rate of its own for the embedding"
    return [Choice("embedding_lr", config.embedding_lr, reason)]


def _describe_evaluation(eval_tokens: int, val_tokens: int, closing: bool) -> Choice:
    if eval_tokens >= val_tokens - 1:
        return Choice("eval_tokens", val_tokens - 1, "the whole validation split, every time")
    at_the_end = "; all at the end" if closing else ""
    return Choice(
        "eval_tokens", eval_tokens, f"of {val_tokens:,}, evenly spaced, always the same{at_the_end}"
    )


# --- where it is kept ---


def _open_run_dir(task: RunRequest, team: ProcessGroup) -> LockedRunDir | RunDirInfo:
    """The run's folder, which the first process of a team makes and holds."""
    held: list[LockedRunDir] = []

    def take() -> list[Any]:
        held.append(LockedRunDir(task.resume_dir or make_run_dir(task.config.out_dir, task.name)))
        return [str(held[0].directory), held[0].process_number, held[0].start_id, held[0].was_finished]

    directory, process, start, was_finished = team.broadcast_from_rank_zero(take)
    return held[0] if held else RunDirInfo(Path(directory), process, start, was_finished)


def _make_saver(run_dir: Path, config: TrainConfig, team: ProcessGroup, spread: bool) -> Saver | NoSaver:
    """With all weights everywhere the first process saves; else everybody saves a part."""
    if spread:
        if not run_dir.is_dir():
            raise UserError(f"--shard needs a folder that every machine sees, and {run_dir} is not one")
        return Saver(run_dir, config.keep_checkpoints, team)
    return Saver(run_dir, config.keep_checkpoints) if team.is_rank_zero else NoSaver()


def _make_sink(
    place: LockedRunDir | RunDirInfo,
    config: TrainConfig,
    team: ProcessGroup,
    listeners: Sequence[Listener],
    trackers: Trackers | None,
) -> Sink | NullSink:
    """The first process of a team speaks for all."""
    if not team.is_rank_zero:
        return NullSink()
    telling = trackers.make_feeds(config, place.directory) if trackers else {}
    return Sink(place.directory / journal.FILE_NAME, place.process_number, listeners, telling, place.start_id)
