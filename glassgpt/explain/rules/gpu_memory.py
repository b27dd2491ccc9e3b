"""Out of memory: what the message says, what the model needs, and what would have fitted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from glassgpt.estimate import flops
from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_bytes, format_count, format_percent
from glassgpt.i18n import say
from glassgpt.runs.run_log import LogEvent, RunLog
from glassgpt.runs.trajectory import numeric_setting, takes_known_settings

ADAMW_BYTES_PER_PARAMETER = 16  # per parameter, float32: the weight, its gradient, and AdamW's two moments
AUTOCAST_BYTES_PER_PARAMETER = (
    2  # per parameter: autocast's 16-bit copies, alive until the backward pass has used them
)
USABLE_MEMORY_SHARE = 0.95  # of the card: the driver's context and the gaps between blocks take the rest
# Bytes that a block keeps for the backward pass, per token and channel, with 16-bit activations and flash
# attention (Korthikanti et al. 2022: 34 without the attention scores).
ACTIVATION_BYTES_PER_CHANNEL = 34
LOGIT_BYTES_PER_VOCAB_ENTRY = (
    10  # per token and vocabulary entry: the logits, their float32 copy, its gradient
)

SHARDED_STATE_SHARE = (
    0.7  # of a card, for its part of the model: activations and gathered layers need the rest
)
MAX_BATCH_SIZE = 1e5  # whose divisors are looked for
MAX_MODEL_DIMENSION = 1e8  # of a model: a larger number in a log is an error

_SIZE = r"([\d.]+)\s*([KMGT]i?B|bytes)"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "b": 1}


@dataclass(frozen=True)
class OomMessage:
    """What torch says when it runs out, in bytes. None: not said."""

    requested_bytes: float | None
    capacity_bytes: float | None
    allocated_bytes: float | None  # in tensors
    reserved_unallocated_bytes: float | None  # reserved, but not allocated
    free_bytes: float | None
    process_bytes: float | None  # by this process


def parse_oom_message(text: str) -> OomMessage:
    """New and old CUDA messages (`capacty` is torch 2.1's own), and those of MPS and the CPU."""
    reserved = _parse_size(rf"{_SIZE} reserved in total", text)
    allocated = _parse_size(rf"{_SIZE} is allocated by PyTorch", text) or _parse_size(
        rf"{_SIZE} already allocated", text
    )
    idle = _parse_size(rf"{_SIZE} is reserved by PyTorch but unallocated", text)
    if idle is None and reserved and allocated:
        idle = max(0.0, reserved - allocated)
    return OomMessage(
        requested_bytes=_parse_size(rf"tried to allocate {_SIZE}", text),
        capacity_bytes=_parse_size(rf"total capaci?ty of {_SIZE}", text)
        or _parse_size(rf"{_SIZE} total capacity", text)
        or _parse_size(rf"max allowed: {_SIZE}", text),
        allocated_bytes=allocated or _parse_size(rf"MPS allocated: {_SIZE}", text),
        reserved_unallocated_bytes=idle,
        free_bytes=_parse_size(rf"of which {_SIZE} is free", text) or _parse_size(rf"{_SIZE} free", text),
        process_bytes=_parse_size(rf"this process has {_SIZE} memory in use", text),
    )


def _parse_size(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text, re.IGNORECASE)
    if not match or match[1].count(".") > 1 or not match[1].strip("."):
        return None
    value = float(match[1]) * _UNITS["b" if match[2] == "bytes" else match[2][0].upper()]
    return value if math.isfinite(value) else None


# --- what the model needs ---


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes: of the model whatever the batch, and of each sequence in it. None: not known."""

    parameters: int | None
    model_bytes: float | None
    bytes_per_sequence: float | None


def estimate_memory_need(history: RunLog, message: OomMessage) -> MemoryNeed:
    setup = history.setup
    parameters = setup.trained_parameters or setup.parameters
    if not parameters or not history.trainer.keeps_float32_masters:
        return MemoryNeed(parameters, None, None)
    narrow = setup.settings.get("dtype") != "float32"
    # Smaller micro-batches mean accumulation, so gradients are there during the forward pass as well.
    fixed = float(parameters) * (ADAMW_BYTES_PER_PARAMETER + (AUTOCAST_BYTES_PER_PARAMETER if narrow else 0))
    kept = [_activation_bytes_per_sequence(history, narrow)]
    batch = _model_dimension(history, "batch_size")
    if batch and message.allocated_bytes:  # it failed on the way, so a sequence needs at least this
        kept.append((message.allocated_bytes - fixed) / batch)
    known = [value for value in kept if value is not None and value > 0]
    return MemoryNeed(parameters, fixed, max(known, default=None))


def _model_dimension(history: RunLog, name: str) -> float | None:
    """A side of the model, if it is one that a model can have."""
    value = numeric_setting(history, name)
    return value if value is not None and 0 < value <= MAX_MODEL_DIMENSION else None


def _activation_bytes_per_sequence(history: RunLog, narrow: bool) -> float | None:
    layers, width = _model_dimension(history, "n_layer"), _model_dimension(history, "n_embd")
    context, vocabulary = (
        _model_dimension(history, "block_size"),
        _model_dimension(history, "vocab_size") or 0.0,
    )
    if not layers or not width or not context:
        return None
    return context * (
        ACTIVATION_BYTES_PER_CHANNEL * (1 if narrow else 2) * layers * width
        + LOGIT_BYTES_PER_VOCAB_ENTRY * vocabulary
    )


# --- the finding ---


def oom(case: RunAnalysis) -> Finding | None:
    history = case.log
    later = history.events_of_failed_start()
    events = [event for event in history.events if event.kind == "oom" and event not in later]
    if not events:
        return None
    messages = [parse_oom_message(event.text) for event in events]
    message = next(
        (found for found in messages if found.requested_bytes or found.capacity_bytes), messages[0]
    )
    need = estimate_memory_need(history, message)
    capacity = message.capacity_bytes or history.setup.memory_bytes
    if capacity is None and case.card and case.card.memory_gb:
        capacity = case.card.memory_gb * 2**30
    went_on = _went_on(history, events[-1], case.facts.ended == "finished")
    return Finding(
        "oom",
        "warning" if went_on else "problem",
        say("Memory ran out on the way, and training went on")
        if went_on
        else say("The run ran out of memory"),
        _evidence(message, need, capacity, history),
        _explanation(message, need, capacity),
        _advice(history, message, need, capacity),
    )


def _went_on(history: RunLog, event: LogEvent, finished: bool) -> bool:
    """Iterations after it are no proof: a process that dies hands out last what it had still to print."""
    before = any(line < event.line for line in history.process_start_lines)
    again = any(event.line < line < history.last_step_line for line in history.process_start_lines)
    return event.line < history.last_step_line and (finished or (before and again))


def _evidence(message: OomMessage, need: MemoryNeed, capacity: float | None, history: RunLog) -> str:
    said = [
        *_message_evidence(message),
        *_need_evidence(need, capacity, _model_dimension(history, "batch_size")),
    ]
    return " ".join(said) or say("The log says that memory ran out, and not how much there was.")


def _message_evidence(message: OomMessage) -> list[str]:
    said = []
    if message.requested_bytes:
        said.append(say("It asked for {tried} more.", tried=format_bytes(message.requested_bytes)))
    if message.capacity_bytes and message.allocated_bytes:
        said.append(
            say(
                "Of {capacity}, {used} held tensors.",
                capacity=format_bytes(message.capacity_bytes),
                used=format_bytes(message.allocated_bytes),
            )
        )
    if message.free_bytes is not None:
        said.append(say("{free} was free.", free=format_bytes(message.free_bytes)))
    return said


def _need_evidence(need: MemoryNeed, capacity: float | None, batch: float | None) -> list[str]:
    said = []
    if need.model_bytes and need.parameters:
        values = {
            "parameters": format_count(need.parameters),
            "fixed": format_bytes(need.model_bytes),
            "bytes": int(need.model_bytes / need.parameters),
        }
        said.append(
            say(
                "{parameters} parameters need {fixed} whatever the batch ({bytes} bytes each), {share} of "
                "the card.",
                share=format_percent(need.model_bytes / capacity),
                **values,
            )
            if capacity
            else say(
                "{parameters} parameters need {fixed} whatever the batch ({bytes} bytes each).", **values
            )
        )
    if need.bytes_per_sequence and batch:
        said.append(
            say(
                "Each of the {batch} sequences of a micro-batch needs about {each} more.",
                batch=int(batch),
                each=format_bytes(need.bytes_per_sequence),
            )
        )
    return said


def _explanation(message: OomMessage, need: MemoryNeed, capacity: float | None) -> str:
    said = []
    if need.model_bytes and capacity and need.model_bytes > USABLE_MEMORY_SHARE * capacity:
        said.append(say("The model itself does not fit: no batch size helps."))
    else:
        said.append(
            say(
                "Weights, gradients and AdamW's two moments are always there; what the forward pass keeps "
                "for the backward pass grows with batch_size x block_size."
            )
        )
    others = _held_by_others(message)
    if others:
        said.append(say("Other processes held {bytes} of this card.", bytes=format_bytes(others)))
    return " ".join(said)


def _held_by_others(message: OomMessage) -> float:
    """Memory that neither this process nor nobody has; only where it is worth telling."""
    if not message.capacity_bytes or message.process_bytes is None or message.free_bytes is None:
        return 0.0
    left = message.capacity_bytes - message.process_bytes - message.free_bytes
    return left if left > 0.05 * message.capacity_bytes else 0.0


def _advice(history: RunLog, message: OomMessage, need: MemoryNeed, capacity: float | None) -> str:
    said = []
    if (
        message.reserved_unallocated_bytes
        and message.requested_bytes
        and message.reserved_unallocated_bytes > 2 * message.requested_bytes
        and message.reserved_unallocated_bytes > 2**28
    ):
        said.append(
            say(
                "{idle} was reserved but lay in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can "
                "give it back.",
                idle=format_bytes(message.reserved_unallocated_bytes),
            )
        )
    room = USABLE_MEMORY_SHARE * capacity - need.model_bytes if capacity and need.model_bytes else None
    batch = _model_dimension(history, "batch_size")
    if room is not None and room < (need.bytes_per_sequence or 0):
        said.append(_smaller_model_advice(history, need, capacity or 0.0))
    elif (
        room
        and need.bytes_per_sequence
        and batch
        and 1 < batch < MAX_BATCH_SIZE
        and takes_known_settings(history)
    ):
        said.append(_smaller_batch_advice(history, int(batch), int(room / need.bytes_per_sequence)))
    else:
        said.append(
            say(
                "Halve the micro-batch and double the accumulation: the update stays the same, and the "
                "activations need half the memory."
            )
        )
    return " ".join(said)


def _smaller_batch_advice(history: RunLog, batch: int, most: int) -> str:
    """The largest divisor of the batch that fits, and is smaller than what failed."""
    fits = max(part for part in range(1, min(batch, max(most, 1) + 1)) if batch % part == 0)
    steps = numeric_setting(history, "gradient_accumulation_steps") or 1
    return say(
        "batch_size={old} -> {new} should fit, and gradient_accumulation_steps={before} -> {after} keeps the "
        "tokens per iteration.",
        old=batch,
        new=fits,
        before=int(steps),
        after=int(steps) * (batch // fits),
    )


def _smaller_model_advice(history: RunLog, need: MemoryNeed, capacity: float) -> str:
    """What the card can hold, with one sequence of activations at a time."""
    bytes_each = (need.model_bytes or 0.0) / (need.parameters or 1)
    most = max(0.0, USABLE_MEMORY_SHARE * capacity - (need.bytes_per_sequence or 0.0)) / bytes_each
    said = [
        say(
            "This card holds at most about {most} parameters in training, at batch_size=1.",
            most=format_count(most),
        )
    ]
    layers = _layers_that_fit(history, capacity, bytes_each)
    if layers:
        said.append(
            say(
                "n_layer={old} -> {new} would fit so.",
                old=int(_model_dimension(history, "n_layer") or 0),
                new=layers,
            )
        )
    cards = math.ceil((need.model_bytes or 0.0) / (SHARDED_STATE_SHARE * capacity)) if capacity else 0
    if cards > 1:
        said.append(
            say(
                "Sharded over {cards} such cards (FSDP) it needs {each} on each, beside the activations.",
                cards=cards,
                each=format_bytes((need.model_bytes or 0.0) / cards),
            )
        )
    return " ".join(said)


def _layers_that_fit(history: RunLog, capacity: float, bytes_each: float) -> int | None:
    layers, width, context = (_model_dimension(history, name) for name in ("n_layer", "n_embd", "block_size"))
    vocabulary = _model_dimension(history, "vocab_size")
    if not layers or not width or not context or not vocabulary or layers > 1000:
        return None
    narrow = history.setup.settings.get("dtype") != "float32"
    kept = ACTIVATION_BYTES_PER_CHANNEL * (1 if narrow else 2) * width * context
    for fewer in range(int(layers) - 1, 0, -1):
        size = flops.count_parameters(
            vocab_size=int(vocabulary),
            block_size=int(context),
            n_layer=fewer,
            n_embd=int(width),
            arch="gpt2",
            bias=False,
        )
        if (
            size * bytes_each + fewer * kept + LOGIT_BYTES_PER_VOCAB_ENTRY * vocabulary * context
            < USABLE_MEMORY_SHARE * capacity
        ):
            return fewer
    return None
