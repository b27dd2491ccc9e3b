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
from glassgpt.data.document_windows import Passages
from glassgpt.data.shards import Tokens
from glassgpt.data.tokenizers import end_of_text, tokenizer_identity, tokenizer_of
from glassgpt.errors import UserError
from glassgpt.estimate.batching import evaluation_rows, tokens_to_evaluate
from glassgpt.estimate.forecast import Portions
from glassgpt.estimate.meter import Interval
from glassgpt.format import percent
from glassgpt.model.gpt import GPT
from glassgpt.record import journal
from glassgpt.record.clock import Ledger
from glassgpt.record.run_dir import Place, Site, make_run_dir
from glassgpt.record.sink import Listener, Silence, Sink, Trackers
from glassgpt.training import probe
from glassgpt.training.checkpoint.saver import NoSaver, Saver
from glassgpt.training.device import adapt
from glassgpt.training.distributed.fsdp import shard
from glassgpt.training.distributed.process_group import Team
from glassgpt.training.evaluate import Windows
from glassgpt.training.forecast_check import Outcome
from glassgpt.training.init_weights import check_fit, check_not_done, choose_takeover
from glassgpt.training.interrupt import Stop
from glassgpt.training.job import Job, Progress, Sampling
from glassgpt.training.learner import Learner
from glassgpt.training.loader import Stream
from glassgpt.training.optimizers import describe_rates
from glassgpt.training.out_of_memory import check_memory
from glassgpt.training.profiler import Profiling
from glassgpt.training.run_choices import Equipment, equip
from glassgpt.training.run_forecast import expected_course, expected_effort
from glassgpt.training.task import Task

_VERIFIED_TOKENS = 50_000_000  # larger datasets are not read through at every start


def set_up(
    task: Task,
    listeners: Sequence[Listener],
    ledger: Ledger,
    stop: Stop,
    team: Team | None = None,
    trackers: Trackers | None = None,
) -> Job:
    """Reads the data, decides what is open, builds the model; makes the run's folder if all is well."""
    team = team or Team()
    config = task.config
    requested_trackers = settings.trackers_asked(config)
    if requested_trackers and trackers is None:
        raise UserError(f"--track={config.track}: train() of glassgpt opens trackers, and not this function")
    if trackers is not None and team.is_first:
        trackers.check_installed(requested_trackers)
    dataset, splits = _open_text(config)
    takes_everything, takeover_choices = _choose_takeover(task, dataset)
    equipment, its_choices = equip(task, dataset, splits["train"].nbytes, team)
    sampling, sample_choices = _sampling_from(team, config, dataset)
    passages, passage_choices = _choose_passages(config, dataset, splits["train"])
    placement, plan, device = equipment.placement, equipment.plan, equipment.device
    eval_tokens = tokens_to_evaluate(config, plan, len(splits["val"]))

    portions = Portions(plan.tokens, eval_tokens, len(splits["val"]))
    effort = expected_effort(config, equipment, splits["train"].nbytes, portions)
    check_memory(config, equipment, splits["train"].nbytes, effort.memory)

    held_before = probe.begin_memory_peak(str(device))
    model = _build_model(task, equipment, team)
    stream = Stream(
        splits["train"], config.block_size, plan, config.seed, device, placement.data_on_card, passages
    )
    learner = Learner(model, config, placement, plan, stream, ledger, team)
    course = expected_course(config, equipment, dataset, stream.learned)

    stop.gentle = True  # from here on there is something to save
    with ExitStack() as undo:
        place = _take_place(task, team)
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
            takes_everything=takes_everything,
            team=team,
            stop=stop,
            equipment=equipment,
            dataset=dataset,
            tokenizer_digest=tokenizer_identity(dataset),
            splits=splits,
            stream=stream,
            model=model,
            learner=learner,
            eval_tokens=eval_tokens,
            windows=_windows(config, splits, eval_tokens, device, team),
            sampling=sampling,
            profiling=Profiling(settings.profile_window(config), place.directory, device, team.is_first),
            place=place,
            sink=_make_sink(place, config, team, listeners, trackers),
            saver=_make_saver(place.directory, config, team, placement.shard),
            ledger=ledger,
            interval=Interval(ledger),
            outcome=Outcome(effort, course, held_before=held_before),
            progress=Progress(),
        )
        undo.pop_all()
        return job


# --- text ---


def _open_text(config: TrainConfig) -> tuple[Dataset, dict[str, Tokens]]:
    dataset = open_dataset(settings.data_dir(config))
    # What nanoGPT's folders are said to hold was read from the files just now.
    if dataset.was_prepared and sum(dataset.manifest.tokens.values()) < _VERIFIED_TOKENS:
        verify(dataset)
    splits: dict[str, Tokens] = {split: dataset.tokens(split) for split in ("train", "val")}
    _check_lengths(config, splits)
    return dataset, splits


def too_little_text(config: TrainConfig, train_tokens: int) -> list[str]:
    if train_tokens >= config.block_size + 1:
        return []
    return [
        f"the training split has {train_tokens} tokens, fewer than --block_size={config.block_size} + 1; "
        "prepare more text or lower --block_size"
    ]


def _check_lengths(config: TrainConfig, splits: Mapping[str, Tokens]) -> None:
    train, val = len(splits["train"]), len(splits["val"])
    problems = too_little_text(config, train)
    if val < 2:
        problems.append(f"the validation split has {val} tokens, too few to evaluate; prepare more text")
    if problems:
        raise UserError(problems)


def _windows(
    config: TrainConfig, splits: Mapping[str, Tokens], eval_tokens: int, device: torch.device, team: Team
) -> dict[str, Windows]:
    rows = evaluation_rows(config, device.type)
    return {
        split: Windows(tokens, config.block_size, eval_tokens, rows, device, team)
        for split, tokens in splits.items()
    }


def _choose_passages(
    config: TrainConfig, dataset: Dataset, tokens: Tokens
) -> tuple[Passages | None, list[Choice]]:
    if config.documents == "joined":
        return None, []
    separator = end_of_text(dataset)
    if separator is None:
        raise UserError(
            f"--documents=apart must see where documents end, and {dataset.manifest.tokenizer} has no token "
            "for that; prepare the dataset with --tokenizer=gpt2 or bpe:N, or leave it out"
        )
    passages = Passages(tokens, separator, config.block_size)
    share = f"{len(passages):,} sequences of one document each, {percent(passages.filled)} full"
    return passages, [Choice("documents", "apart", share)]


def _sampling_from(team: Team, config: TrainConfig, dataset: Dataset) -> tuple[Sampling | None, list[Choice]]:
    """The first process decides for all, and writes; another machine may not have the tokenizer's table."""
    sampling, choices = _choose_sampling(config, dataset) if team.is_first else (None, [])
    there_is_one = team.from_first(lambda: sampling is not None)
    return (sampling or Sampling(None, [])) if there_is_one else None, choices


def _choose_sampling(config: TrainConfig, dataset: Dataset) -> tuple[Sampling | None, list[Choice]]:
    """A preset's start may not be writable in the characters of your text; then a sample starts at will."""
    if not config.sample_tokens:
        return None, []
    try:
        tokenizer = tokenizer_of(dataset)
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


def _build_model(task: Task, equipment: Equipment, team: Team) -> GPT:
    """On the CPU first, so that every device starts from the same weights."""
    placement = equipment.placement
    torch.manual_seed(task.config.seed)
    model = GPT(equipment.shape, empty=task.origin is not None)
    adapt(model, placement, task.config.activation_checkpointing)
    if placement.shard:  # block by block: the whole of it need not fit
        shard(model, placement.device, team.size)
    return model.to(placement.device)


def _choose_takeover(task: Task, dataset: Dataset) -> tuple[bool, list[Choice]]:
    """Complains before anything is made, if these weights cannot be begun with."""
    config, origin = task.config, task.origin
    if origin is None:
        return False, []
    check_fit(config, dataset, origin)
    everything, choice = choose_takeover(config, dataset, origin, origin.folder == task.run_dir)
    if everything:
        check_not_done(config, origin.iter or 0)
    return everything, [choice]


def _describe_learning(config: TrainConfig) -> list[Choice]:
    rates = [Choice("optimizer", "muon", describe_rates(config))] if config.optimizer == "muon" else []
    shape = config.schedule if config.decay_lr else "constant"
    return [*rates, Choice("schedule", shape, schedule.describe(config))]


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


def _take_place(task: Task, team: Team) -> Place | Site:
    """The run's folder, which the first process of a team makes and holds."""
    held: list[Place] = []

    def take() -> list[Any]:
        held.append(Place(task.run_dir or make_run_dir(task.config.out_dir, task.name)))
        return [str(held[0].directory), held[0].process, held[0].start, held[0].was_finished]

    directory, process, start, was_finished = team.from_first(take)
    return held[0] if held else Site(Path(directory), process, start, was_finished)


def _make_saver(run_dir: Path, config: TrainConfig, team: Team, spread: bool) -> Saver:
    """With all weights everywhere the first process saves; else everybody saves a part."""
    if spread:
        if not run_dir.is_dir():
            raise UserError(f"--shard needs a folder that every machine sees, and {run_dir} is not one")
        return Saver(run_dir, config.keep_checkpoints, team)
    return Saver(run_dir, config.keep_checkpoints) if team.is_first else NoSaver()


def _make_sink(
    place: Place | Site,
    config: TrainConfig,
    team: Team,
    listeners: Sequence[Listener],
    trackers: Trackers | None,
) -> Sink:
    """The first process of a team speaks for all."""
    if not team.is_first:
        return Silence()
    telling = trackers.followers(config, place.directory) if trackers else {}
    return Sink(place.directory / journal.NAME, place.process, listeners, telling, place.start)
