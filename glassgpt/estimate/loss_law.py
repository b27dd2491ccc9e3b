"""What loss to expect at which iteration, before a run begins. No torch: planning and training both use it.

    expectation = expect(setup_of(config, text...))
    expectation.at(500).mid, expectation.final.high, expectation.overfits_at

The law is one formula with two sets of constants, for web text and for little text (less than 20 MB):

    loss = floor(N) + first fall(D) + long fall(D) - gain of the falling rate + overfitting

N are parameters; D are effective tokens: those seen, after all that makes learning slower or faster, as the
learning rate and its schedule, the batch, dropout, the optimizer, and text seen again. Exponents are
published ones where there are any; scales were fitted on the curves that docs/expected.md lists. It describes
runs with sensible settings: it knows nothing of divergence, broken data or wrong code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from glassgpt.estimate.loss_law_inputs import (
    LossLawInputs,
    LrWeightedProgress,
    lr_fraction,
    lr_weighted_progress,
)

# --- the law's constants ---


@dataclass(frozen=True)
class LossLaw:
    """Losses in nats per token of `bytes_per_token`; N in parameters, D in such tokens."""

    name: str
    bytes_per_token: float
    floor: float  # floor + scale * (N / 1e8) ** -exponent: with unlimited text and time
    scale: float
    exponent: float
    unigram_loss: float  # the loss of who knows how often each token comes, and little else
    first_tokens: float  # D in which the first fall, to there, is mostly over
    long_tokens: float  # D where the long fall begins …
    long_exponent: float  # … and how steep it is in the end
    critical_batch_scale: float  # a batch of batch * sqrt(D) tokens is twice as large as it is worth
    repeat_decay_epochs: float  # text seen this often again is worth little more: of a model of 1M parameters
    repeat_decay_exponent: float  # how that grows with N
    spread_nats: (
        float  # nats that runs with the same settings and kind of text differ by, and the fit is wrong by
    )


# Exponents: 0.34 of Hoffmann et al. 2022 (Chinchilla), 0.3658 of Besiroglu et al. 2024, who fitted the same
# data again; 15.4 repeats of Muennighoff et al. 2023. All scales: 12 curves of models on FineWeb and
# FineWeb-Edu, from 17M to 477M parameters and up to 31 billion tokens.
WEB_TEXT_LAW = LossLaw(
    "web text", 4.5,
    floor=2.05, scale=0.81, exponent=0.34, unigram_loss=7.3, first_tokens=1.37e5, long_tokens=7.9e6,
    long_exponent=0.3658, critical_batch_scale=19.0, repeat_decay_epochs=15.4, repeat_decay_exponent=0.0, spread_nats=0.12,
)  # fmt: skip

# Nobody published a law for this. 14 curves of tinyshakespeare, all or parts of it, 0.1M to 302M parameters,
# and 9 final losses of bench/LOG.md.
SMALL_TEXT_LAW = LossLaw(
    "little text", 1.0,
    floor=0.0, scale=1.2, exponent=0.03, unigram_loss=2.55, first_tokens=1.18e4, long_tokens=1.18e6,
    long_exponent=1.42, critical_batch_scale=4.6, repeat_decay_epochs=3.4, repeat_decay_exponent=0.5, spread_nats=0.06,
)  # fmt: skip

# What the loss has fallen by when the rate has fallen to nothing: likewise.
_LR_DECAY_GAIN_NATS = 0.05
# Another highest rate than usual makes learning slower or faster: runs with a third and three times of it.
_PEAK_LR_EXPONENT = 0.5
# How many times the tokens of GPT-2's architecture with AdamW. Both together: 6.4 fits the runs of
# bench/LOG.md, 4.8 those of modded-nanogpt and nanochat; 5.4 is between. What each does alone is from four
# README runs only.
_ARCH_TOKEN_EFFICIENCY = {"gpt2": 1.0, "modern": 1.8}
_OPTIMIZER_TOKEN_EFFICIENCY = {"adamw": 1.0, "muon": 3.0}
_DROPOUT_SLOWDOWN = 5.2  # exp(-5.2 x dropout): three dropouts with Muon, and shakespeare_char's 0.2

# Overfitting: nats per byte = 0.0019 x N / (bytes of text + 2.5M) x (effective epochs - 1) ^ 1.7. The curves
# that overfit: shakespeare_char with 10.65M, 21M and 302M parameters; small models on 25k to 100k characters.
_OVERFIT_SCALE, _OVERFIT_BYTES, _OVERFIT_EXPONENT = 0.0019, 2.5e6, 1.7

# Text of which there are reference curves: its law, and its floor against the law's.
_REFERENCE_TEXTS: dict[str, tuple[LossLaw, float]] = {
    "shakespeare_char": (SMALL_TEXT_LAW, 1.0),
    "pylib": (SMALL_TEXT_LAW, 0.9),
    "openwebtext": (WEB_TEXT_LAW, 1.03),
    "fineweb": (WEB_TEXT_LAW, 1.04),
    "fineweb_edu": (WEB_TEXT_LAW, 0.96),
}
# Another text can be so much easier or harder, of the loss. Technical pages full of set phrases were at 0.42
# (bench/LOG.md, mdn).
_EASIER_TEXT_SHARE, _HARDER_TEXT_SHARE = 0.6, 0.2
_SMALL_TEXT_BYTES = 20e6  # less text than this is little text
_FITTED_PARAMETERS = {
    "web text": (1e7, 1e9),
    "little text": (5e4, 4e8),
}  # parameters of the curves' models, about


def typical_peak_lr(parameters: int) -> float:
    """AdamW's usual highest learning rate (Kaplan et al. 2020, appendix D)."""
    return max(2e-4, 3.239e-3 - 1.395e-4 * math.log(parameters))


# --- what is expected ---


@dataclass(frozen=True)
class LossRange:
    """The validation loss after so many updates, in nats per token."""

    iteration: int
    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class ExpectedLossCurve:
    """The course that a run will probably take."""

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

    def at(self, iteration: int) -> LossRange:
        return _predict_loss(self, max(0, iteration))

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
        """Evenly over the run, and closer near its start, for one that overfits in a small part of it."""
        last, steps = self.inputs.max_iters, min(400, self.inputs.max_iters)
        even = {round(last * step / steps) for step in range(1, steps + 1)}
        early = {round(last ** (step / 200)) for step in range(201)}
        return tuple(map(self.at, sorted(even | early)))

    @cached_property
    def lr_progress(self) -> LrWeightedProgress:
        return lr_weighted_progress(self.inputs)

    @property
    def basis(self) -> tuple[str, ...]:
        return _describe_basis(self)


def predict_loss_curve(setup: LossLawInputs) -> ExpectedLossCurve:
    law, hardness = _REFERENCE_TEXTS.get(setup.dataset, (None, 1.0))
    # The same text in other tokens is no longer what the curves are of.
    if law is not None and (law is SMALL_TEXT_LAW) == (setup.tokenizer in ("char", "byte")):
        return ExpectedLossCurve(setup, law, hardness, is_known_text=True)
    little = setup.train_tokens * setup.bytes_per_token < _SMALL_TEXT_BYTES
    return ExpectedLossCurve(setup, SMALL_TEXT_LAW if little else WEB_TEXT_LAW, 1.0, is_known_text=False)


def milestone_iterations(max_iters: int) -> tuple[int, ...]:
    """Where people look: 0, 50, 100, 250, 500, 1000 …, every tenth of the run, and its end."""
    early = [digit * 10**power for power in range(1, 7) for digit in (1, 2.5, 5)]
    tenths = [max_iters * tenth // 10 for tenth in range(11)]
    marks = {round(mark) for mark in early if 50 <= mark < max_iters} | set(tenths)
    return tuple(sorted(marks))


def _predict_loss(expectation: ExpectedLossCurve, iteration: int) -> LossRange:
    setup, law = expectation.inputs, expectation.law
    scale = _bytes_per_token_ratio(expectation)
    start = math.log(setup.vocab_size)
    if iteration == 0:  # weights are drawn at random: a little more than ln(vocabulary), seldom less
        return LossRange(0, 0.97 * start, start, 1.06 * start)
    frequencies = min(law.unigram_loss * scale, start)
    floor = law.floor + law.scale * math.pow(setup.parameters / 1e8, -law.exponent)
    floor = min(floor * expectation.text_difficulty * scale, 0.9 * frequencies)
    tokens, epochs = _effective_tokens(expectation, iteration)
    first = (start - frequencies) * (1 + tokens / law.first_tokens) ** -2
    fresh = _worth(tokens, epochs, law, setup)
    long = (frequencies - floor) * math.pow(1 + fresh / law.long_tokens, -law.long_exponent)
    fallen = 1 - lr_fraction(setup, iteration) if iteration >= setup.warmup_iters else 0.0
    gain = min(_LR_DECAY_GAIN_NATS * scale * fallen, 0.5 * floor)
    learnt = min(floor + first + long - gain, start)
    # Who has learnt the text by heart guesses as badly as who knows nothing, hardly worse.
    overfitting = min(_overfitting(setup, epochs), start - learnt)
    half = (law.spread_nats * scale + _EARLY_UNCERTAINTY * (first + long)) * _unusual(expectation)
    easier, harder = (
        (0.0, 0.0)
        if expectation.is_known_text
        else (_EASIER_TEXT_SHARE * learnt, _HARDER_TEXT_SHARE * learnt)
    )
    mid = learnt + overfitting
    low = mid - half - easier - _OVERFIT_UNCERTAINTY[0] * overfitting
    return LossRange(
        iteration, max(0.0, low), mid, mid + half + harder + _OVERFIT_UNCERTAINTY[1] * overfitting
    )


_EARLY_UNCERTAINTY = 0.1  # of what is still to be learnt: the early course hangs on many things
_OVERFIT_UNCERTAINTY = (0.4, 0.5)  # of the overfitting, down and up


def _unusual(expectation: ExpectedLossCurve) -> float:
    """How much less is known than of the curves: another size of model, another learning rate."""
    setup = expectation.inputs
    least, most = _FITTED_PARAMETERS[expectation.law.name]
    size = 1.0 if least <= setup.parameters <= most else 1.5
    return size * (1 + 0.4 * abs(math.log(_lr_ratio(setup))))


def _bytes_per_token_ratio(expectation: ExpectedLossCurve) -> float:
    """Of a loss per token: the same bits per byte."""
    return expectation.inputs.bytes_per_token / expectation.law.bytes_per_token


def _overfitting(setup: LossLawInputs, epochs: float) -> float:
    text_bytes = setup.train_tokens * setup.bytes_per_token
    per_byte = _OVERFIT_SCALE * setup.parameters / (text_bytes + _OVERFIT_BYTES)
    return per_byte * setup.bytes_per_token * math.pow(max(0.0, epochs - 1), _OVERFIT_EXPONENT)


def _effective_tokens(expectation: ExpectedLossCurve, iteration: int) -> tuple[float, float]:
    """D, in the law's tokens, after what makes learning slower or faster; and how often that is the text.

    The batch counts as in McCandlish et al. 2018 and Kaplan et al. 2020: D / (1 + batch / critical batch), of
    which the critical one grows about with the root of the tokens (Zhang et al. 2024).
    """
    setup, law, scale = expectation.inputs, expectation.law, _bytes_per_token_ratio(expectation)
    tokens = expectation.lr_progress.at(iteration) * setup.batch_tokens * scale
    if not tokens:
        return 0.0, 0.0
    critical = law.critical_batch_scale * math.sqrt(tokens)
    effective = _speed(setup) * tokens / (1 + setup.batch_tokens * scale / critical)
    return effective, effective / (setup.train_tokens * scale)


def _speed(setup: LossLawInputs) -> float:
    speed = _ARCH_TOKEN_EFFICIENCY[setup.arch] * _OPTIMIZER_TOKEN_EFFICIENCY[setup.optimizer]
    speed *= math.pow(_lr_ratio(setup), _PEAK_LR_EXPONENT)
    return speed * math.exp(-_DROPOUT_SLOWDOWN * setup.dropout)


def _lr_ratio(setup: LossLawInputs) -> float:
    """AdamW's learning rate against the usual one, as far as the curves reach; Muon's is taken for usual."""
    if setup.optimizer != "adamw" or not setup.learning_rate:
        return 1.0
    return min(max(setup.learning_rate / typical_peak_lr(setup.parameters), 0.1), 3.0)


def _worth(tokens: float, epochs: float, law: LossLaw, setup: LossLawInputs) -> float:
    """In fresh tokens (Muennighoff et al. 2023): text seen again teaches less and less."""
    if epochs <= 1:
        return tokens
    repeats = law.repeat_decay_epochs * math.pow(setup.parameters / 1e6, law.repeat_decay_exponent)
    return tokens / epochs * (1 + repeats * (1 - math.exp(-(epochs - 1) / repeats)))


# --- in words ---


def _describe_basis(expectation: ExpectedLossCurve) -> tuple[str, ...]:
    setup, law = expectation.inputs, expectation.law
    if law is WEB_TEXT_LAW:
        told = [
            "scaling law for web text: exponents of Hoffmann et al. 2022 and Besiroglu et al. 2024, scales "
            "from 12 published curves on FineWeb and FineWeb-Edu"
        ]
    else:
        told = ["nanoGPT's and our own curves on tinyshakespeare, in characters"]
    if abs(_bytes_per_token_ratio(expectation) - 1) > 0.15:
        told.append("converted from its tokens to these by bits per byte")
    if not expectation.is_known_text:
        told.append("no reference for this kind of text: the band is wide")
    if setup.arch != "gpt2" or setup.optimizer != "adamw":
        told.append("the modern architecture and Muon learn faster: factors from bench/LOG.md")
    if expectation.epochs > 1:
        told.append(
            "text seen again counts less (Muennighoff et al. 2023), and overfitting as on tinyshakespeare"
        )
    least, most = _FITTED_PARAMETERS[law.name]
    if not least <= setup.parameters <= most:
        told.append("no reference with a model of this size: the band is wider still")
    return tuple(told)
