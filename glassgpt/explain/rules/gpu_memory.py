"""Out of memory: what the message says, what the model needs, and what would have fitted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from glassgpt.estimate import flops
from glassgpt.explain.rule import Case, Finding
from glassgpt.format import count, percent, size
from glassgpt.i18n import say
from glassgpt.runs.run_log import Event, History
from glassgpt.runs.trajectory import setting, takes_known_settings

ADAMW_BYTES = 16  # per parameter, float32: the weight, its gradient, and AdamW's two moments
CAST_BYTES = 2  # per parameter: autocast's 16-bit copies, alive until the backward pass has used them
USABLE = 0.95  # of the card: the driver's context and the gaps between blocks take the rest
# Bytes that a block keeps for the backward pass, per token and channel, with 16-bit activations and flash
# attention (Korthikanti et al. 2022: 34 without the attention scores).
KEPT_PER_CHANNEL = 34
LOGIT_BYTES = 10  # per token and vocabulary entry: the logits, their float32 copy, its gradient

SHARDS = 0.7  # of a card, for its part of the model: activations and gathered layers need the rest
LARGEST_BATCH = 1e5  # whose divisors are looked for
LARGEST_SIDE = 1e8  # of a model: a larger number in a log is an error

_SIZE = r"([\d.]+)\s*([KMGT]i?B|bytes)"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "b": 1}


@dataclass(frozen=True)
class Message:
    """What torch says when it runs out, in bytes. None: not said."""

    tried: float | None
    capacity: float | None
    allocated: float | None  # in tensors
    idle: float | None  # reserved, but not allocated
    free: float | None
    in_use: float | None  # by this process


def read_message(text: str) -> Message:
    """New and old CUDA messages (`capacty` is torch 2.1's own), and those of MPS and the CPU."""
    reserved = _size(rf"{_SIZE} reserved in total", text)
    allocated = _size(rf"{_SIZE} is allocated by PyTorch", text) or _size(rf"{_SIZE} already allocated", text)
    idle = _size(rf"{_SIZE} is reserved by PyTorch but unallocated", text)
    if idle is None and reserved and allocated:
        idle = max(0.0, reserved - allocated)
    return Message(
        tried=_size(rf"tried to allocate {_SIZE}", text),
        capacity=_size(rf"total capaci?ty of {_SIZE}", text)
        or _size(rf"{_SIZE} total capacity", text)
        or _size(rf"max allowed: {_SIZE}", text),
        allocated=allocated or _size(rf"MPS allocated: {_SIZE}", text),
        idle=idle,
        free=_size(rf"of which {_SIZE} is free", text) or _size(rf"{_SIZE} free", text),
        in_use=_size(rf"this process has {_SIZE} memory in use", text),
    )


def _size(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text, re.IGNORECASE)
    if not match or match[1].count(".") > 1 or not match[1].strip("."):
        return None
    value = float(match[1]) * _UNITS["b" if match[2] == "bytes" else match[2][0].upper()]
    return value if math.isfinite(value) else None


# --- what the model needs ---


@dataclass(frozen=True)
class Need:
    """Bytes: of the model whatever the batch, and of each sequence in it. None: not known."""

    parameters: int | None
    fixed: float | None
    per_sequence: float | None


def need_of(history: History, message: Message) -> Need:
    setup = history.setup
    parameters = setup.trained_parameters or setup.parameters
    if not parameters or not history.trainer.keeps_float32_masters:
        return Need(parameters, None, None)
    narrow = setup.settings.get("dtype") != "float32"
    # Smaller micro-batches mean accumulation, so gradients are there during the forward pass as well.
    fixed = float(parameters) * (ADAMW_BYTES + (CAST_BYTES if narrow else 0))
    kept = [_kept_per_sequence(history, narrow)]
    batch = _sane(history, "batch_size")
    if batch and message.allocated:  # it failed on the way, so a sequence needs at least this
        kept.append((message.allocated - fixed) / batch)
    known = [value for value in kept if value is not None and value > 0]
    return Need(parameters, fixed, max(known, default=None))


def _sane(history: History, name: str) -> float | None:
    """A side of the model, if it is one that a model can have."""
    value = setting(history, name)
    return value if value is not None and 0 < value <= LARGEST_SIDE else None


def _kept_per_sequence(history: History, narrow: bool) -> float | None:
    layers, width = _sane(history, "n_layer"), _sane(history, "n_embd")
    context, vocabulary = _sane(history, "block_size"), _sane(history, "vocab_size") or 0.0
    if not layers or not width or not context:
        return None
    return context * (KEPT_PER_CHANNEL * (1 if narrow else 2) * layers * width + LOGIT_BYTES * vocabulary)


# --- the finding ---


def oom(case: Case) -> Finding | None:
    history = case.history
    later = history.events_of_next_start()
    events = [event for event in history.events if event.kind == "oom" and event not in later]
    if not events:
        return None
    messages = [read_message(event.text) for event in events]
    message = next((found for found in messages if found.tried or found.capacity), messages[0])
    need = need_of(history, message)
    capacity = message.capacity or history.setup.memory_bytes
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


def _went_on(history: History, event: Event, finished: bool) -> bool:
    """Iterations after it are no proof: a process that dies hands out last what it had still to print."""
    before = any(line < event.line for line in history.start_lines)
    again = any(event.line < line < history.last_step_line for line in history.start_lines)
    return event.line < history.last_step_line and (finished or (before and again))


def _evidence(message: Message, need: Need, capacity: float | None, history: History) -> str:
    said = [*_message_evidence(message), *_need_evidence(need, capacity, _sane(history, "batch_size"))]
    return " ".join(said) or say("The log says that memory ran out, and not how much there was.")


def _message_evidence(message: Message) -> list[str]:
    said = []
    if message.tried:
        said.append(say("It asked for {tried} more.", tried=size(message.tried)))
    if message.capacity and message.allocated:
        said.append(
            say(
                "Of {capacity}, {used} held tensors.",
                capacity=size(message.capacity),
                used=size(message.allocated),
            )
        )
    if message.free is not None:
        said.append(say("{free} was free.", free=size(message.free)))
    return said


def _need_evidence(need: Need, capacity: float | None, batch: float | None) -> list[str]:
    said = []
    if need.fixed and need.parameters:
        values = {
            "parameters": count(need.parameters),
            "fixed": size(need.fixed),
            "bytes": int(need.fixed / need.parameters),
        }
        said.append(
            say(
                "{parameters} parameters need {fixed} whatever the batch ({bytes} bytes each), {share} of "
                "the card.",
                share=percent(need.fixed / capacity),
                **values,
            )
            if capacity
            else say(
                "{parameters} parameters need {fixed} whatever the batch ({bytes} bytes each).", **values
            )
        )
    if need.per_sequence and batch:
        said.append(
            say(
                "Each of the {batch} sequences of a micro-batch needs about {each} more.",
                batch=int(batch),
                each=size(need.per_sequence),
            )
        )
    return said


def _explanation(message: Message, need: Need, capacity: float | None) -> str:
    said = []
    if need.fixed and capacity and need.fixed > USABLE * capacity:
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
        said.append(say("Other processes held {bytes} of this card.", bytes=size(others)))
    return " ".join(said)


def _held_by_others(message: Message) -> float:
    """Memory that neither this process nor nobody has; only where it is worth telling."""
    if not message.capacity or message.in_use is None or message.free is None:
        return 0.0
    left = message.capacity - message.in_use - message.free
    return left if left > 0.05 * message.capacity else 0.0


def _advice(history: History, message: Message, need: Need, capacity: float | None) -> str:
    said = []
    if message.idle and message.tried and message.idle > 2 * message.tried and message.idle > 2**28:
        said.append(
            say(
                "{idle} was reserved but lay in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can "
                "give it back.",
                idle=size(message.idle),
            )
        )
    room = USABLE * capacity - need.fixed if capacity and need.fixed else None
    batch = _sane(history, "batch_size")
    if room is not None and room < (need.per_sequence or 0):
        said.append(_smaller_model(history, need, capacity or 0.0))
    elif room and need.per_sequence and batch and 1 < batch < LARGEST_BATCH and takes_known_settings(history):
        said.append(_smaller_batch(history, int(batch), int(room / need.per_sequence)))
    else:
        said.append(
            say(
                "Halve the micro-batch and double the accumulation: the update stays the same, and the "
                "activations need half the memory."
            )
        )
    return " ".join(said)


def _smaller_batch(history: History, batch: int, most: int) -> str:
    """The largest divisor of the batch that fits, and is smaller than what failed."""
    fits = max(part for part in range(1, min(batch, max(most, 1) + 1)) if batch % part == 0)
    steps = setting(history, "gradient_accumulation_steps") or 1
    return say(
        "batch_size={old} -> {new} should fit, and gradient_accumulation_steps={before} -> {after} keeps the "
        "tokens per iteration.",
        old=batch,
        new=fits,
        before=int(steps),
        after=int(steps) * (batch // fits),
    )


def _smaller_model(history: History, need: Need, capacity: float) -> str:
    """What the card can hold, with one sequence of activations at a time."""
    bytes_each = (need.fixed or 0.0) / (need.parameters or 1)
    most = max(0.0, USABLE * capacity - (need.per_sequence or 0.0)) / bytes_each
    said = [
        say(
            "This card holds at most about {most} parameters in training, at batch_size=1.",
            most=count(most),
        )
    ]
    layers = _layers_that_fit(history, capacity, bytes_each)
    if layers:
        said.append(
            say("n_layer={old} -> {new} would fit so.", old=int(_sane(history, "n_layer") or 0), new=layers)
        )
    cards = math.ceil((need.fixed or 0.0) / (SHARDS * capacity)) if capacity else 0
    if cards > 1:
        said.append(
            say(
                "Sharded over {cards} such cards (FSDP) it needs {each} on each, beside the activations.",
                cards=cards,
                each=size((need.fixed or 0.0) / cards),
            )
        )
    return " ".join(said)


def _layers_that_fit(history: History, capacity: float, bytes_each: float) -> int | None:
    layers, width, context = (_sane(history, name) for name in ("n_layer", "n_embd", "block_size"))
    vocabulary = _sane(history, "vocab_size")
    if not layers or not width or not context or not vocabulary or layers > 1000:
        return None
    narrow = history.setup.settings.get("dtype") != "float32"
    kept = KEPT_PER_CHANNEL * (1 if narrow else 2) * width * context
    for fewer in range(int(layers) - 1, 0, -1):
        size = flops.parameters(
            vocab_size=int(vocabulary),
            block_size=int(context),
            n_layer=fewer,
            n_embd=int(width),
            arch="gpt2",
            bias=False,
        )
        if size * bytes_each + fewer * kept + LOGIT_BYTES * vocabulary * context < USABLE * capacity:
            return fewer
    return None
