"""A nanoGPT log as records of our journal; each has `imported`.

What the log does not have is omitted or null. Two values are derived, and the `run` record says so: the
learning rate, from the settings; the time of an evaluation, from the excess of its iteration.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glassgpt.config import Choice, TrainConfig
from glassgpt.data.dataset import Dataset
from glassgpt.estimate import flops
from glassgpt.estimate.batching import BatchPlan
from glassgpt.estimate.loss_law import bits_per_byte, perplexity
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model.gpt import GPTConfig
from glassgpt.record.journal import JOURNAL_VERSION, Record
from glassgpt.record.ledger import PHASES
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainers.nanogpt import TRAINER as NANOGPT
from glassgpt.schedule import learning_rate
from glassgpt.training.journal_records import data_fields, model_fields

IMPORT_SOURCE = "nanogpt"
_END_REASONS = {"finished": "finished", "interrupted": "interrupted", "crashed": "crashed", "oom": "crashed"}
NOT_FINISHED = "not finished"  # for an unknown reason
_UNKNOWN_PEAK = PeakFlops(measured_how="unknown: nanoGPT does not say which card it ran on")


@dataclass(frozen=True)
class NanogptRun:
    """A nanoGPT run, from its checkpoint, dataset and log."""

    run_dir: Path  # the new run's
    config: TrainConfig
    shape: GPTConfig
    plan: BatchPlan
    dataset: Dataset | None
    run_log: RunLog | None
    choices: list[Choice]
    saved_iter: int  # of its checkpoint
    val_loss: float | None  # of its checkpoint
    ended_at: float  # s since the epoch: last modification of its log or checkpoint


def journal_records(run: NanogptRun) -> list[Record]:
    """In the order of events, with `time` and `process`."""
    events = list(_event_records(run))
    spent_s = sum(sum(record.get("phases", {}).values()) for record in events) / 1000
    time = run.ended_at - spent_s
    process, records = 0, []
    for event in [_run_record(run), *events, _end_record(run, events)]:
        process += event["kind"] == "resume"
        time += sum(event.get("phases", {}).values()) / 1000
        records.append(
            {"kind": event["kind"], "time": time, "process": process, "imported": IMPORT_SOURCE} | event
        )
        if event["kind"] == "resume":  # each process begins with its `run` record
            records.insert(-1, records[0] | {"process": process, "time": time, "iter": event["iter"]})
    return records


# --- the first and the last record ---


def _run_record(run: NanogptRun) -> Record:
    data: Record = {"name": run.config.dataset}
    if run.dataset is not None:
        epochs = run.config.max_iters * run.plan.tokens / run.dataset.manifest.tokens["train"]
        data = data_fields(run.dataset) | {"epochs": epochs}
    return {
        "kind": "run",
        "journal_version": JOURNAL_VERSION,
        "iter": 0,
        "out_dir": str(run.run_dir),
        "config": dataclasses.asdict(run.config),
        "choices": [dataclasses.asdict(choice) for choice in run.choices],
        "model": model_fields(run.shape),
        "batch": dataclasses.asdict(run.plan),
        "peak": dataclasses.asdict(_UNKNOWN_PEAK) | {"value": None, "source": _UNKNOWN_PEAK.source},
        "data": data,
        "machine": {},
    }


def _end_record(run: NanogptRun, events: list[Record]) -> Record:
    val_evals = [event for event in events if event["kind"] == "eval" and event["split"] == "val"]
    best = min(val_evals, key=lambda event: _or_infinite(event["loss"]), default=None)
    if run.saved_iter >= run.config.max_iters:
        reason = "finished"
    else:
        exit_status = None if run.run_log is None else Analysis(run.run_log).exit_status
        reason = _END_REASONS.get(str(exit_status), NOT_FINISHED)
    end = {
        "kind": "end",
        "iter": max((event["iter"] for event in events), default=run.saved_iter),
        "reason": reason,
        "exit_code": 0 if reason == "finished" else None,
        "best_val_loss": math.inf if best is None else best["loss"],
        "best_iter": None if best is None else best["iter"],
        "last_checkpoint": str(run.run_dir / "checkpoints" / f"{run.saved_iter:08d}"),
    }
    if run.run_log is None:  # then the times are unknown
        return end
    ledger = dict.fromkeys(PHASES, 0.0)
    for event in events:
        for phase, ms in event.get("phases", {}).items():
            ledger[phase] += ms / 1000
    return end | {"ledger": ledger, "wall_s": sum(ledger.values())}


def _or_infinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


# --- the records between them ---


def _event_records(run: NanogptRun) -> Iterator[Record]:
    """Steps, evaluations, checkpoints and resumes, in order.

    nanoGPT's iteration 250 evaluates and saves after 250 updates, and then does its 251st.
    """
    run_log = run.run_log
    if run_log is None:
        if run.val_loss is not None:
            yield _eval_record(run, run.saved_iter, "val", run.val_loss, None, True)
        yield _checkpoint_record(run.saved_iter, True)
        return
    steps = list(_step_records(run, run_log))
    placed = steps + list(_eval_records(run, run_log, steps))
    for save in run_log.checkpoints:
        if save.iteration is not None:
            record = _checkpoint_record(save.iteration, save.iteration == run.saved_iter)
            placed.append((save.segment, save.iteration, 1, record))
    last_segment = 0
    for segment, *_, record in sorted(placed, key=lambda entry: entry[:3]):
        if segment != last_segment:
            last_segment = segment
            part = run_log.segments[segment]
            start = (part.first_iteration or 0) if part.resumed or part.first_iteration else -1
            yield {"kind": "resume", "iter": max(0, start), "from_iter": start, "complaints": []}
        yield record


PlacedRecord = tuple[int, int, int, Record]  # process, iteration of nanoGPT's, order within it, record


def _step_records(run: NanogptRun, run_log: RunLog) -> Iterator[PlacedRecord]:
    steps, analysis = run_log.steps, Analysis(run_log)
    is_first, includes_eval = run_log.is_first_of_process(), run_log.includes_eval()
    is_steady = run_log.is_steady()
    steady_ms, eval_ms = analysis.steady_ms, analysis.eval_overhead_ms or 0.0
    for index in range(len(steps)):
        iteration, ms = int(steps.iteration[index]), float(steps.ms[index])
        segment = int(steps.segment[index])
        phases = _split_into_phases(ms, steady_ms, bool(includes_eval[index]), bool(is_first[index]), eval_ms)
        if index > 0 and segment == int(steps.segment[index - 1]) and steady_ms is not None:
            # Iterations that log_interval skipped count as steady ones.
            phases["train"] += (iteration - int(steps.iteration[index - 1]) - 1) * steady_ms
        loss = float(steps.loss[index]) if steps.has_loss[index] else None
        tokens_per_s = run.plan.tokens / ms * 1000 if is_steady[index] and ms > 0 else None
        flops_per_token = flops.model_flops_per_token(run.shape, run.shape.vocab_size)
        yield segment, iteration, 2, {
            "kind": "step",
            "iter": iteration + 1,
            "loss": loss,
            "loss_mean": loss,
            "lr": learning_rate(run.config, iteration),
            "grad_norm": None,
            "clipped": None,
            "tokens": (iteration + 1) * run.plan.tokens,
            "updates": 1,
            "step_ms": ms if is_steady[index] else None,
            "first_update_ms": phases["compile"] + phases["train"] if is_first[index] else None,
            "phases": phases,
            "tokens_per_s": tokens_per_s,
            "flops_per_s": tokens_per_s and tokens_per_s * flops_per_token,
            "mfu": None,
            "memory": {},
            "eta_s": None,
        }  # fmt: skip


def _split_into_phases(
    ms: float, steady_ms: float | None, includes_eval: bool, is_first: bool, eval_ms: float
) -> dict[str, float]:
    """An iteration's time by phase. The excess over a steady one is evaluation, or start-up in the first."""
    phases = dict.fromkeys(PHASES, 0.0)
    if not math.isfinite(ms):
        phases["train"] = steady_ms or 0.0
        return phases
    phases["train"] = min(ms, steady_ms) if steady_ms is not None and (includes_eval or is_first) else ms
    extra = ms - phases["train"]
    if includes_eval:
        phases["eval"] = min(extra, eval_ms) if is_first else extra
    phases["compile"] = extra - phases["eval"]
    return phases


def _eval_records(run: NanogptRun, run_log: RunLog, steps: list[PlacedRecord]) -> Iterator[PlacedRecord]:
    """One per split. The time of both is in the record of the validation split."""
    eval_ms = {(segment, iteration): record["phases"]["eval"] for segment, iteration, _, record in steps}
    lowest = math.inf
    for evaluation in run_log.evals:
        segment, iteration, val_loss = evaluation.segment, evaluation.iteration, evaluation.val_loss
        if iteration is None or val_loss is None:
            continue
        best, lowest = val_loss < lowest, min(lowest, _or_infinite(val_loss))
        ms = eval_ms.get((segment, iteration))
        if evaluation.train_loss is not None:
            record = _eval_record(run, iteration, "train", evaluation.train_loss, 0.0, False)
            yield segment, iteration, 0, record
        yield segment, iteration, 0, _eval_record(run, iteration, "val", val_loss, ms, best)


def _eval_record(
    run: NanogptRun, iteration: int, split: str, loss: float, ms: float | None, best: bool
) -> Record:
    per_token = None if run.dataset is None else run.dataset.bytes_per_token(split)
    eval_iters = run.config.eval_iters or int(NANOGPT.defaults["eval_iters"])
    tokens = eval_iters * run.plan.batch_size * run.config.block_size
    return {
        "kind": "eval",
        "iter": iteration,
        "split": split,
        "loss": loss,
        "stderr": math.nan,
        "tokens": tokens,
        "whole_split": False,
        "closing": False,
        "best": best,
        "perplexity": perplexity(loss),
        "bits_per_byte": bits_per_byte(loss, per_token) if per_token else None,
        "ms": ms,
        "compile_ms": 0.0,
    }


def _checkpoint_record(iteration: int, kept: bool) -> Record:
    return {"kind": "checkpoint", "iter": iteration, "best": None, "kept": kept}
