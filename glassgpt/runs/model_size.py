"""The size of a model and its FLOPs, from a log: as stated, from its shape, or from its MFU and step times.

    MFU = FLOPs per token x tokens per second / peak       so the FLOPs per token follow from the other three,
    FLOPs per token = 6 N + 12 x layers x width x context  and the parameters N from those and the shape.

N is all parameters but positions. A log rounds its MFU, so the result has an error; above MAX_FLOPS_ERROR it
is not used. `Analysis.size` and `Analysis.iteration_flops` are the answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.estimate import flops
from glassgpt.runs.curve_statistics import robust_std
from glassgpt.runs.log_numbers import MAX_COUNT
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import positive_int_setting, settings_product

SizeSource = Literal["stated", "shape", "inferred"]

MAX_MFU = 1000.0  # percent: no card has ten times the peak that a trainer assumes, so it is miscounted
MAX_FLOPS_ERROR = 0.02  # relative; two model sizes differ by much more
MFU_EMA_DECAY = 0.9  # weight of the previous value, where the logged MFU is a running average
MIN_PARAMETER_MISMATCH = 0.07  # relative, inferred over stated; rounding and conventions explain less

_MIN_DEAVERAGED_ROWS = 8  # with fewer, the running average itself is more accurate than undoing it
_INTEGER_TOLERANCE = 0.03  # relative
_PADDED_GPT2_VOCABULARY = 50_304  # nanoGPT's, where no dataset says otherwise
_MAX_LAYER_ERROR = 0.25  # of a number of layers that is to be rounded to a whole one
# Of a stated number of parameters: "0.80M" is rounded, and some trainers count the positions.
_MAX_STATED_ERROR, _MAX_STATED_ROUNDING = 0.01, 5000


@dataclass(frozen=True)
class ModelSize:
    """None: unknown."""

    parameters: int | None = None  # without positions
    parameters_source: SizeSource | None = None
    parameters_stated: int | None = None
    flops_per_token: float | None = None
    flops_source: SizeSource | None = None
    is_contradicted: bool = False  # the log's own MFU and step times imply another size than the stated one


@dataclass(frozen=True)
class IterationFlops:
    """On all devices that the log mentions."""

    flops: float
    relative_error: float  # from rounding and scatter


@dataclass(frozen=True)
class DeviceThroughput:
    """One steady iteration on what the logged MFU is of: one device, or one replica of a shared model."""

    flops: float
    relative_error: float
    mfu_percent: float
    flops_per_s: float


# --- as stated ---


def stated_parameters(run_log: RunLog) -> int | None:
    """N of 6N: as the log states it, exact where that is possible; else from the shape that it states."""
    stated, exact = run_log.setup.parameters, exact_parameters(run_log)
    if exact and (
        stated is None or math.isclose(exact, stated, rel_tol=_MAX_STATED_ERROR, abs_tol=_MAX_STATED_ROUNDING)
    ):
        return exact
    stated = stated or run_log.setup.trained_parameters
    return stated if stated and 0 < stated < MAX_COUNT else None


def exact_parameters(run_log: RunLog) -> int | None:
    """Not rounded: of the optimizer's groups without positions, or counted from the shape."""
    setup, positions = run_log.setup, settings_product(run_log, "block_size", "n_embd")
    if run_log.trainer.states_exact_parameters and setup.parameters:
        return setup.parameters
    if setup.trained_parameters and positions and setup.trained_parameters > positions:
        return setup.trained_parameters - positions
    return parameters_of_shape(run_log)


def parameters_of_shape(run_log: RunLog) -> int | None:
    """Without positions, counted from the settings of a GPT-2-shaped model."""
    settings = run_log.setup.settings
    vocab_size = positive_int_setting(run_log, "vocab_size") or run_log.setup.data.get("vocab_size")
    block_size, n_layer, n_embd = (
        positive_int_setting(run_log, name) for name in ("block_size", "n_layer", "n_embd")
    )
    if not run_log.trainer.is_gpt2_shaped or not isinstance(vocab_size, int):
        return None
    if not (block_size and n_layer and n_embd and 0 < vocab_size < MAX_COUNT):
        return None
    return flops.count_parameters(
        vocab_size=vocab_size,
        block_size=block_size,
        n_layer=n_layer,
        n_embd=n_embd,
        arch=str(settings.get("arch") or "gpt2"),
        bias=settings.get("bias") is True,
        positions=False,
        tied=settings.get("tie_embeddings") is not False,
    )


def flops_from_parameters(parameters: int | None, run_log: RunLog) -> float | None:
    attention = attention_flops(run_log)
    return float(flops.six_n_flops_per_token(parameters) + attention) if parameters and attention else None


def parameters_from_flops(flops_per_token: float, run_log: RunLog) -> int | None:
    attention = attention_flops(run_log)
    if (
        attention is None
        or not attention < flops_per_token < math.inf
        or not run_log.trainer.mfu_counts_palm_flops
    ):
        return None
    return round((flops_per_token - attention) / flops.FLOPS_PER_PARAMETER)


def attention_flops(run_log: RunLog) -> int | None:
    """FLOPs per token of attention's two matrix products, where the log has the shape."""
    n_layer, n_embd, context = (
        positive_int_setting(run_log, name) or 0 for name in ("n_layer", "n_embd", "block_size")
    )
    return flops.attention_flops_per_token(n_layer, n_embd, context) or None


def implied_layers(run_log: RunLog) -> int | None:
    """The number of layers that MFU, step times and width imply, where the log does not state it.

    Of a GPT-2 with its vocabulary: each layer adds 12 width² parameters and its attention. None unless the
    result is close to a whole number, as it is for no other vocabulary but by chance."""
    width, context = (positive_int_setting(run_log, name) for name in ("n_embd", "block_size"))
    tokens = run_log.setup.tokens_per_iteration or settings_product(
        run_log, "batch_size", "block_size", "gradient_accumulation_steps"
    )
    work = infer_flops_per_iteration(run_log)
    if positive_int_setting(run_log, "n_layer") or not run_log.trainer.mfu_counts_palm_flops:
        return None
    if not (width and context and tokens and work):
        return None
    vocab_size = positive_int_setting(run_log, "vocab_size") or _PADDED_GPT2_VOCABULARY
    per_layer = flops.six_n_flops_per_token(12 * width**2) + flops.attention_flops_per_token(
        1, width, context
    )
    layers = (work.flops / tokens - flops.six_n_flops_per_token(vocab_size * width)) / per_layer
    error = work.relative_error * work.flops / tokens / per_layer
    is_whole = error < _MAX_LAYER_ERROR and abs(layers - round(layers)) <= max(error, _MAX_LAYER_ERROR / 2)
    return round(layers) if is_whole and round(layers) > 0 else None


def stated_peak_flops(run_log: RunLog) -> float | None:
    """The FLOP/s of one device that the log's MFU calls 100 %."""
    return run_log.setup.peak_flops or run_log.trainer.mfu_peak


def known_device_count(run_log: RunLog) -> int | None:
    """As the log says it, or as its degrees of parallelism give it."""
    setup = run_log.setup
    degrees = (setup.data_parallel, setup.tensor_parallel, setup.pipeline_parallel)
    return setup.world_size or (math.prod(one or 1 for one in degrees) if setup.data_parallel else None)


def device_count(run_log: RunLog) -> int:
    """The number that the log says, or 1."""
    return known_device_count(run_log) or 1


def replica_count(run_log: RunLog) -> int:
    """Copies of the model, each on one device or shared by several."""
    setup = run_log.setup
    shared = (setup.tensor_parallel or 1) * (setup.pipeline_parallel or 1)
    return setup.data_parallel or max(1, device_count(run_log) // shared)


def mfu_unit_count(run_log: RunLog) -> int:
    """How many times what the logged MFU is of: one device, or one replica of the model."""
    return replica_count(run_log) if run_log.trainer.mfu_counts_replica else device_count(run_log)


# --- the verdict ---


def estimate_model_size(
    run_log: RunLog, work: IterationFlops | None, tokens_per_iteration: int | None
) -> ModelSize:
    """Where the log's MFU and step times contradict the stated size, the size that they imply is taken."""
    stated = stated_parameters(run_log)
    inferred = work.flops / tokens_per_iteration if work and tokens_per_iteration else None
    if inferred and work and (real := mismatching_parameters(run_log, stated, inferred, work.relative_error)):
        return ModelSize(real, "inferred", stated, inferred, "inferred", is_contradicted=True)
    # Fewer FLOPs than 6 per parameter: those of one of several devices, which the log does not mention, or
    # of devices that share one model and count their common tokens several times.
    if inferred and stated and run_log.trainer.mfu_counts_palm_flops:
        inferred = inferred if inferred >= flops.six_n_flops_per_token(stated) else None
    setup, (flops_per_token, flops_source) = run_log.setup, _choose_flops(run_log, stated, inferred)
    if stated is None:
        implied = parameters_from_flops(inferred, run_log) if inferred else None
        return ModelSize(implied, "inferred" if implied else None, None, flops_per_token, flops_source)
    if setup.parameters or setup.trained_parameters:
        return ModelSize(stated, "stated", stated, flops_per_token, flops_source)
    return ModelSize(stated, "shape", None, flops_per_token, flops_source)


def _choose_flops(
    run_log: RunLog, stated: int | None, inferred: float | None
) -> tuple[float | None, SizeSource | None]:
    """Per token. As stated; else of exact parameters; else as the MFU implies, which is more precise than
    "125M"; else of such a number."""
    if run_log.setup.flops_per_token:
        return run_log.setup.flops_per_token, "stated"
    from_parameters = flops_from_parameters(stated, run_log)
    if from_parameters is None:
        return inferred, "inferred" if inferred else None
    is_close = inferred and abs(from_parameters / inferred - 1) <= MIN_PARAMETER_MISMATCH
    if is_close and run_log.trainer.mfu_counts_palm_flops and stated != exact_parameters(run_log):
        return inferred, "inferred"
    return from_parameters, "shape" if stated == parameters_of_shape(run_log) else "stated"


def mismatching_parameters(
    run_log: RunLog, stated: int | None, flops_per_token: float, relative_error: float
) -> int | None:
    """The parameters that MFU and times imply, where these are not the stated ones. None where they agree,
    or where something else explains the difference.

    Tokens are of all devices and MFU is of one, so devices that the log does not mention make a model look
    smaller. An integer ratio is a sign of such devices, or of micro-steps that are not counted. A size that
    is stated exactly is not doubted: with untied embeddings, not all parameters are multiplied. Nor is a size
    that the trainer itself printed: it counted them, and its MFU formula may be another's.
    """
    setup = run_log.setup
    if (setup.parameters or setup.trained_parameters) and not setup.parameters_are_claimed:
        return None
    expected = flops_from_parameters(stated, run_log)
    implied = parameters_from_flops(flops_per_token, run_log)
    if not stated or expected is None or implied is None or run_log.trainer.states_exact_parameters:
        return None
    ratio = expected / flops_per_token
    if (
        nearest_multiple(ratio)
        or nearest_multiple(1 / ratio)
        or (run_log.setup.world_size is None and ratio > 1.5)
    ):
        return None
    # The error is of all FLOPs; relative to 6N, which is less, it is larger.
    uncertain = relative_error * flops_per_token / flops.six_n_flops_per_token(implied)
    return implied if abs(implied / stated - 1) > max(MIN_PARAMETER_MISMATCH, 2 * uncertain) else None


def nearest_multiple(ratio: float) -> int | None:
    """The integer of at least 2 that the ratio is close to."""
    if not (math.isfinite(ratio) and ratio > 1.5):
        return None
    nearest = round(ratio)
    return nearest if abs(ratio / nearest - 1) <= _INTEGER_TOLERANCE else None


# --- from MFU and step times ---


def infer_flops_per_iteration(run_log: RunLog) -> IterationFlops | None:
    """From the log's MFU and step times; the tokens per iteration need not be known."""
    peak = stated_peak_flops(run_log)
    if not peak:
        return None
    products, roundings = _mfu_ms_products(run_log)
    middle = float(np.median(products)) if len(products) else 0.0
    mfu = run_log.steps.mfu[np.isfinite(run_log.steps.mfu)]
    if middle <= 0 or np.median(mfu) > MAX_MFU:
        return None
    # Of few values the error is that of rounding; of many it is their scatter, which the median averages out.
    error = float(np.median(roundings)) / middle
    if len(products) >= _MIN_DEAVERAGED_ROWS:
        scatter = robust_std(products) / middle
        error = min(error, max(scatter, error / 2) / math.sqrt(len(products)) * 2)
    if not error <= MAX_FLOPS_ERROR:
        return None
    return IterationFlops(middle * peak / 100 / 1000 * mfu_unit_count(run_log), error)


def iteration_flops_bounds(run_log: RunLog) -> tuple[float, float] | None:
    """The least and the most FLOPs of an iteration that the logged MFU and step times allow, however coarse:
    an MFU of 0.01% may be 0.005% or 0.015%."""
    steps, peak = run_log.steps, stated_peak_flops(run_log)
    usable = run_log.is_steady() & (steps.mfu > 0) & (steps.ms > 0)
    if not peak or not usable.any():
        return None
    mfu = steps.mfu[usable]
    middle, rounding = float(np.median(mfu)), _mfu_rounding(mfu)
    factor = float(np.median(steps.ms[usable])) / 1000 * peak / 100 * mfu_unit_count(run_log)
    return max(0.0, middle - rounding) * factor, (middle + rounding) * factor


def _mfu_rounding(mfu: Floats) -> float:
    """Half of the last digit that the log prints: 0.005 for 12.93, 0.05 for 12.9, 0.5 for 13. Of up to three
    values, all may end in a zero by chance: then at least one decimal is assumed."""
    exact = (digits for digits in range(4) if np.all(np.abs(np.round(mfu, digits) - mfu) < 1e-9))
    decimals = next(exact, None)
    if decimals is not None and len(mfu) <= 3:
        decimals = max(decimals, 1)
    return 0.0 if decimals is None else 0.5 * 10.0**-decimals


def _mfu_ms_products(run_log: RunLog) -> tuple[Floats, Floats]:
    """MFU in percent x ms of the steady iterations, the same for each, and the rounding error of each."""
    steps = run_log.steps
    usable = run_log.is_steady() & (steps.mfu > 0) & (steps.ms > 0)
    mfu, ms = steps.mfu[usable], steps.ms[usable]
    rounding = _mfu_rounding(mfu)
    if not run_log.trainer.mfu_is_running_average:
        return mfu * ms, ms * rounding

    # Undo the running average, where the previous line is the previous logged iteration.
    single = np.full(len(steps), np.nan)
    if len(steps) > 1:
        gaps = np.diff(steps.iteration)
        follows = (steps.segment[1:] == steps.segment[:-1]) & (gaps == run_log.log_interval())
        added = (steps.mfu[1:] - MFU_EMA_DECAY * steps.mfu[:-1]) / (1 - MFU_EMA_DECAY)
        single[1:] = np.where(follows, added, np.nan)
    rows = usable & np.isfinite(single)
    if np.count_nonzero(rows) >= _MIN_DEAVERAGED_ROWS:
        ms = steps.ms[rows]
        return single[rows] * ms, ms * rounding * (1 + MFU_EMA_DECAY) / (1 - MFU_EMA_DECAY)
    # A running average belongs to the typical time of an iteration, not to that of its line.
    typical_ms = np.full(len(ms), float(np.median(ms)) if len(ms) else np.nan)
    return mfu * typical_ms, typical_ms * rounding
