"""Everything a run needs, set up in the order it is needed, every decision with its reason."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glassgpt import config as settings
from glassgpt.account import flops, hardware, journal
from glassgpt.account.clock import Ledger
from glassgpt.account.cluster import Cluster, link_of
from glassgpt.account.forecast import forecast
from glassgpt.account.hardware import Card, Peak
from glassgpt.account.meter import Interval, Mean, Sharing
from glassgpt.account.sink import Listener, Silence, Sink
from glassgpt.config import Choice, TrainConfig, Value
from glassgpt.data.dataset import Dataset, open_dataset, verify
from glassgpt.data.passages import Passages
from glassgpt.data.shards import Tokens
from glassgpt.data.tokenizers import Tokenizer, tokenizer_of
from glassgpt.errors import UserError
from glassgpt.figures import percent
from glassgpt.model.gpt import GPT, GPTConfig, shape_of
from glassgpt.track.trackers import check_installed, followers
from glassgpt.train import device as devices
from glassgpt.train import schedule
from glassgpt.train.batching import BatchPlan, evaluation_rows, plan_batch, tokens_to_evaluate
from glassgpt.train.checkpoint import NoSaver, Saver, readable
from glassgpt.train.device import Placement
from glassgpt.train.evaluate import Evaluation, Windows
from glassgpt.train.interrupt import Stop
from glassgpt.train.learner import Learner
from glassgpt.train.optimizers import describe_rates
from glassgpt.train.origin import Origin, check_fit, check_not_done, choose_takeover
from glassgpt.train.outcome import Outcome, expected_course, work_of
from glassgpt.train.profile import Profiling
from glassgpt.train.rundir import Place, Site, make_run_dir
from glassgpt.train.shards import shard
from glassgpt.train.speedups import choose_speedups
from glassgpt.train.stream import Stream
from glassgpt.train.task import Task
from glassgpt.train.team import Team
from glassgpt.version import VERSION

_VERIFIED_TOKENS = 50_000_000  # larger datasets are not read through at every start

RECENT = 20  # gradient norms kept for the record of a run that fails


@dataclass
class Progress:
    """What changes as a run goes on, besides weights and optimizer. Part of every checkpoint."""

    iter: int = 0  # updates done
    sequences: int = 0  # seen by them; where the training stream goes on
    val_loss: float | None = None  # of the evaluation at this very iteration, if there was one
    best_val_loss: float = math.inf
    best_iter: int | None = None
    evaluations_without_gain: int = 0
    losses: list[float] = field(default_factory=list)  # since the last log line
    norms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sampling:
    """What writes the sample at the end of a run: `start` are the tokens it goes on from, if any were set."""

    tokenizer: Tokenizer
    start: list[int]


@dataclass
class Job:
    """A run, ready to go."""

    config: TrainConfig
    team: Team
    place: Place | Site
    sink: Sink
    ledger: Ledger
    stop: Stop
    placement: Placement
    plan: BatchPlan
    dataset: Dataset
    splits: Mapping[str, Tokens]
    model: GPT
    learner: Learner
    stream: Stream
    saver: Saver
    peak: Peak
    flops_per_token: int
    eval_tokens: int
    eval_rows: int  # windows in a batch
    outcome: Outcome
    progress: Progress
    choices: list[Choice]
    takes_everything: bool  # from its origin, if it has one: iteration and optimizer, not weights alone
    sampling: Sampling | None  # how to write the sample at the end, if there shall be one
    interval: Interval
    profiling: Profiling
    windows: dict[str, Windows] = field(init=False)  # what is evaluated of each split
    recent_norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    reference: Evaluation | None = None  # the evaluation that early stopping measures progress from
    saved: tuple[int, float | None] | None = None  # iteration and validation loss of the last checkpoint
    told_setbacks: set[str] = field(default_factory=set)
    eval_cost: Mean = field(default_factory=Mean)
    save_cost: Mean = field(default_factory=Mean)
    sharing: Sharing | None = None  # of the updates so far, in a team

    def __post_init__(self) -> None:
        self.windows = {split: self.windows_of(split, self.eval_tokens) for split in self.splits}

    def windows_of(self, split: str, eval_tokens: int | None) -> Windows:
        """`eval_tokens=None`: the whole split."""
        tokens, context = self.splits[split], self.config.block_size
        return Windows(tokens, context, eval_tokens, self.eval_rows, self.placement.device, self.team)

    @property
    def run_dir(self) -> Path:
        return self.place.directory

    def resolved_config(self) -> TrainConfig:
        """The settings with what was decided filled in, so that a resumed run decides the same."""
        steps = self.config.gradient_accumulation_steps
        if self.config.batch_tokens is None:  # or another number of processes would make it another update
            steps = self.plan.sequences // self.plan.batch_size
        return dataclasses.replace(
            self.config,
            out_dir="",
            eval_only=False,
            # In a team everybody has a card of its own.
            device=self.placement.device.type if self.team.launch else str(self.placement.device),
            dtype=self.placement.dtype,  # type: ignore[arg-type]
            compile="on" if self.placement.compile else "off",
            attention=self.placement.attention,  # type: ignore[arg-type]
            kernels="triton" if self.placement.kernels else "plain",
            graph="on" if self.placement.graph else "off",
            batch_size=self.plan.batch_size,
            gradient_accumulation_steps=steps,
        )


def set_up(
    task: Task, listeners: Sequence[Listener], ledger: Ledger, stop: Stop, team: Team | None = None
) -> Job:
    """Reads the data, decides what is open, builds the model; makes the run's folder if all is well."""
    team = team or Team()
    config = task.config
    if team.is_first:
        check_installed(settings.trackers_asked(config))
    dataset = open_dataset(settings.data_dir(config))
    # What nanoGPT's folders are said to hold was read from the files just now.
    if dataset.was_prepared and sum(dataset.manifest.tokens.values()) < _VERIFIED_TOKENS:
        verify(dataset)
    splits = {split: dataset.tokens(split) for split in ("train", "val")}
    _check_lengths(config, splits)
    choices = [*task.notes, *_without_work(config)]
    takes_everything = False
    if task.origin is not None:
        takes_everything, choice = _choose_takeover(task, task.origin, dataset)
        choices.append(choice)

    torch.set_float32_matmul_precision("high")  # TF32 on cards that have it, as nanoGPT
    if config.threads is not None:
        torch.set_num_threads(config.threads)
        choices.append(Choice("threads", config.threads, "asked for"))
    device, choice = devices.choose_device(config.device)
    choices.append(choice)
    choices += devices.choose_allocator(device, os.environ)
    device = devices.share_out(device, config.device, team.local_rank, team.local_size)
    if device.index is not None:  # "cuda:1": streams, events and probes shall mean this card
        torch.cuda.set_device(device)
    team.check_same(_facts(task, dataset))
    choices += team.connect(device, config)
    spread = config.shard and bool(team.launch)
    if config.shard and not spread:
        choices.append(Choice("shard", False, "this run is one process: there is nobody to share with"))
    choices.append(dtype := devices.choose_dtype(config.dtype, device, config.n_embd))
    if spread and dtype.value == "float16":
        raise UserError("--shard=True needs --dtype=float32 on this card, which has no bfloat16")
    shape, choice = _model_shape(task, dataset.manifest.vocab_size)
    choices.append(choice)
    if config.activation == "auto":
        choices.append(Choice("activation", shape.activation, f"the usual one for {shape.arch}"))
    per_token = flops.flops_of(shape, shape.vocab_size)

    free, total = devices.memory_bytes(device)
    if free is not None:  # of the card that has least
        free = int(min(row[0] for row in team.table([free])))
    fits = devices.sequences_that_fit(config, shape.vocab_size, free, team.size)
    plan, batch_choices = plan_batch(config, device.type, fits, team.size)
    choices += batch_choices

    # What is measured is measured once, and what follows from it is the same for all.
    peak = _peak_from(
        team, device, lambda: hardware.find_peak(
            device.type, devices.device_name(device), str(dtype.value), total, config.probe_seconds
        ),
    )  # fmt: skip
    placement, speedups = _placement_from(
        team, device, lambda: choose_speedups(
            dataclasses.replace(config, shard=spread),
            device,
            str(dtype.value),
            plan,
            per_token,
            peak.measured or peak.value,
            splits["train"].nbytes,
            free,
            devices.recording_fits(config, shape.vocab_size, plan.batch_size, plan.micro_steps, free),
        ),
    )  # fmt: skip
    choices += speedups
    if config.optimizer == "muon":
        choices.append(Choice("optimizer", "muon", describe_rates(config)))
    choices.append(Choice("schedule", config.schedule, schedule.describe(config)))

    sampling, sample_choices = _choose_sampling(config, dataset)
    choices += sample_choices

    model = _build_model(config, shape, placement, team)
    passages, passage_choices = _choose_passages(config, dataset, splits["train"])
    choices += passage_choices
    stream = Stream(
        splits["train"], config.block_size, plan, config.seed, device, placement.data_on_card, passages
    )
    progress = Progress()

    learner = Learner(model, config, placement, plan, stream, ledger, team)
    eval_tokens = tokens_to_evaluate(config, plan, len(splits["val"]))
    eval_rows = evaluation_rows(config, device.type)
    card = hardware.find_card(devices.device_name(device), total)
    ahead = forecast(
        work_of(config, shape, placement, plan, splits["train"].nbytes, eval_rows, free),
        per_token,
        peak.value,
        card,
        plan.tokens,
        eval_tokens,
        len(splits["val"]),
        _cluster(team, card, device.type),
    )
    choices.append(_describe_evaluation(eval_tokens, len(splits["val"]), config.closing_eval))

    stop.gentle = True  # from here on there is something to save
    place = _take_place(task, team)
    sink: Sink = Silence()
    if team.is_first:
        telling = followers(config, place.directory)
        sink = Sink(place.directory / journal.NAME, place.process, listeners, telling)
    return Job(
        config=config,
        team=team,
        place=place,
        sink=sink,
        ledger=ledger,
        stop=stop,
        placement=placement,
        plan=plan,
        dataset=dataset,
        splits=splits,
        model=model,
        learner=learner,
        stream=stream,
        saver=_make_saver(place.directory, config, team, spread),
        peak=peak,
        flops_per_token=per_token,
        eval_tokens=eval_tokens,
        eval_rows=eval_rows,
        outcome=Outcome(
            ahead,
            expected_course(config, shape, plan, dataset) if config.init_from == "scratch" else None,
        ),
        progress=progress,
        choices=choices,
        takes_everything=takes_everything,
        sampling=sampling,
        interval=Interval(ledger),
        profiling=Profiling(settings.profile_window(config), place.directory, device, team.is_first),
    )


def _facts(task: Task, dataset: Dataset) -> dict[str, Value]:
    """What has to be the same in all processes of a team."""
    elsewhere = ("out_dir", "data_dir", "init_from")  # paths may differ from machine to machine
    config = dataclasses.asdict(task.config)
    facts = {f"--{name}": value for name, value in config.items() if name not in elsewhere}
    origin = None if task.origin is None else task.origin.iter
    return facts | {
        "the data's hash": dataset.hash,
        "the checkpoint's iteration": origin,
        "glassgpt": VERSION,
        "torch": torch.__version__,
    }


def _cluster(team: Team, card: Card | None, device_type: str) -> Cluster:
    link = link_of(card) if device_type == "cuda" else None
    return Cluster(team.local_size, -(-team.size // team.local_size), link)


def _peak_from(team: Team, device: torch.device, find: Callable[[], Peak]) -> Peak:
    return Peak(**team.from_first(lambda: dataclasses.asdict(find())))


def _placement_from(
    team: Team, device: torch.device, choose: Callable[[], tuple[Placement, list[Choice]]]
) -> tuple[Placement, list[Choice]]:
    def in_words() -> dict[str, Any]:
        placement, choices = choose()
        fields = dataclasses.asdict(dataclasses.replace(placement, device=None))  # type: ignore[arg-type]
        return {"placement": fields, "choices": [dataclasses.asdict(choice) for choice in choices]}

    said = team.from_first(in_words)
    choices = [Choice(**choice) for choice in said["choices"]]
    return Placement(**said["placement"] | {"device": device}), choices


def _take_place(task: Task, team: Team) -> Place | Site:
    """The run's folder, which the first process of a team makes and holds."""
    held: list[Place] = []

    def take() -> list[Any]:
        held.append(Place(task.run_dir or make_run_dir(task.config.out_dir, task.name)))
        return [str(held[0].directory), held[0].process, held[0].was_finished]

    directory, process, was_finished = team.from_first(take)
    return held[0] if held else Site(Path(directory), process, was_finished)


def _make_saver(run_dir: Path, config: TrainConfig, team: Team, spread: bool) -> Saver:
    """With all weights everywhere the first process saves; else everybody saves a part."""
    if spread:
        if not run_dir.is_dir():
            raise UserError(f"--shard needs a folder that every machine sees, and {run_dir} is not one")
        return Saver(run_dir, config.keep_checkpoints, team)
    return Saver(run_dir, config.keep_checkpoints) if team.is_first else NoSaver()


def parameter_count(shape: GPTConfig, positions: bool = True, lookups: bool = True) -> int:
    return flops.parameters_of(shape, shape.vocab_size, positions, lookups)


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


def _choose_passages(
    config: TrainConfig, dataset: Dataset, tokens: Tokens
) -> tuple[Passages | None, list[Choice]]:
    if config.documents == "joined":
        return None, []
    if dataset.end_of_text is None:
        raise UserError(
            f"--documents=apart must see where documents end, and {dataset.manifest.tokenizer} has no token "
            "for that; prepare the dataset with --tokenizer=gpt2 or bpe:N, or leave it out"
        )
    passages = Passages(tokens, dataset.end_of_text, config.block_size)
    share = f"{len(passages):,} sequences of one document each, {percent(passages.filled)} full"
    return passages, [Choice("documents", "apart", share)]


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


def _model_shape(task: Task, vocab_size: int) -> tuple[GPTConfig, Choice]:
    config, given = task.config, _given_vocabulary(task)
    size = settings.padded_vocabulary(vocab_size) if given is None else given
    reason = f"the dataset's {vocab_size}" + (", rounded up to a multiple of 64" if size > vocab_size else "")
    shape = shape_of(config, size)
    return shape, Choice("vocab_size", size, reason if given is None else "as the weights have it")


def _choose_takeover(task: Task, origin: Origin, dataset: Dataset) -> tuple[bool, Choice]:
    """Complains before anything is made, if these weights cannot be begun with."""
    check_fit(task.config, dataset, origin)
    everything, choice = choose_takeover(task.config, dataset, origin, origin.folder == task.run_dir)
    if everything:
        check_not_done(task.config, origin.iter or 0)
    return everything, choice


def _given_vocabulary(task: Task) -> int | None:
    """Of the weights to begin with: GPT-2's own are not rounded up."""
    if task.origin is not None:
        return task.origin.shape.vocab_size
    if task.run_dir is not None:
        for point in reversed(list(readable(task.run_dir))):
            return int(point.state["model"]["vocab_size"])
    return None


def _without_work(config: TrainConfig) -> list[Choice]:
    """nanoGPT's settings that do nothing here say so."""
    choices = []
    if config.embedding_lr is not None and (config.optimizer == "adamw" or config.tie_embeddings):
        reason = "not used: only muon with tie_embeddings=False has a rate of its own for the embedding"
        choices.append(Choice("embedding_lr", config.embedding_lr, reason))
    return choices


def _build_model(config: TrainConfig, shape: GPTConfig, placement: Placement, team: Team) -> GPT:
    torch.manual_seed(config.seed)
    model = GPT(shape)  # on the CPU first, so that every device starts from the same weights
    model.set_attention(placement.attention)
    model.set_kernels(placement.kernels)
    model.set_float8(placement.float8)
    model.activation_checkpointing = config.activation_checkpointing
    if placement.shard:  # block by block: the whole of it need not fit
        shard(model, placement.device, team.size)
    return model.to(placement.device)


def _describe_evaluation(eval_tokens: int, val_tokens: int, closing: bool) -> Choice:
    if eval_tokens >= val_tokens - 1:
        return Choice("eval_tokens", val_tokens - 1, "the whole validation split, every time")
    at_the_end = "; all at the end" if closing else ""
    return Choice(
        "eval_tokens", eval_tokens, f"of {val_tokens:,}, evenly spaced, always the same{at_the_end}"
    )
