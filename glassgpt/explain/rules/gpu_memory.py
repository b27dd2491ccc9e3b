"""Memory that ran out. On the card: what the message says, what the model needs, and what would have fitted.
On the host: the system killed a process, and no batch size would have helped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig
from glassgpt.estimate import memory
from glassgpt.estimate.memory_limits import AUTOMATIC_SHARE_OF_TOTAL
from glassgpt.estimate.training_workload import DTYPE_BYTES, TrainingWorkload
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.exit_status import training_end_line
from glassgpt.runs.run_log import LogEvent, RunLog
from glassgpt.runs.trajectory import (
    has_trained,
    numeric_setting,
    positive_int_setting,
    takes_known_settings,
)

SHARDED_STATE_SHARE = (
    0.7  # of a card, for its shard of the model: activations and gathered layers need the rest
)
MIN_OTHER_PROCESSES_SHARE = 0.05  # of the card: less is not mentioned
MIN_FRAGMENTED_BYTES = 2**28  # reserved but unallocated
MAX_BATCH_SIZE = 1e5  # whose divisors are tried
MAX_MODEL_DIMENSION = 1e8  # a larger number in a log is an error
MAX_SHOWN_LINES = 8  # of the log, with such errors: the last ones
MAX_QUOTED_CHARS = 120  # of the log line with the error
MAX_LAYERS = 1000  # of a model for which fewer layers are tried

# The kernel, a cgroup (SLURM, Docker, Kubernetes) killed a process: host memory, not the card's.
_HOST_KILL = re.compile(r"oom[-_]kill|cgroup|oom[-_ ]?killed|out of memory: kill", re.IGNORECASE)

# Functions of torch, Transformers, Accelerate and DeepSpeed that compute a batch.
_COMPUTING = {
    "forward", "_call_impl", "backward", "run_backward", "training_step", "train_step", "compute_loss",
    "generate",
}  # fmt: skip
# That load a model, move it to a card, or wrap it.
_LOADING = {
    "from_pretrained", "_load_pretrained_model", "load_state_dict", "_load_state_dict_into_model",
    "_load_state_dict_into_meta_model", "load_checkpoint_in_model", "_apply", "prepare", "prepare_model",
    "_prepare_deepspeed", "_configure_distributed_model", "_configure_optimizer",
    "_configure_zero_optimizer", "initialize_optimizer_states", "_sync_module_states",
    "_sync_params_and_buffers", "_ddp_init_helper", "_auto_wrap", "_recursive_wrap",
}  # fmt: skip

# A step of the optimizer, as torch's and others' functions of it are called; but not where it calls back to
# compute the batch (a closure). What is compiled in it has a `forward`, too.
_OPTIMIZER_STEP = re.compile(
    r"(?:^|_)(?:adam\w*|adafactor|adagrad|muon|sgd|lion|rmsprop|shampoo)(?:_|$)|_init_group|optimizer_step|_use_grad"
)
_COMPUTING_A_BATCH = _COMPUTING - {"forward", "_call_impl"} | {"closure"}

_SIZE = r"([\d.]+)\s*([KMGT]i?B|bytes)"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "b": 1}


@dataclass(frozen=True)
class OomMessage:
    """What torch reports when it runs out of memory, in bytes. None: not in the message."""

    requested_bytes: float | None
    capacity_bytes: float | None
    allocated_bytes: float | None  # in tensors
    reserved_unallocated_bytes: float | None
    free_bytes: float | None
    process_bytes: float | None  # of this process


def parse_oom_message(text: str) -> OomMessage:
    """New and old CUDA messages (`capacty` is torch 2.1's spelling), and those of MPS and the CPU."""
    reserved = _parse_size(rf"{_SIZE} reserved in total", text)
    allocated = _parse_size(rf"{_SIZE} is allocated by PyTorch", text) or _parse_size(
        rf"{_SIZE} already allocated", text
    )
    unallocated = _parse_size(rf"{_SIZE} is reserved by PyTorch but unallocated", text)
    if unallocated is None and reserved and allocated:
        unallocated = max(0.0, reserved - allocated)
    return OomMessage(
        requested_bytes=_parse_size(rf"tried to allocate {_SIZE}", text),
        capacity_bytes=_parse_size(rf"total capaci?ty of {_SIZE}", text)
        or _parse_size(rf"{_SIZE} total capacity", text)
        or _parse_size(rf"max allowed: {_SIZE}", text),
        allocated_bytes=allocated or _parse_size(rf"MPS allocated: {_SIZE}", text),
        reserved_unallocated_bytes=unallocated,
        free_bytes=_parse_size(rf"of which {_SIZE} is free", text) or _parse_size(rf"{_SIZE} free", text),
        process_bytes=_parse_size(rf"this process has {_SIZE} memory in use", text),
    )


def _parse_size(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text, re.IGNORECASE)
    if not match or match[1].count(".") > 1 or not match[1].strip("."):
        return None
    size_bytes = float(match[1]) * _UNITS["b" if match[2] == "bytes" else match[2][0].upper()]
    return size_bytes if math.isfinite(size_bytes) else None


# --- what the model needs ---


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of the model whatever the batch, and of each sequence in the batch. None: not known."""

    parameters: int | None = None
    model_bytes: float | None = None
    overhead_bytes: float = 0.0  # of the CUDA context and cuBLAS, whatever the model
    bytes_per_sequence: float | None = None
    workload: TrainingWorkload | None = None  # of one sequence

    def automatic_limit(self, capacity: float) -> float:
        """As `glass plan` fills a card."""
        return AUTOMATIC_SHARE_OF_TOTAL * capacity - self.overhead_bytes


def stated_workload(run_log: RunLog, parameters: int) -> TrainingWorkload:
    """One sequence at a time. Without a shape, or with an absurd one, activations are not counted."""
    settings = run_log.setup.settings
    n_layer, n_embd, block_size, n_head, vocab_size = (
        size if (size := positive_int_setting(run_log, name)) and size <= MAX_MODEL_DIMENSION else 0
        for name in ("n_layer", "n_embd", "block_size", "n_head", "vocab_size")
    )
    if not (n_layer and n_embd and block_size):
        n_layer = n_embd = block_size = 0
    config = TrainConfig(
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        block_size=block_size,
        dropout=numeric_setting(run_log, "dropout") or 0.0,
        bias=settings.get("bias") is True,
        arch="modern" if settings.get("arch") == "modern" else "gpt2",
    )
    dtype = str(settings.get("dtype"))
    return TrainingWorkload(
        config=config,
        vocab_size=vocab_size or 1,
        batch_size=1,
        micro_steps=2,  # smaller micro-batches mean accumulation: gradients are alive in the forward pass
        dtype=dtype if dtype in DTYPE_BYTES else "bfloat16",
        kernels=False,
        compiled=settings.get("compile", True) is True,
        chunked_loss=run_log.trainer.computes_loss_in_chunks,
        stated_parameters=parameters,
    )


def estimate_memory_need(analysis: Analysis, message: OomMessage) -> MemoryNeed:
    run_log, parameters = analysis.log, analysis.size.parameters
    if not parameters or not run_log.trainer.keeps_float32_masters:
        return MemoryNeed(parameters)
    workload, batch_size = stated_workload(run_log, parameters), positive_int_setting(run_log, "batch_size")
    model, batch = (
        memory.estimate_memory(replace(workload, batch_size=size)) for size in (0, batch_size or 1)
    )
    bytes_per_sequence = (batch.total_bytes - model.total_bytes) / (batch_size or 1)
    if batch_size and message.allocated_bytes:  # it failed on the way: a sequence needs at least this
        at_least = (message.allocated_bytes - model.allocated_bytes) / batch_size
        bytes_per_sequence = max(bytes_per_sequence, at_least)
    return MemoryNeed(
        parameters,
        model.total_bytes - model.overhead_bytes,
        model.overhead_bytes,
        bytes_per_sequence or None,
        workload,
    )


# --- the rule ---


def oom(analysis: Analysis) -> Finding | None:
    """Memory ran out: the sizes in torch's message, the bytes that the model needs, and what would fit."""
    run_log = analysis.log
    failed_start_events = run_log.events_of_failed_start()
    events = [event for event in run_log.events if event.kind == "oom" and event not in failed_start_events]
    # What comes after the line that training is over is another script's: see crashed_after_end.
    end = training_end_line(run_log)
    events = [event for event in events if end is None or event.line < end]
    if not events:
        return None
    if all(_HOST_KILL.search(event.text) for event in events):
        return _host_memory(analysis, events[-1])
    messages = [parse_oom_message(event.text) for event in events]
    message = next(
        (one for one in reversed(messages) if one.requested_bytes or one.capacity_bytes), messages[-1]
    )
    need, batch_size = estimate_memory_need(analysis, message), positive_int_setting(run_log, "batch_size")
    capacity = message.capacity_bytes or run_log.setup.memory_bytes
    if capacity is None and analysis.card and analysis.card.memory_gb:
        capacity = analysis.card.memory_gb * 2**30
    continued = _continued_after(analysis, events[-1].line)
    is_loading, is_stepping = _was_loading(events), False
    if is_loading:
        explanation = [say("oom.explanation.loading")]
    elif need.model_bytes and capacity and need.model_bytes > need.automatic_limit(capacity):
        explanation = [say("oom.explanation.model_too_large")]
    elif is_stepping := _was_stepping(events):
        explanation = [say("oom.explanation.optimizer_step")]
    else:
        explanation = [say("oom.explanation.what_takes_memory")]
    if message.capacity_bytes and message.process_bytes is not None and message.free_bytes is not None:
        other_bytes = message.capacity_bytes - message.process_bytes - message.free_bytes
        if other_bytes > MIN_OTHER_PROCESSES_SHARE * message.capacity_bytes:
            explanation.append(say("oom.explanation.other_processes", other_bytes=other_bytes))
    is_earlier = not len(run_log.steps) and analysis.facts.ended == "crashed"
    return make_finding(
        "oom",
        "advice" if is_earlier else "warning" if continued else "problem",
        title=say("oom.title.earlier_launch")
        if is_earlier
        else say("oom.title.continued")
        if continued
        else say("oom.title.ended"),
        evidence=_evidence(message, need, capacity),
        explanation=explanation,
        advice=say("oom.advice.loading")
        if is_loading
        else say("oom.advice.optimizer_step")
        if is_stepping
        else _advice(run_log, message, need, capacity),
        more=say(
            "oom.more.bytes_per_sequence", batch_size=batch_size, bytes_per_sequence=need.bytes_per_sequence
        )
        if need.bytes_per_sequence and batch_size
        else None,
        at=events[-1].iteration if run_log.has_iteration_numbers else None,
        lines=[one.line for one in events][-MAX_SHOWN_LINES:],
        claims={"how the run ended": "oom"} if analysis.facts.ended == "oom" else {},
    )


def _was_loading(events: Sequence[LogEvent]) -> bool:
    """Whether memory ran out before the first batch, by the innermost of these functions in the last
    traceback."""
    frames = next((event.frames for event in reversed(events) if event.frames), ())
    return next((one in _LOADING for one in reversed(frames) if one in _COMPUTING | _LOADING), False)


def _was_stepping(events: Sequence[LogEvent]) -> bool:
    """Whether the last of them with a known traceback is from the optimizer's step."""
    frames = next((event.frames for event in reversed(events) if event.frames), ())
    row = next((row for row in reversed(range(len(frames))) if _OPTIMIZER_STEP.search(frames[row])), None)
    return row is not None and _COMPUTING_A_BATCH.isdisjoint(frames[row:])


def _continued_after(analysis: Analysis, line: int) -> bool:
    """Iterations after the message are no proof that training continued: a dying process flushes its output
    late. A finished run is one, and so is a process that started in between."""
    starts, last_step_line = analysis.log.process_start_lines, analysis.log.last_step_line
    was_restarted = any(start < line for start in starts) and any(
        line < start < last_step_line for start in starts
    )
    return line < last_step_line and (analysis.facts.ended == "finished" or was_restarted)


def _host_memory(analysis: Analysis, event: LogEvent) -> Finding:
    """The system killed a process: of no batch, where the card does the work, and before any training."""
    run_log, continued = analysis.log, _continued_after(analysis, event.line)
    never_trained = not has_trained(run_log)
    evidence = [say("crashed.evidence.quoted_line", line=event.line, quoted=event.text[:MAX_QUOTED_CHARS])]
    if never_trained:
        title = say("oom.title.host_before_training")
        evidence.append(say("oom.evidence.never_trained"))
    else:
        title = say("oom.title.continued") if continued else say("oom.title.host")
    return make_finding(
        "oom",
        "warning" if continued else "problem",
        title=title,
        evidence=evidence,
        explanation=say("oom.explanation.host"),
        advice=say("oom.advice.host_loading") if never_trained else say("oom.advice.host"),
        at=event.iteration if run_log.has_iteration_numbers else None,
        lines=(event.line,),
        claims={"how the run ended": "oom"} if analysis.facts.ended == "oom" else {},
    )


def _evidence(message: OomMessage, need: MemoryNeed, capacity: float | None) -> list[Message]:
    evidence = []
    if message.requested_bytes:
        evidence.append(say("oom.evidence.tried_to_allocate", requested_bytes=message.requested_bytes))
    if message.capacity_bytes and message.allocated_bytes:
        evidence.append(
            say(
                "oom.evidence.tensors_used",
                allocated_bytes=message.allocated_bytes,
                capacity_bytes=message.capacity_bytes,
            )
        )
    elif message.free_bytes is not None:
        evidence.append(say("oom.evidence.free", free_bytes=message.free_bytes))
    if need.model_bytes and need.parameters:
        values = {
            "parameters": need.parameters,
            "model_bytes": need.model_bytes,
            "bytes_per_parameter": round(need.model_bytes / need.parameters),
        }
        evidence.append(
            say("oom.evidence.model_card_share", share_of_card=need.model_bytes / capacity, **values)
            if capacity
            else say("oom.evidence.model_bytes", **values)
        )
    return evidence or [say("oom.evidence.sizes_unknown")]


def _advice(run_log: RunLog, message: OomMessage, need: MemoryNeed, capacity: float | None) -> list[Message]:
    advice, free = [], message.free_bytes or 0.0
    fragmented_bytes, requested = message.reserved_unallocated_bytes or 0.0, message.requested_bytes
    # Alone it would hold the request twice, or with what is free once.
    would_fit = requested and (fragmented_bytes > 2 * requested or fragmented_bytes + free > requested)
    if would_fit and fragmented_bytes > MIN_FRAGMENTED_BYTES:
        advice.append(say("oom.advice.fragmented", fragmented_bytes=fragmented_bytes))
    room = need.automatic_limit(capacity) - need.model_bytes if capacity and need.model_bytes else None
    batch = positive_int_setting(run_log, "batch_size") or 0
    if room is not None and capacity and room < (need.bytes_per_sequence or 0):
        advice += _smaller_model_advice(need, capacity)
    elif room and need.bytes_per_sequence and 1 < batch < MAX_BATCH_SIZE and takes_known_settings(run_log):
        # The largest divisor of the batch that fits, and is smaller than the one that failed.
        max_fitting = int(room / need.bytes_per_sequence)
        new = max(size for size in range(1, min(batch, max(max_fitting, 1) + 1)) if batch % size == 0)
        accumulation = int(numeric_setting(run_log, "gradient_accumulation_steps") or 1)
        advice.append(
            say(
                "oom.advice.fitting_batch",
                batch_size=batch,
                new_batch_size=new,
                accumulation_steps=accumulation,
                new_accumulation_steps=accumulation * (batch // new),
            )
        )
    else:
        advice.append(say("oom.advice.halve_batch"))
    return advice


def _smaller_model_advice(need: MemoryNeed, capacity: float) -> list[Message]:
    """What the card can hold, with one sequence of activations at a time."""
    model_bytes = need.model_bytes or 0.0
    bytes_per_parameter = model_bytes / (need.parameters or 1)
    limit_bytes = need.automatic_limit(capacity)
    max_parameters = max(0.0, limit_bytes - (need.bytes_per_sequence or 0.0)) / bytes_per_parameter
    advice = [say("oom.advice.largest_model", max_parameters=max_parameters)]
    if need.workload and need.workload.vocab_size > 1 and need.workload.config.n_layer <= MAX_LAYERS:
        n_layer = need.workload.config.n_layer
        for layers in range(n_layer - 1, 0, -1):
            smaller = replace(need.workload, config=replace(need.workload.config, n_layer=layers))
            total_bytes = memory.estimate_memory(replace(smaller, stated_parameters=None)).total_bytes
            if total_bytes - need.overhead_bytes < limit_bytes:
                advice.append(say("oom.advice.fewer_layers", n_layer=n_layer, new_n_layer=layers))
                break
    cards = math.ceil(model_bytes / (SHARDED_STATE_SHARE * capacity))
    if cards > 1:
        advice.append(say("oom.advice.shard", cards=cards, bytes_per_card=model_bytes / cards))
    return advice
