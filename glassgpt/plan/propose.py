"""The best run for a number of hours on a machine; and recommended settings for the common cards.

    proposal = propose(config, target, dataset, hours=24.0)
    proposal.best.config, proposal.as_toml()

For each width it finds the longest run that the time allows, and shorter ones if the data would repeat too
often. It proposes the run with the lowest expected loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig, padded_vocab_size
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError
from glassgpt.estimate import flops, memory
from glassgpt.estimate.cards import COMMON_CARDS, resolve_card_name
from glassgpt.estimate.decide import choose_dtype
from glassgpt.estimate.forecast import TimeForecast
from glassgpt.estimate.loss_law import ExpectedLossCurve, expected_loss_curve
from glassgpt.estimate.training_workload import DTYPE_BYTES
from glassgpt.format import format_duration, format_parameters
from glassgpt.i18n import translate
from glassgpt.plan.dataset_info import known_dataset_info
from glassgpt.plan.estimates import forecast_spec
from glassgpt.plan.plan_warnings import refused_setting_problems
from glassgpt.plan.planned_spec import can_shard, make_run_spec
from glassgpt.plan.planning import SCHEMA_VERSION, make_plan
from glassgpt.plan.target import FOUND_BY_NAME, PlanTarget, target_of_card
from glassgpt.recipe import build_config, find_recipe, to_toml

_WIDTHS = (64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1600, 2048)  # n_embd
_CLUSTER_WIDTHS = (2560, 3200, 4096)  # with several cards too
_HEAD_DIM = 64
_MAX_CHARACTER_CONTEXT = 256  # tokens; characters gain little from more
# Settings that the proposal decides, whatever the config says.
PROPOSED_SETTINGS = (
    "arch", "optimizer", "tie_embeddings", "bias", "n_embd", "n_head", "n_layer", "batch_size",
    "batch_tokens", "gradient_accumulation_steps", "max_iters", "dropout", "learning_rate", "embedding_lr",
    "matrix_lr", "beta1", "beta2", "muon_momentum", "weight_decay", "schedule", "wsd_decay_fraction",
    "min_lr", "warmup_iters", "lr_decay_iters", "eval_interval", "eval_iters", "log_interval", "profile",
)  # fmt: skip
_USED_TIME_SHARE = 0.97  # of the hours; the rest is a reserve
_NEARLY_ALL_TIME_SHARE = 0.85  # of the hours
# Batch tokens per square root of all tokens, as in the tuned presets.
_BATCH_PER_SQRT_TOKENS = {"char": 1.5, "other": 5.7}
_MAX_BATCH_TOKENS = 2**20
_SPEED_FIXPOINT_STEPS = 4  # rounds until speed and number of tokens agree
_MIN_SEQUENCES = 100  # of a proposed run, in all its updates
_LENGTH_STEP = 1.03  # ratio between two neighbouring run lengths that are tried
_SHORTER_LENGTHS_TRIED, _LONGER_LENGTHS_TRIED = 12, 4
_MAX_EVALUATIONS = 20
_MAX_EVALUATION_SHARE = 0.03  # of the time of a run


@dataclass(frozen=True)
class ProposedRun:
    config: TrainConfig
    n_layer: int
    n_embd: int
    parameters: int
    tokens: int
    epochs: float
    tokens_per_s: float
    seconds: float
    loss: tuple[float, float, float]
    overfits_later: bool  # a longer run in the same hours would have a higher loss


@dataclass(frozen=True)
class Proposal:
    best: ProposedRun
    considered: tuple[ProposedRun, ...]  # smallest model first
    target: PlanTarget
    hours: float
    price: float | None = None  # of one machine per hour

    @property
    def cost(self) -> float | None:
        machines = self.target.cluster.machines
        return None if self.price is None else self.price * machines * self.best.seconds / 3600

    @property
    def summary(self) -> str:
        best = self.best
        cost = "" if self.cost is None else f", cost {self.cost:,.2f}"
        return (
            f"{format_duration(self.hours * 3600)} on {self.target.title}: "
            f"{format_parameters(best.parameters)} parameters, {best.config.max_iters:,} updates of "
            f"{best.config.batch_tokens:,} tokens, about {format_duration(best.seconds)}, "
            f"expected loss {best.loss[1]:.2f}{cost}"
        )

    @property
    def unused_time_reason(self) -> str:
        """Why the best run takes less than the time given; empty if it takes nearly all of it."""
        if not self.best.overfits_later or self.best.seconds > _NEARLY_ALL_TIME_SHARE * self.hours * 3600:
            return ""
        return translate("plan.proposal.would_overfit")

    def as_toml(self) -> str:
        return to_toml(self.best.config, f"proposed by glass plan: {self.summary}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "target": self.target.title,
            "hours": self.hours,
            "cost": self.cost,
            "spare_time": self.unused_time_reason,
            "best": asdict(self.best),
            "considered": [asdict(option) for option in self.considered],
        }


def propose(
    config: TrainConfig,
    target: PlanTarget,
    dataset: DatasetInfo,
    hours: float,
    price: float | None = None,
    keeps_context: bool = False,
) -> Proposal:
    """`config` gives dataset, context and machine settings; the rest is proposed. `price`: of one machine per
    hour. `keeps_context`: do not shorten `block_size` for a dataset of characters."""
    if not keeps_context and dataset.is_character_level:
        config = replace(config, block_size=min(config.block_size, _MAX_CHARACTER_CONTEXT))
    if config.device.partition(":")[0] != target.device_type:
        config = replace(config, device="cpu" if target.device_type == "cpu" else "auto")
    widths = _WIDTHS if target.cluster.ranks == 1 else _WIDTHS + _CLUSTER_WIDTHS
    seconds = hours * 3600 * _USED_TIME_SHARE
    options = [
        option for width in widths if (option := _propose_width(config, width, target, dataset, seconds))
    ]
    if not options:
        raise UserError(_no_option_message(config, target, hours))
    best = min(options, key=lambda option: option.loss[1])
    problems = refused_setting_problems(make_run_spec(best.config, target, dataset), target)
    refused = [f"{problem.what}: {problem.fix}" for problem in problems]
    if refused:
        raise UserError(refused)
    return Proposal(best, tuple(options), target, hours, price)


def _no_option_message(config: TrainConfig, target: PlanTarget, hours: float) -> str:
    dtype = str(choose_dtype(config.dtype, target.traits, _WIDTHS[-1]).value)
    if not target.peaks:
        return f"--hours: the speed of {target.title} is unknown; name a card of the table by --gpu"
    if target.peak_flops_per_s(dtype) is None:
        known = [name for name in DTYPE_BYTES if target.peak_flops_per_s(name) is not None]
        flags = " or ".join(f"--dtype={name}" for name in known)
        return f"--hours: the speed of {target.title} in {dtype} is unknown; it is known with {flags}"
    return (
        f"--hours={hours:g} on {target.title}: too short to train any model; more --hours, or another --gpu"
    )


# --- one width ---


def _propose_width(
    config: TrainConfig, width: int, target: PlanTarget, dataset: DatasetInfo, seconds: float
) -> ProposedRun | None:
    """The run with the lowest expected loss that takes at most `seconds`; None: there is none."""
    shaped = _with_fitting_shard(_with_width(config, width, dataset), target, dataset)
    tokens = None if shaped is None else _affordable_tokens(shaped, target, dataset, seconds)
    if shaped is None or tokens is None or tokens < _MIN_SEQUENCES * shaped.block_size:
        return None
    overfits_later, lengths = _rank_lengths(shaped, target, dataset, tokens)
    for run_config, curve in lengths:
        forecast = _forecast_times(run_config, target, dataset)
        if forecast is None:
            continue
        evaluations = _affordable_evaluations(forecast, forecast.total_s[1])
        run_config = replace(run_config, eval_interval=max(1, -(-run_config.max_iters // evaluations)))
        forecast = _forecast_times(run_config, target, dataset)
        if forecast is None or forecast.total_s[1] > seconds or not _fits(run_config, target, dataset):
            continue
        run_tokens = run_config.max_iters * (run_config.batch_tokens or 1)
        return ProposedRun(
            config=run_config,
            n_layer=run_config.n_layer,
            n_embd=run_config.n_embd,
            parameters=flops.model_parameters(run_config, padded_vocab_size(dataset.vocab_size)),
            tokens=run_tokens,
            epochs=run_tokens / dataset.train_tokens,
            tokens_per_s=forecast.throughput.mid,
            seconds=forecast.total_s[1],
            loss=(curve.final.low, curve.final.mid, curve.final.high),
            overfits_later=overfits_later,
        )
    return None


def _with_width(config: TrainConfig, width: int, dataset: DatasetInfo) -> TrainConfig:
    """A model of this width, as deep as it is wide, with the settings that the tuned presets share."""
    return replace(
        config,
        arch="modern",
        optimizer="muon",
        tie_embeddings=False,
        bias=False,
        n_embd=width,
        n_head=max(1, width // _HEAD_DIM),
        n_layer=max(3, round(width / _HEAD_DIM)),
        batch_size=None,
        gradient_accumulation_steps=None,
        batch_tokens=None,
        dropout=0.0,
        learning_rate=4e-3,
        embedding_lr=0.02 if dataset.is_character_level else 0.1,
        matrix_lr=0.02,
        beta1=0.8,
        beta2=0.95,
        schedule="wsd",
        wsd_decay_fraction=0.5,
        min_lr=0.0,
        warmup_iters=None,
        lr_decay_iters=None,
        eval_iters=None,
        profile="",
    )


def _with_fitting_shard(config: TrainConfig, target: PlanTarget, dataset: DatasetInfo) -> TrainConfig | None:
    """Sharded over the cards only if it does not fit otherwise; None: it does not fit at all."""
    ranks = target.cluster.ranks
    for shard in (False, True) if ranks > 1 and not config.shard else (config.shard,):
        sharded = replace(config, shard=shard, batch_tokens=config.block_size * 16 * ranks)
        workload = make_run_spec(sharded, target, dataset).workload
        is_possible = can_shard(workload) or not shard or config.shard
        if is_possible and memory.largest_fitting_batch(workload, target.automatic_limit) is not None:
            return replace(config, shard=shard)
    return None


def _with_length(config: TrainConfig, target: PlanTarget, dataset: DatasetInfo, tokens: float) -> TrainConfig:
    """A run over so many tokens: its batch, updates and regularisation."""
    T, ranks = config.block_size, target.cluster.ranks
    per_sqrt_tokens = _BATCH_PER_SQRT_TOKENS["char" if dataset.is_character_level else "other"]
    sequences = 2 ** max(3, round(math.log2(max(1.0, per_sqrt_tokens * math.sqrt(tokens) / T))))
    max_sequences = _MAX_BATCH_TOKENS // T // ranks * ranks or ranks
    batch_tokens = min(-(-sequences // ranks) * ranks, max_sequences) * T  # as many sequences on every card
    updates = max(10, int(tokens / batch_tokens))
    epochs = updates * batch_tokens / dataset.train_tokens
    run_config = replace(
        config,
        batch_tokens=batch_tokens,
        max_iters=updates,
        muon_momentum=0.95 if updates > 2000 else 0.9,
        dropout=0.15 if epochs > 3 else 0.0,
        weight_decay=0.05 if epochs > 1 else 0.0,
        eval_interval=max(1, -(-updates // _MAX_EVALUATIONS)),
        log_interval=max(1, min(100, updates // 200)),
    )
    if not config.shard:
        return run_config
    # In one pass FSDP all-gathers the weights once, and gradients stay sharded.
    one_pass = replace(run_config, batch_size=batch_tokens // T // ranks)
    return one_pass if _fits(one_pass, target, dataset) else run_config


def _fits(config: TrainConfig, target: PlanTarget, dataset: DatasetInfo) -> bool:
    workload = make_run_spec(config, target, dataset).workload
    return memory.estimate_memory(workload).total_bytes <= target.automatic_limit


# --- how long to train ---


def _forecast_times(config: TrainConfig, target: PlanTarget, dataset: DatasetInfo) -> TimeForecast | None:
    """None: the machine's speed is not known."""
    return forecast_spec(make_run_spec(config, target, dataset), target, dataset).times


def _affordable_evaluations(forecast: TimeForecast, seconds: float) -> int:
    """Evaluations after the one before the first update, within their share of so long a run."""
    each_s = forecast.evaluation_s / forecast.evaluations
    affordable = int(_MAX_EVALUATION_SHARE * seconds / each_s) - 1
    return max(1, min(_MAX_EVALUATIONS, affordable))


def _affordable_tokens(
    config: TrainConfig, target: PlanTarget, dataset: DatasetInfo, seconds: float
) -> float | None:
    """Tokens that can be trained on in that time; None: the speed is unknown. The speed depends on batch and
    kernels, and these on the number of tokens, so both are found by iteration."""
    first_batch_tokens = config.block_size * 64 * target.cluster.ranks
    run_config = replace(config, batch_tokens=first_batch_tokens, max_iters=10_000)
    for _ in range(_SPEED_FIXPOINT_STEPS):
        forecast = _forecast_times(run_config, target, dataset)
        if forecast is None:
            return None
        each_s = forecast.evaluation_s / forecast.evaluations
        evaluation_s = (_affordable_evaluations(forecast, seconds) + 1) * each_s
        tokens = forecast.throughput.mid * (seconds - (forecast.start_s + forecast.saving_s) - evaluation_s)
        if tokens < config.block_size:
            return tokens
        run_config = _with_length(config, target, dataset, tokens)
    return tokens


def _rank_lengths(
    config: TrainConfig, target: PlanTarget, dataset: DatasetInfo, tokens: float
) -> tuple[bool, list[tuple[TrainConfig, ExpectedLossCurve]]]:
    """Whether a run over fewer than `tokens` has a lower loss, because the data repeats; and the runs to try,
    lowest expected loss first. Some are slightly too long, because batch and dropout follow the length, and
    the speed follows them.

    The lengths are a fixed grid, so that more time never proposes something worse.
    """
    shortest = _MIN_SEQUENCES * config.block_size
    affordable = 1 + math.floor(math.log(tokens / shortest, _LENGTH_STEP))  # lengths of the grid
    few_tokens = dataset.train_tokens / 20  # up to here nothing repeats, and longer is better
    repeats = tokens >= 2 * few_tokens
    first = affordable - _SHORTER_LENGTHS_TRIED
    if repeats:
        first = math.floor(math.log(few_tokens / shortest, _LENGTH_STEP))
    first = max(0, first)
    runs = []
    for index in range(first, affordable + _LONGER_LENGTHS_TRIED):
        run_config = _with_length(config, target, dataset, shortest * _LENGTH_STEP**index)
        vocab_size, batch_tokens = padded_vocab_size(dataset.vocab_size), run_config.batch_tokens or 1
        runs.append((run_config, expected_loss_curve(run_config, vocab_size, batch_tokens, dataset)))
    longest_loss = runs[affordable - 1 - first][1].final.mid
    runs.sort(key=lambda run: run[1].final.mid)
    return repeats and runs[0][1].final.mid < longest_loss, runs


# --- recommended settings per card ---

MEASURED_CARDS = ("H200",)  # these runs were measured there; the others are predicted
GPT2_TOKENS = 2_500_000_000  # 20 per parameter
DAY_HOURS = 24.0


@dataclass(frozen=True)
class Recommendation:
    card: str
    memory_gib: float
    shakespeare_s: float | None
    gpt2_batch: int | None  # micro-batch of sequences of 1024; None: not even one fits
    gpt2_tokens_per_s: float | None
    gpt2_hours: float | None  # for 20 tokens per parameter
    day: ProposedRun | None  # the best run of 24 hours
    measured: bool


def recommend_for_cards(names: Iterable[str] = COMMON_CARDS) -> list[Recommendation]:
    return [recommend_for(target_of_card(resolve_card_name(name).card, FOUND_BY_NAME)) for name in names]


def recommend_for(target: PlanTarget) -> Recommendation:
    device_type, fineweb = target.device_type, known_dataset_info("fineweb_edu")
    shakespeare = make_plan(
        build_config(find_recipe("shakespeare_char"), {}, device_type),
        target,
        known_dataset_info("shakespeare_char"),
    )
    batch_size = tokens_per_s = best_of_day = None
    try:
        settings = {"dataset": "fineweb_edu", "batch_tokens": 491_520}
        gpt2 = make_plan(build_config(find_recipe("gpt2_124m"), settings, device_type), target, fineweb)
        batch_size = gpt2.spec.batch.batch_size
        tokens_per_s = None if gpt2.times is None else gpt2.times.throughput.mid
    except UserError:  # not even one sequence fits
        pass
    try:
        config = build_config(find_recipe("gpt2_124m"), {"dataset": "fineweb_edu"}, device_type)
        best_of_day = propose(config, target, fineweb, DAY_HOURS).best
    except UserError:
        pass
    return Recommendation(
        target.name,
        target.memory_bytes / 2**30,
        None if shakespeare.times is None else shakespeare.times.total_s[1],
        batch_size,
        tokens_per_s,
        None if tokens_per_s is None else GPT2_TOKENS / tokens_per_s / 3600,
        best_of_day,
        target.name in MEASURED_CARDS,
    )
