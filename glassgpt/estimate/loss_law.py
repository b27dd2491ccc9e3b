"""The expected loss curve of a run, from a scaling law. No torch: planning and training both use it.

    curve = predict_loss_curve(loss_law_inputs(config, vocab_size=50304, ...))
    curve.at(500).mid, curve.final.high, curve.overfits_at
    compare_with_expected(curve, iteration=500, measured=3.1).position        # "on", "above" or "below"

The law is one formula with two sets of constants, for web text and for little text (less than 20 MB):

    loss = floor(N) + first fall(D) + long fall(D) - gain of the LR decay + overfitting

N are parameters. D are effective tokens: those seen, corrected for the learning rate and its schedule, the
batch size, dropout, the optimizer, and repeated epochs. Exponents are published ones where there are any;
scales were fitted to the curves that docs/what-to-expect.md lists. The law describes runs with sensible
settings. It knows nothing of divergence, broken data or wrong code.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from glassgpt.config import TrainConfig
from glassgpt.estimate import flops
from glassgpt.i18n import Message, say
from glassgpt.schedule import LearningRateSchedule, schedule_of

if TYPE_CHECKING:  # it imports numpy, and explain answers without
    from glassgpt.data.manifest import DatasetInfo

# --- inputs ---


@dataclass(frozen=True, kw_only=True)
class LossLawInputs:
    """What the loss of a run depends on."""

    parameters: int  # in matmuls: no position embedding, no untied input embedding
    vocab_size: int
    batch_tokens: int  # per update
    max_iters: int
    train_tokens: int  # of the training split, once
    tokenizer: str = "gpt2"  # "char", "byte", or any other, with several bytes per token
    bytes_per_token: float = 4.5
    dataset: str = ""
    arch: str = "gpt2"
    optimizer: str = "adamw"
    dropout: float = 0.0
    learning_rate: float | None = None  # AdamW's; None: a typical one
    warmup_iters: float = 0
    decay_iters: float | None = None  # None: max_iters
    min_lr_ratio: float = 0.1  # of the learning rate, where the decay ends
    schedule: str = "cosine"  # "wsd", or "constant"
    wsd_decay_fraction: float = 0.2

    @property
    def lr_schedule(self) -> LearningRateSchedule:
        """The learning rate as a fraction of its peak."""
        end = self.max_iters if self.decay_iters is None else self.decay_iters
        return LearningRateSchedule(
            1.0, self.min_lr_ratio, self.warmup_iters, end, self.schedule, self.wsd_decay_fraction
        )


_MAX_ITERS = 10**12  # more is a typing error, and would overflow


def loss_law_inputs(
    config: TrainConfig, vocab_size: int, batch_tokens: int, dataset: DatasetInfo
) -> LossLawInputs:
    schedule = schedule_of(config)
    return LossLawInputs(
        parameters=flops.model_parameters(config, vocab_size, matmul_only=True),
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        max_iters=min(config.max_iters, _MAX_ITERS),
        train_tokens=dataset.train_tokens,
        tokenizer=dataset.tokenizer,
        bytes_per_token=dataset.bytes_per_token,
        dataset=dataset.name,  # reference curves are found by it
        arch=config.arch,
        optimizer=config.optimizer,
        dropout=config.dropout,
        learning_rate=config.learning_rate,
        warmup_iters=schedule.warmup_iters,
        decay_iters=schedule.decay_iters,
        min_lr_ratio=schedule.min_lr / config.learning_rate,
        schedule=schedule.schedule,
        wsd_decay_fraction=config.wsd_decay_fraction,
    )


# --- the law's constants ---


@dataclass(frozen=True)
class LossLaw:
    """Losses in nats per token of `bytes_per_token`; N in parameters, D in such tokens."""

    name: str
    bytes_per_token: float
    # The loss with unlimited data and time: floor + scale * (N / 1e8) ** -exponent.
    floor: float
    scale: float
    exponent: float
    unigram_loss: float  # of a model that knows the frequency of each token, and little else
    first_tokens: float  # D after which the first fall, to the unigram loss, is mostly over
    long_tokens: float  # D where the long fall begins …
    long_exponent: float  # … and its slope in the end
    critical_batch_scale: float  # the critical batch is this times sqrt(D), in tokens
    repeat_decay_epochs: float  # epochs after which repeated text adds little, for a model of 1M parameters
    repeat_decay_exponent: float  # how that grows with N
    spread_nats: float  # between runs with equal settings and kind of text, error of the fit included


# Exponents: 0.34 of Hoffmann et al. 2022 (Chinchilla), 0.3658 of Besiroglu et al. 2024, who fitted the same
# data again; 15.4 repeats of Muennighoff et al. 2023. All scales: 12 curves of models on FineWeb and
# FineWeb-Edu, from 17M to 477M parameters and up to 31 billion tokens.
WEB_TEXT_LAW = LossLaw(
    "web text", 4.5,
    floor=2.05, scale=0.81, exponent=0.34, unigram_loss=7.3, first_tokens=1.37e5, long_tokens=7.9e6,
    long_exponent=0.3658, critical_batch_scale=19.0, repeat_decay_epochs=15.4, repeat_decay_exponent=0.0,
    spread_nats=0.12,
)  # fmt: skip

# No published law. 14 curves of tinyshakespeare, all or parts of it, 0.1M to 302M parameters,
# and 9 final losses of bench/LOG.md.
SMALL_TEXT_LAW = LossLaw(
    "little text", 1.0,
    floor=0.0, scale=1.2, exponent=0.03, unigram_loss=2.55, first_tokens=1.18e4, long_tokens=1.18e6,
    long_exponent=1.42, critical_batch_scale=4.6, repeat_decay_epochs=3.4, repeat_decay_exponent=0.5,
    spread_nats=0.06,
)  # fmt: skip

# How much a full decay of the learning rate lowers the loss; fitted to the same curves.
_LR_DECAY_GAIN_NATS = 0.05
# Effective tokens grow with the peak learning rate to this power: runs with a third and three times of it.
_PEAK_LR_EXPONENT = 0.5
# Token efficiency, compared with GPT-2's architecture and AdamW. Both together: 6.4 fits the runs of
# bench/LOG.md, 4.8 those of modded-nanogpt and nanochat; 5.4 is between. The share of each
# alone is from four README runs only.
_ARCH_TOKEN_EFFICIENCY = {"gpt2": 1.0, "modern": 1.8}
_OPTIMIZER_TOKEN_EFFICIENCY = {"adamw": 1.0, "muon": 3.0}
_DROPOUT_SLOWDOWN = 5.2  # exp(-5.2 x dropout): three runs with Muon, and shakespeare_char's 0.2

# Overfitting: nats per byte = 0.0019 x N / (bytes of text + 2.5M) x (effective epochs - 1) ^ 1.7. The curves
# that overfit: shakespeare_char with 10.65M, 21M and 302M parameters; small models on 25k to 100k characters.
_OVERFIT_SCALE, _OVERFIT_BYTES, _OVERFIT_EXPONENT = 0.0019, 2.5e6, 1.7

# Datasets with reference curves: their law, and their floor relative to the law's.
_REFERENCE_TEXTS: dict[str, tuple[LossLaw, float]] = {
    "shakespeare_char": (SMALL_TEXT_LAW, 1.0),
    "pylib": (SMALL_TEXT_LAW, 0.9),
    "openwebtext": (WEB_TEXT_LAW, 1.03),
    "fineweb": (WEB_TEXT_LAW, 1.04),
    "fineweb_edu": (WEB_TEXT_LAW, 0.96),
}
# An unknown text can be so much easier or harder, as a share of the loss. Technical pages full of set phrases
# were at 0.42 (bench/LOG.md, mdn).
_EASIER_TEXT_SHARE, _HARDER_TEXT_SHARE = 0.6, 0.2
_SMALL_TEXT_BYTES = 20e6  # below: SMALL_TEXT_LAW
_FITTED_PARAMETERS = {"web text": (1e7, 1e9), "little text": (5e4, 4e8)}  # range of the fitted curves, about
_UNFITTED_SIZE_FACTOR = 1.5  # times the error of the fit, for a model size outside that range
_EARLY_UNCERTAINTY = 0.1  # of the loss that is still to fall: the early curve depends on many things
_OVERFIT_UNCERTAINTY = (0.4, 0.5)  # of the overfitting, down and up


def perplexity(loss: float) -> float:
    """e^loss; infinite where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """A loss in nats per token as bits per byte of text, which compares across tokenizers."""
    return loss / math.log(2) / bytes_per_token


def typical_peak_lr(parameters: int) -> float:
    """AdamW's typical peak learning rate (Kaplan et al. 2020, appendix D)."""
    return max(2e-4, 3.239e-3 - 1.395e-4 * math.log(parameters))


# --- LR-weighted progress ---

# Progress per update is the learning rate's fraction of its peak, to this power; fitted with both laws.
_LR_PROGRESS_EXPONENT = 0.6
_INTEGRATION_CELLS = 256


@dataclass(frozen=True)
class LrWeightedProgress:
    """Cumulative updates, each weighted by its learning rate, as a piecewise linear function."""

    iterations: Sequence[float]
    cumulative: Sequence[float]

    def at(self, iteration: int) -> float:
        if iteration >= self.iterations[-1]:
            return self.cumulative[-1]
        right = bisect_right(self.iterations, iteration)
        left = right - 1
        width = self.iterations[right] - self.iterations[left]
        fraction = (iteration - self.iterations[left]) / width
        return self.cumulative[left] + fraction * (self.cumulative[right] - self.cumulative[left])


@lru_cache(1024)  # a plan compares models of many widths with the same schedule
def lr_weighted_progress(schedule: LearningRateSchedule, max_iters: int) -> LrWeightedProgress:
    """By the trapezoidal rule: a loop over all updates would be slow."""
    warmup = min(schedule.warmup_iters, max_iters)
    knots = {float(max_iters) * cell / _INTEGRATION_CELLS for cell in range(_INTEGRATION_CELLS + 1)}
    knots |= {float(warmup) * cell / 32 for cell in range(33)}
    iterations = sorted(knots)
    weights = [schedule.at(iteration) ** _LR_PROGRESS_EXPONENT for iteration in iterations]
    corners = pairwise(zip(iterations, weights, strict=True))
    areas = ((right - left) * (one + other) / 2 for (left, one), (right, other) in corners)
    return LrWeightedProgress(iterations, list(accumulate(areas, initial=0.0)))


# --- the expected curve ---


@dataclass(frozen=True)
class LossRange:
    """The validation loss after so many updates, in nats per token."""

    iteration: int
    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class ExpectedLossCurve:
    """The validation loss that a run will probably have at each iteration."""

    inputs: LossLawInputs
    law: LossLaw
    text_difficulty: float
    is_known_text: bool

    @cached_property
    def points(self) -> tuple[LossRange, ...]:
        return tuple(self.at(iteration) for iteration in milestone_iterations(self.inputs.max_iters))

    @property
    def final(self) -> LossRange:
        return self.at(self.inputs.max_iters)

    @property
    def epochs(self) -> float:
        return self.inputs.max_iters * self.inputs.batch_tokens / self.inputs.train_tokens

    @cached_property
    def best(self) -> LossRange:
        """Where the validation loss is lowest."""
        return min(self._fine_points, key=lambda point: point.mid)

    @cached_property
    def overfits_at(self) -> int | None:
        """The iteration from which the validation loss probably rises; None: not in this run."""
        best, last = self.best, self._fine_points[-1]
        return best.iteration if last.mid > best.mid * 1.01 + 0.01 else None

    @cached_property
    def _fine_points(self) -> tuple[LossRange, ...]:
        """Evenly over the run, and denser near its start, for a run that overfits early."""
        last, steps = self.inputs.max_iters, min(400, self.inputs.max_iters)
        even = {round(last * step / steps) for step in range(1, steps + 1)}
        early = {round(last ** (step / 200)) for step in range(201)}
        return tuple(map(self.at, sorted(even | early)))

    @property
    def _token_ratio(self) -> float:
        """This run's bytes per token, relative to the law's. Equal bits per byte scale a loss by it."""
        return self.inputs.bytes_per_token / self.law.bytes_per_token

    @property
    def _lr_ratio(self) -> float:
        """AdamW's learning rate relative to a typical one, within the fitted range. Muon's counts as 1."""
        learning_rate = self.inputs.learning_rate
        if self.inputs.optimizer != "adamw" or not learning_rate:
            return 1.0
        return min(max(learning_rate / typical_peak_lr(self.inputs.parameters), 0.1), 3.0)

    @property
    def _token_efficiency(self) -> float:
        """How much more tokens count with this architecture and optimizer than with GPT-2's and AdamW."""
        inputs = self.inputs
        return _ARCH_TOKEN_EFFICIENCY[inputs.arch] * _OPTIMIZER_TOKEN_EFFICIENCY[inputs.optimizer]

    def at(self, iteration: int) -> LossRange:
        inputs, law, ratio = self.inputs, self.law, self._token_ratio
        start = math.log(inputs.vocab_size)
        if iteration <= 0:  # random weights: a little above ln(vocab_size), seldom below
            return LossRange(0, 0.97 * start, start, 1.06 * start)
        tokens, epochs = self._effective_tokens(iteration)
        unigram = min(law.unigram_loss * ratio, start)
        # A power law in N and one in D, as in Hoffmann et al. 2022.
        floor = law.floor + law.scale * math.pow(inputs.parameters / 1e8, -law.exponent)
        floor = min(floor * self.text_difficulty * ratio, 0.9 * unigram)
        first_fall = (start - unigram) * (1 + tokens / law.first_tokens) ** -2
        fresh_tokens = self._fresh_tokens(tokens, epochs)
        long_fall = (unigram - floor) * math.pow(1 + fresh_tokens / law.long_tokens, -law.long_exponent)
        lr_decayed = 1 - inputs.lr_schedule.at(iteration) if iteration >= inputs.warmup_iters else 0.0
        gain = min(_LR_DECAY_GAIN_NATS * ratio * lr_decayed, 0.5 * floor)
        without_overfitting = min(floor + first_fall + long_fall - gain, start)
        # Overfitting ends at random guessing: the loss hardly rises above ln(vocab_size).
        overfitting = min(self._overfitting(epochs), start - without_overfitting)
        return self._range_around(iteration, without_overfitting, overfitting, to_fall=first_fall + long_fall)

    def _range_around(
        self, iteration: int, without_overfitting: float, overfitting: float, to_fall: float
    ) -> LossRange:
        """Wider for a model size, a learning rate or a text that the fitted curves do not have."""
        least, most = _FITTED_PARAMETERS[self.law.name]
        size_factor = 1.0 if least <= self.inputs.parameters <= most else _UNFITTED_SIZE_FACTOR
        lr_factor = 1 + 0.4 * abs(math.log(self._lr_ratio))
        fit_error = self.law.spread_nats * self._token_ratio + _EARLY_UNCERTAINTY * to_fall
        half = fit_error * (size_factor * lr_factor)
        unknown_text = 0.0 if self.is_known_text else without_overfitting
        mid = without_overfitting + overfitting
        low = mid - half - _EASIER_TEXT_SHARE * unknown_text - _OVERFIT_UNCERTAINTY[0] * overfitting
        high = mid + half + _HARDER_TEXT_SHARE * unknown_text + _OVERFIT_UNCERTAINTY[1] * overfitting
        return LossRange(iteration, max(0.0, low), mid, high)

    def _fresh_tokens(self, tokens: float, epochs: float) -> float:
        """What `tokens` in so many epochs are worth: repeated text adds less and less (Muennighoff et al.
        2023)."""
        if epochs <= 1:
            return tokens
        law = self.law
        decay = law.repeat_decay_epochs * math.pow(self.inputs.parameters / 1e6, law.repeat_decay_exponent)
        return tokens / epochs * (1 + decay * (1 - math.exp(-(epochs - 1) / decay)))

    def _overfitting(self, epochs: float) -> float:
        """Nats per token; the formula of _OVERFIT_SCALE."""
        inputs = self.inputs
        text_bytes = inputs.train_tokens * inputs.bytes_per_token
        per_byte = _OVERFIT_SCALE * inputs.parameters / (text_bytes + _OVERFIT_BYTES)
        return per_byte * inputs.bytes_per_token * math.pow(max(0.0, epochs - 1), _OVERFIT_EXPONENT)

    def _effective_tokens(self, iteration: int) -> tuple[float, float]:
        """D, in the law's tokens, and the same in epochs.

        The batch counts as in McCandlish et al. 2018 and Kaplan et al. 2020: D / (1 + batch / critical
        batch), where the critical batch grows about with the root of the tokens (Zhang et al. 2024).
        """
        inputs, ratio = self.inputs, self._token_ratio
        progress = lr_weighted_progress(inputs.lr_schedule, inputs.max_iters)
        tokens = progress.at(iteration) * inputs.batch_tokens * ratio
        if not tokens:
            return 0.0, 0.0
        efficiency = self._token_efficiency * math.pow(self._lr_ratio, _PEAK_LR_EXPONENT)
        efficiency *= math.exp(-_DROPOUT_SLOWDOWN * inputs.dropout)
        critical_batch = self.law.critical_batch_scale * math.sqrt(tokens)
        effective = efficiency * tokens / (1 + inputs.batch_tokens * ratio / critical_batch)
        return effective, effective / (inputs.train_tokens * ratio)

    @property
    def basis(self) -> tuple[Message, ...]:
        """In sentences, where the curve comes from."""
        inputs = self.inputs
        sentences = [say("loss-law.small_text")]
        if self.law is WEB_TEXT_LAW:
            sentences = [say("loss-law.web_text")]
        if abs(self._token_ratio - 1) > 0.15:
            sentences.append(say("loss-law.converted"))
        if not self.is_known_text:
            sentences.append(
                say("loss-law.unknown_text", easier=_EASIER_TEXT_SHARE, harder=_HARDER_TEXT_SHARE)
            )
        if inputs.arch != "gpt2" or inputs.optimizer != "adamw":
            factor = self._token_efficiency
            sentences.append(
                say("loss-law.efficiency", arch=inputs.arch, optimizer=inputs.optimizer, factor=factor)
            )
        if self.epochs > 1:
            sentences.append(say("loss-law.repeated"))
        least, most = _FITTED_PARAMETERS[self.law.name]
        if not least <= inputs.parameters <= most:
            sentences.append(say("loss-law.unfitted_size", size_factor=_UNFITTED_SIZE_FACTOR))
        return tuple(sentences)


def expected_loss_curve(
    config: TrainConfig, vocab_size: int, batch_tokens: int, dataset: DatasetInfo
) -> ExpectedLossCurve:
    """For a run that starts from random weights."""
    return predict_loss_curve(loss_law_inputs(config, vocab_size, batch_tokens, dataset))


def predict_loss_curve(inputs: LossLawInputs) -> ExpectedLossCurve:
    law, text_difficulty = _REFERENCE_TEXTS.get(inputs.dataset, (None, 1.0))
    # The reference curves hold for their own kind of tokens only.
    if law is not None and (law is SMALL_TEXT_LAW) == (inputs.tokenizer in ("char", "byte")):
        return ExpectedLossCurve(inputs, law, text_difficulty, is_known_text=True)
    is_small = inputs.train_tokens * inputs.bytes_per_token < _SMALL_TEXT_BYTES
    return ExpectedLossCurve(inputs, SMALL_TEXT_LAW if is_small else WEB_TEXT_LAW, 1.0, is_known_text=False)


def milestone_iterations(max_iters: int) -> tuple[int, ...]:
    """Where people look: 0, 50, 100, 250, 500, 1000 …, every tenth of the run, and its end."""
    early = [digit * 10**power for power in range(1, 7) for digit in (1, 2.5, 5)]
    tenths = [max_iters * tenth // 10 for tenth in range(11)]
    marks = {round(mark) for mark in early if 50 <= mark < max_iters} | set(tenths)
    return tuple(sorted(marks))


# --- comparing a measured loss with it ---

MIN_UPDATES_FOR_LOSS = 200  # before that the loss falls too fast to be compared


@dataclass(frozen=True)
class LossVerdict:
    """Whether a measured loss is in the expected range; if not, possible causes, the likeliest first."""

    position: str  # "on", "above" or "below"
    evidence: Message
    causes: Message | None = None


def position_in_range(measured: float, low: float, high: float) -> str:
    """ "on", "above" or "below"; NaN is above."""
    return "above" if not measured <= high else "below" if measured < low else "on"


def compare_with_expected(curve: ExpectedLossCurve, iteration: int, measured: float) -> LossVerdict:
    """`measured`: a validation loss in nats per token."""
    inputs, expected = curve.inputs, curve.at(iteration)
    values = {"iteration": iteration, "low": expected.low, "high": expected.high}
    if math.isnan(measured):
        return LossVerdict("above", say("loss-course.evidence.nan", **values), say("loss-course.advice.nan"))
    position = position_in_range(measured, expected.low, expected.high)
    if position == "above":
        causes = say("loss-course.advice.above")
        if measured > 1.06 * math.log(inputs.vocab_size):
            causes = say("loss-course.advice.diverged")
        elif iteration * inputs.batch_tokens > 2 * inputs.train_tokens:
            causes = say("loss-course.advice.overfits")
        return LossVerdict("above", say("loss-course.evidence.above", measured=measured, **values), causes)
    if position == "below":
        evidence = say("loss-course.evidence.below", measured=measured, **values)
        return LossVerdict("below", evidence, say("loss-course.advice.below"))
    return LossVerdict("on", say("loss-course.evidence.on", measured=measured, **values))
