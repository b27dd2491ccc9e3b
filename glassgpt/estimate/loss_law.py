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

from glassgpt.estimate.loss_law_inputs import Progress, Setup, progress_of, rate_share

# --- the law's constants ---


@dataclass(frozen=True)
class Law:
    """Losses in nats per token of `bytes_per_token`; N in parameters, D in such tokens."""

    name: str
    bytes_per_token: float
    floor: float  # floor + scale * (N / 1e8) ** -exponent: with unlimited text and time
    scale: float
    exponent: float
    frequencies: float  # the loss of who knows how often each token comes, and little else
    first_tokens: float  # D in which the first fall, to there, is mostly over
    long_tokens: float  # D where the long fall begins …
    long_exponent: float  # … and how steep it is in the end
    batch: float  # a batch of batch * sqrt(D) tokens is twice as large as it is worth
    repeats: float  # text seen this often again is worth little more: of a model of 1M parameters
    repeats_exponent: float  # how that grows with N
    spread: float  # nats that runs with the same settings and kind of text differ by, and the fit is wrong by


# Exponents: 0.34 of Hoffmann et al. 2022 (Chinchilla), 0.3658 of Besiroglu et al. 2024, who fitted the same
# data again; 15.4 repeats of Muennighoff et al. 2023. All scales: 12 curves of models on FineWeb and
# FineWeb-Edu, from 17M to 477M parameters and up to 31 billion tokens.
WEB = Law(
    "web text", 4.5,
    floor=2.05, scale=0.81, exponent=0.34, frequencies=7.3, first_tokens=1.37e5, long_tokens=7.9e6,
    long_exponent=0.3658, batch=19.0, repeats=15.4, repeats_exponent=0.0, spread=0.12,
)  # fmt: skip

# Nobody published a law for this. 14 curves of tinyshakespeare, all or parts of it, 0.1M to 302M parameters,
# and 9 final losses of bench/LOG.md.
CHARACTERS = Law(
    "little text", 1.0,
    floor=0.0, scale=1.2, exponent=0.03, frequencies=2.55, first_tokens=1.18e4, long_tokens=1.18e6,
    long_exponent=1.42, batch=4.6, repeats=3.4, repeats_exponent=0.5, spread=0.06,
)  # fmt: skip

# What the loss has fallen by when the rate has fallen to nothing: likewise.
_RATE_GAIN = 0.05
# Another highest rate than usual makes learning slower or faster: runs with a third and three times of it.
_HIGHEST_RATE_POWER = 0.5
# How many times the tokens of GPT-2's architecture with AdamW. Both together: 6.4 fits the runs of
# bench/LOG.md, 4.8 those of modded-nanogpt and nanochat; 5.4 is between. What each does alone is from four
# README runs only.
_ARCH_SPEED = {"gpt2": 1.0, "modern": 1.8}
_OPTIMIZER_SPEED = {"adamw": 1.0, "muon": 3.0}
_DROPOUT_SLOWS = 5.2  # exp(-5.2 x dropout): three dropouts with Muon, and shakespeare_char's 0.2

# Overfitting: nats per byte = 0.0019 x N / (bytes of text + 2.5M) x (effective epochs - 1) ^ 1.7. The curves
# that overfit: shakespeare_char with 10.65M, 21M and 302M parameters; small models on 25k to 100k characters.
_OVERFIT, _OVERFIT_BYTES, _OVERFIT_POWER = 0.0019, 2.5e6, 1.7

# Text of which there are reference curves: its law, and its floor against the law's.
_TEXTS: dict[str, tuple[Law, float]] = {
    "shakespeare_char": (CHARACTERS, 1.0),
    "pylib": (CHARACTERS, 0.9),
    "openwebtext": (WEB, 1.03),
    "fineweb": (WEB, 1.04),
    "fineweb_edu": (WEB, 0.96),
}
# Another text can be so much easier or harder, of the loss. Technical pages full of set phrases were at 0.42
# (bench/LOG.md, mdn).
_EASIER, _HARDER = 0.6, 0.2
_LITTLE_BYTES = 20e6  # less text than this is little text
_FITTED = {"web text": (1e7, 1e9), "little text": (5e4, 4e8)}  # parameters of the curves' models, about


def usual_rate(parameters: int) -> float:
    """AdamW's usual highest learning rate (Kaplan et al. 2020, appendix D)."""
    return max(2e-4, 3.239e-3 - 1.395e-4 * math.log(parameters))


# --- what is expected ---


@dataclass(frozen=True)
class Point:
    """The validation loss after so many updates, in nats per token."""

    iteration: int
    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class Expectation:
    """The course that a run will probably take."""

    setup: Setup
    law: Law
    hardness: float
    known_text: bool

    @cached_property
    def points(self) -> tuple[Point, ...]:
        return tuple(self.at(iteration) for iteration in usual_iterations(self.setup.max_iters))

    @property
    def final(self) -> Point:
        return self.at(self.setup.max_iters)

    @property
    def epochs(self) -> float:
        return self.setup.max_iters * self.setup.batch_tokens / self.setup.train_tokens

    def at(self, iteration: int) -> Point:
        return _point(self, max(0, iteration))

    @cached_property
    def best(self) -> Point:
        """Where the validation loss is lowest."""
        return min(self._fine_points, key=lambda point: point.mid)

    @cached_property
    def overfits_at(self) -> int | None:
        """The iteration from which the validation loss probably rises; None: not in this run."""
        best, last = self.best, self._fine_points[-1]
        return best.iteration if last.mid > best.mid * 1.01 + 0.01 else None

    @cached_property
    def _fine_points(self) -> tuple[Point, ...]:
        """Evenly over the run, and closer near its start, for one that overfits in a small part of it."""
        last, steps = self.setup.max_iters, min(400, self.setup.max_iters)
        even = {round(last * step / steps) for step in range(1, steps + 1)}
        early = {round(last ** (step / 200)) for step in range(201)}
        return tuple(map(self.at, sorted(even | early)))

    @cached_property
    def progress(self) -> Progress:
        return progress_of(self.setup)

    @property
    def basis(self) -> tuple[str, ...]:
        return _basis(self)


def expect(setup: Setup) -> Expectation:
    law, hardness = _TEXTS.get(setup.dataset, (None, 1.0))
    # The same text in other tokens is no longer what the curves are of.
    if law is not None and (law is CHARACTERS) == (setup.tokenizer in ("char", "byte")):
        return Expectation(setup, law, hardness, known_text=True)
    little = setup.train_tokens * setup.bytes_per_token < _LITTLE_BYTES
    return Expectation(setup, CHARACTERS if little else WEB, 1.0, known_text=False)


def usual_iterations(max_iters: int) -> tuple[int, ...]:
    """Where people look: 0, 50, 100, 250, 500, 1000 …, every tenth of the run, and its end."""
    early = [digit * 10**power for power in range(1, 7) for digit in (1, 2.5, 5)]
    tenths = [max_iters * tenth // 10 for tenth in range(11)]
    marks = {round(mark) for mark in early if 50 <= mark < max_iters} | set(tenths)
    return tuple(sorted(marks))


def _point(expectation: Expectation, iteration: int) -> Point:
    setup, law = expectation.setup, expectation.law
    scale = _scale(expectation)
    start = math.log(setup.vocab_size)
    if iteration == 0:  # weights are drawn at random: a little more than ln(vocabulary), seldom less
        return Point(0, 0.97 * start, start, 1.06 * start)
    frequencies = min(law.frequencies * scale, start)
    floor = law.floor + law.scale * math.pow(setup.parameters / 1e8, -law.exponent)
    floor = min(floor * expectation.hardness * scale, 0.9 * frequencies)
    tokens, epochs = _effective_tokens(expectation, iteration)
    first = (start - frequencies) * (1 + tokens / law.first_tokens) ** -2
    fresh = _worth(tokens, epochs, law, setup)
    long = (frequencies - floor) * math.pow(1 + fresh / law.long_tokens, -law.long_exponent)
    fallen = 1 - rate_share(setup, iteration) if iteration >= setup.warmup_iters else 0.0
    gain = min(_RATE_GAIN * scale * fallen, 0.5 * floor)
    learnt = min(floor + first + long - gain, start)
    # Who has learnt the text by heart guesses as badly as who knows nothing, hardly worse.
    overfitting = min(_overfitting(setup, epochs), start - learnt)
    half = (law.spread * scale + _DOUBT * (first + long)) * _unusual(expectation)
    easier, harder = (0.0, 0.0) if expectation.known_text else (_EASIER * learnt, _HARDER * learnt)
    mid = learnt + overfitting
    low = mid - half - easier - _OVERFIT_DOUBT[0] * overfitting
    return Point(iteration, max(0.0, low), mid, mid + half + harder + _OVERFIT_DOUBT[1] * overfitting)


_DOUBT = 0.1  # of what is still to be learnt: the early course hangs on many things
_OVERFIT_DOUBT = (0.4, 0.5)  # of the overfitting, down and up


def _unusual(expectation: Expectation) -> float:
    """How much less is known than of the curves: another size of model, another learning rate."""
    setup = expectation.setup
    least, most = _FITTED[expectation.law.name]
    size = 1.0 if least <= setup.parameters <= most else 1.5
    return size * (1 + 0.4 * abs(math.log(_rate_ratio(setup))))


def _scale(expectation: Expectation) -> float:
    """Of a loss per token: the same bits per byte."""
    return expectation.setup.bytes_per_token / expectation.law.bytes_per_token


def _overfitting(setup: Setup, epochs: float) -> float:
    text_bytes = setup.train_tokens * setup.bytes_per_token
    per_byte = _OVERFIT * setup.parameters / (text_bytes + _OVERFIT_BYTES)
    return per_byte * setup.bytes_per_token * math.pow(max(0.0, epochs - 1), _OVERFIT_POWER)


def _effective_tokens(expectation: Expectation, iteration: int) -> tuple[float, float]:
    """D, in the law's tokens, after what makes learning slower or faster; and how often that is the text.

    The batch counts as in McCandlish et al. 2018 and Kaplan et al. 2020: D / (1 + batch / critical batch), of
    which the critical one grows about with the root of the tokens (Zhang et al. 2024).
    """
    setup, law, scale = expectation.setup, expectation.law, _scale(expectation)
    tokens = expectation.progress.at(iteration) * setup.batch_tokens * scale
    if not tokens:
        return 0.0, 0.0
    critical = law.batch * math.sqrt(tokens)
    effective = _speed(setup) * tokens / (1 + setup.batch_tokens * scale / critical)
    return effective, effective / (setup.train_tokens * scale)


def _speed(setup: Setup) -> float:
    speed = _ARCH_SPEED[setup.arch] * _OPTIMIZER_SPEED[setup.optimizer]
    speed *= math.pow(_rate_ratio(setup), _HIGHEST_RATE_POWER)
    return speed * math.exp(-_DROPOUT_SLOWS * setup.dropout)


def _rate_ratio(setup: Setup) -> float:
    """AdamW's learning rate against the usual one, as far as the curves reach; Muon's is taken for usual."""
    if setup.optimizer != "adamw" or not setup.learning_rate:
        return 1.0
    return min(max(setup.learning_rate / usual_rate(setup.parameters), 0.1), 3.0)


def _worth(tokens: float, epochs: float, law: Law, setup: Setup) -> float:
    """In fresh tokens (Muennighoff et al. 2023): text seen again teaches less and less."""
    if epochs <= 1:
        return tokens
    repeats = law.repeats * math.pow(setup.parameters / 1e6, law.repeats_exponent)
    return tokens / epochs * (1 + repeats * (1 - math.exp(-(epochs - 1) / repeats)))


# --- in words ---


def _basis(expectation: Expectation) -> tuple[str, ...]:
    setup, law = expectation.setup, expectation.law
    if law is WEB:
        told = [
            "scaling law for web text: exponents of Hoffmann et al. 2022 and Besiroglu et al. 2024, scales "
            "from 12 published curves on FineWeb and FineWeb-Edu"
        ]
    else:
        told = ["nanoGPT's and our own curves on tinyshakespeare, in characters"]
    if abs(_scale(expectation) - 1) > 0.15:
        told.append("converted from its tokens to these by bits per byte")
    if not expectation.known_text:
        told.append("no reference for this kind of text: the band is wide")
    if setup.arch != "gpt2" or setup.optimizer != "adamw":
        told.append("the modern architecture and Muon learn faster: factors from bench/LOG.md")
    if expectation.epochs > 1:
        told.append(
            "text seen again counts less (Muennighoff et al. 2023), and overfitting as on tinyshakespeare"
        )
    least, most = _FITTED[law.name]
    if not least <= setup.parameters <= most:
        told.append("no reference with a model of this size: the band is wider still")
    return tuple(told)
