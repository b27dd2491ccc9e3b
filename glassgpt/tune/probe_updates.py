"""In the worker process: the probe of `glass plan --probe`, a few updates of the very run that is planned.

It decides as a run does, then does what a run does: updates, an evaluation batch, and an update beside the
copy that a checkpoint is written from. Time and memory are those of the run.
"""

from __future__ import annotations

import dataclasses
import time

import torch

from glassgpt.config import TrainConfig
from glassgpt.data.digests import HASHED_AT_ONCE, HASHED_PIECE_BYTES
from glassgpt.errors import error_type_and_message, is_out_of_memory
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.machine_facts import MachineFacts, facts_record
from glassgpt.estimate.measured_speed import ProbeResult, idle_speedup, work_key
from glassgpt.estimate.memory import estimate_memory
from glassgpt.estimate.overheads import arithmetic_s
from glassgpt.estimate.training_workload import checkpoint_bytes
from glassgpt.format import format_bytes
from glassgpt.record.machine import (
    available_memory_bytes,
    cores_used_by_others,
    peak_resident_bytes,
    process_age_s,
    read_cpu_times,
)
from glassgpt.training.compute_plan import execution_config, measure_and_decide, set_threads
from glassgpt.training.optimizers import optimizer_tensors
from glassgpt.training.probe import machine_facts, memory_now
from glassgpt.tune.results import update_seconds
from glassgpt.tune.speed_settings import trial_micro_steps
from glassgpt.tune.trial_run import (
    PeakMemory,
    TrialUpdates,
    prepare_trial_setup,
    setting_from_spec,
    time_updates,
)

_EVAL_BATCHES = 3  # timed
_WARM_UP_S = 1.0
# Main memory that a run's process has besides: console, journal, report. As measured on a CPU.
_RUN_PROCESS_BYTES = 25 * 2**20
_SLOW_UPDATE_S = 8.0  # of such updates one is timed, after one to warm up


def probe_run(config: TrainConfig, seconds: float) -> ProbeResult:
    """About `seconds` of timed updates."""
    stage = "setting up the model"
    try:
        setup = prepare_trial_setup(config, None)
        default_threads, busy_cores, origin = set_threads(config, setup.device, setup.origin)
        facts = dataclasses.replace(
            machine_facts(setup.device), default_threads=default_threads, busy_cores=busy_cores
        )
        spec, facts = measure_and_decide(config, facts, setup.data, origin, setup.device)
        if refusal := _too_large_for_main_memory(spec):
            return ProbeResult("out of memory", refusal, batch_size=spec.batch.batch_size)
        peak = None if setup.device.type == "cpu" else PeakMemory(setup.device)
        setting = setting_from_spec(spec)
        micro_steps = trial_micro_steps(spec.batch.micro_steps, _expected_micro_batch_s(spec, facts))
        updates = TrialUpdates(setup, execution_config(spec, setup.device), setting, micro_steps)
        stage = f"an update with {spec.batch.batch_size} sequences at a time"
        ready_s = process_age_s()
        first_s, usual_s = updates.warm_up(min(seconds / 2, _WARM_UP_S))
        before, begin = read_cpu_times(), time.perf_counter()
        is_slow = usual_s > _SLOW_UPDATE_S
        marks = updates.run(1) if is_slow else time_updates(updates.run, seconds, usual_s)
        timed_s, now = time.perf_counter() - begin, read_cpu_times()
        stage = "an evaluation"
        updates.evaluate()  # to warm up
        eval_tokens, eval_s = updates.evaluate(_EVAL_BATCHES)
        if spec.workload.has_checkpoint_copy:
            stage = "an update while a checkpoint is written"
            model = updates.learner.model
            optimizer_state = optimizer_tensors(model, updates.learner.optimizers).values()
            copies = [tensor.detach().clone() for tensor in (*model.parameters(), *optimizer_state)]
            updates.run(1)
            del copies
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        why = f"ran out of memory in {stage}: {error_type_and_message(error)[:200]}"
        return ProbeResult("out of memory", why)
    if updates.learner.fallbacks:
        what, why = next(iter(updates.learner.fallbacks.items()))
        return ProbeResult("crashed", f"could not use {what}: {why}"[:300])
    on_card = setup.device.type == "cuda"
    return ProbeResult(
        outcome="ran",
        update_s=tuple(update_seconds(marks, spec.batch.micro_steps)),
        micro_steps=micro_steps,
        timed_s=timed_s,
        eval_tokens_per_s=eval_tokens / eval_s,
        start_s=ready_s + max(0.0, first_s - usual_s),
        reserved_bytes=torch.cuda.max_memory_reserved(setup.device) if on_card else None,
        peak_bytes=_cpu_run_peak_bytes(spec) if peak is None else peak.peak_bytes(),
        busy_cores=cores_used_by_others(before, now),
        idle_speedup=idle_speedup(before, now),
        threads=None if on_card else torch.get_num_threads(),
        batch_size=spec.batch.batch_size,
        work=work_key(spec.workload),
        facts=facts_record(facts, setup.data, origin),
    )


def _cpu_run_peak_bytes(spec: RunSpec) -> int:
    """Since the process began: measuring the matmul peak may need more than a small model. A run also reads
    each checkpoint back, some pieces at a time."""
    read_back = min(checkpoint_bytes(spec.workload), HASHED_AT_ONCE * HASHED_PIECE_BYTES)
    return peak_resident_bytes() + _RUN_PROCESS_BYTES + read_back


def _expected_micro_batch_s(spec: RunSpec, facts: MachineFacts) -> float | None:
    peak = None if facts.peak is None else facts.peak.measured or facts.peak.value
    work = spec.workload
    if peak is None:
        return None
    return arithmetic_s(work.device_type, work.micro_batch_tokens, spec.flops_per_token, peak)


def _too_large_for_main_memory(spec: RunSpec) -> str:
    """A card refuses what does not fit. Main memory does not: the machine would swap, or kill a process."""
    if spec.workload.device_type != "cpu":
        return ""
    needed = estimate_memory(spec.workload).total_bytes
    free = available_memory_bytes() + memory_now("cpu")["rss"]
    if needed <= free:
        return ""
    return f"was not tried: it needs about {format_bytes(needed)}, and {format_bytes(free)} are free"
