"""A nanoGPT log as the records of our journal; each says `imported`.

What the log does not say is left out, or null. Two things are worked out from what it does say, and the
record `run` names them: the learning rate, from the settings; and what evaluations took, from how much longer
the iterations that hold them were.
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
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model.gpt import GPTConfig
from glassgpt.record.clock import PHASES
from glassgpt.record.journal import Record
from glassgpt.runs.exit_status import infer_exit_status
from glassgpt.runs.facts import compute_facts
from glassgpt.runs.run_log import LoggedEvaluation, RunLog
from glassgpt.schedule import learning_rate

IMPORT_SOURCE = "nanogpt"
_END_REASONS = {"finished": "finished", "interrupted": "interrupted", "crashed": "crashed", "oom": "crashed"}
NOT_FINISHED = "not finished"  # and nobody wrote down why
_UNKNOWN_PEAK = PeakFlops(measured_how="unknown: nanoGPT does not say which card it ran on")


@dataclass(frozen=True)
class NanogptRun:
    """What is known about a run of nanoGPT's."""

    run_dir: Path  # where it will be
    config: TrainConfig
    shape: GPTConfig
    plan: BatchPlan
    dataset: Dataset | None
    history: RunLog | None  # of its log
    choices: list[Choice]
    saved_iter: int  # of its checkpoint
    val_loss: float | None  # there
    ended_at: float  # s since the epoch: when its log, or its checkpoint, was last written to


def journal_records(told: NanogptRun) -> list[Record]:
    """In the order of events, with `time` and `process`."""
    lines = list(_event_records(told))
    spent_s = sum(sum(line.get("phases", {}).values()) for line in lines) / 1000
    now = told.ended_at - spent_s
    process, done = 0, []
    for line in [_run_record(told), *lines, _end_record(told, lines)]:
        process += line["kind"] == "resume"
        now += sum(line.get("phases", {}).values()) / 1000
        done.append({"kind": line["kind"], "time": now, "process": process, "imported": IMPORT_SOURCE} | line)
        if line["kind"] == "resume":  # whose process introduces itself first
            done.insert(-1, done[0] | {"process": process, "time": now, "iter": line["iter"]})
    return done


# --- the beginning and the end ---


def _run_record(told: NanogptRun) -> Record:
    shape, data = told.shape, told.dataset
    vocabulary = shape.vocab_size
    multiplied = flops.model_parameters(shape, vocabulary, lookups=False)
    model = {
        "parameters": flops.model_parameters(shape, vocabulary),
        "parameters_without_positions": flops.model_parameters(shape, vocabulary, positions=False),
        "parameters_multiplied": multiplied,
        "flops_per_token": flops.model_flops_per_token(shape, vocabulary),
        "flops_convention": flops.FLOPS_CONVENTION,
        "plain_flops_per_token": flops.six_n_flops_per_token(multiplied),
    }
    return {
        "kind": "run",
        "iter": 0,
        "out_dir": str(told.run_dir),
        "config": dataclasses.asdict(told.config),
        "choices": [dataclasses.asdict(choice) for choice in told.choices],
        "model": dataclasses.asdict(shape) | model,
        "batch": dataclasses.asdict(told.plan),
        "peak": dataclasses.asdict(_UNKNOWN_PEAK) | {"value": None, "source": _UNKNOWN_PEAK.source},
        "data": _data(told) if data is not None else {"name": told.config.dataset},
        "machine": {},
    }


def _data(told: NanogptRun) -> Record:
    assert told.dataset is not None
    manifest = told.dataset.manifest
    per_token = {split: told.dataset.bytes_per_token(split) for split in manifest.tokens}
    return {
        "name": manifest.name,
        "hash": told.dataset.hash,
        "tokenizer": manifest.tokenizer,
        "vocab_size": manifest.vocab_size,
        "tokens": dict(manifest.tokens),
        "bytes_per_token": {split: None if math.isnan(n) else n for split, n in per_token.items()},
        "epochs": told.config.max_iters * told.plan.tokens / manifest.tokens["train"],
    }


def _end_record(told: NanogptRun, lines: list[Record]) -> Record:
    ledger = dict.fromkeys(PHASES, 0.0)
    for line in lines:
        for phase, ms in line.get("phases", {}).items():
            ledger[phase] += ms / 1000
    evals = [line for line in lines if line["kind"] == "eval" and line["split"] == "val"]
    best = min(evals, key=lambda line: _or_infinite(line["loss"]), default=None)
    last = max((line["iter"] for line in lines), default=told.saved_iter)
    reason = _reason(told)
    end = {
        "kind": "end",
        "iter": last,
        "reason": reason,
        "exit_code": 0 if reason == "finished" else None,
        "best_val_loss": math.inf if best is None else best["loss"],
        "best_iter": None if best is None else best["iter"],
        "last_checkpoint": str(told.run_dir / "checkpoints" / f"{told.saved_iter:08d}"),
    }
    # Without a log nobody knows where the time went.
    return end if told.history is None else end | {"ledger": ledger, "wall_s": sum(ledger.values())}


def _or_infinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _reason(told: NanogptRun) -> str:
    if told.saved_iter >= told.config.max_iters:
        return "finished"
    ended = None if told.history is None else infer_exit_status(told.history)
    return _END_REASONS.get(str(ended), NOT_FINISHED)


# --- what happened in between ---


def _event_records(told: NanogptRun) -> Iterator[Record]:
    """nanoGPT's iteration 250 evaluates and saves after 250 updates, and then does its 251st."""
    if told.history is None:
        if told.val_loss is not None:
            yield _eval(told, told.saved_iter, "val", told.val_loss, None, True)
        yield _save(told.saved_iter, True)
        return
    steps = list(_steps(told, told.history))
    evals = list(_evals(told, told.history))
    saves = [
        (save.segment, save.iteration, 1, _save(save.iteration, save.iteration == told.saved_iter))
        for save in told.history.saves
        if save.iteration is not None
    ]
    before = 0
    for segment, *_, line in sorted([*steps, *evals, *saves], key=lambda entry: entry[:3]):
        if segment != before:
            before = segment
            part = told.history.segments[segment]
            start = (part.first_iteration or 0) if part.resumed or part.first_iteration else -1
            yield {"kind": "resume", "iter": max(0, start), "from_iter": start, "complaints": []}
        yield line


PlacedRecord = tuple[int, int, int, Record]  # process, iteration of nanoGPT's, order within it, record


def _steps(told: NanogptRun, history: RunLog) -> Iterator[PlacedRecord]:
    steps, facts = history.steps, compute_facts(history)
    first, holds, steady = history.is_first_of_process(), history.includes_eval(), history.is_steady()
    usual, evaluation = facts.steady_ms, facts.eval_overhead_ms or 0.0
    for at in range(len(steps)):
        number, ms = int(steps.iteration[at]), float(steps.ms[at])
        segment = int(steps.segment[at])
        new = at == 0 or segment != int(steps.segment[at - 1])
        unseen = 0 if new or usual is None else number - int(steps.iteration[at - 1]) - 1
        phases = _split_into_phases(ms, usual, bool(holds[at]), bool(first[at]), evaluation)
        phases["train"] += unseen * (usual or 0.0)
        speed = told.plan.tokens / ms * 1000 if steady[at] and ms > 0 else None
        yield segment, number, 2, {
            "kind": "step",
            "iter": number + 1,
            "loss": float(steps.loss[at]) if steps.has_loss[at] else None,
            "loss_mean": float(steps.loss[at]) if steps.has_loss[at] else None,
            "lr": learning_rate(told.config, number),
            "grad_norm": None,
            "clipped": None,
            "tokens": (number + 1) * told.plan.tokens,
            "updates": 1,
            "step_ms": ms if steady[at] else None,
            "first_update_ms": phases["compile"] + phases["train"] if first[at] else None,
            "phases": phases,
            "tokens_per_s": speed,
            "flops_per_s": speed and speed * flops.model_flops_per_token(told.shape, told.shape.vocab_size),
            "mfu": None,
            "memory": {},
            "eta_s": None,
        }  # fmt: skip


def _split_into_phases(
    ms: float, usual: float | None, holds: bool, first: bool, evaluation: float
) -> dict[str, float]:
    """An iteration's time by phase: beyond a usual one it is evaluation, and in the first one start-up."""
    phases = dict.fromkeys(PHASES, 0.0)
    if not math.isfinite(ms):
        phases["train"] = usual or 0.0
        return phases
    phases["train"] = min(ms, usual) if usual is not None and (holds or first) else ms
    beyond = ms - phases["train"]
    phases["eval"] = (min(beyond, evaluation) if first else beyond) if holds else 0.0
    phases["compile"] = beyond - phases["eval"]
    return phases


def _evals(told: NanogptRun, history: RunLog) -> Iterator[PlacedRecord]:
    spent = {(segment, number): line["phases"]["eval"] for segment, number, _, line in _steps(told, history)}
    lowest = math.inf
    for done in history.evals:
        if done.iteration is None or done.val_loss is None:
            continue
        best, lowest = done.val_loss < lowest, min(lowest, _or_infinite(done.val_loss))
        ms = spent.get((done.segment, done.iteration))
        yield from _eval_records(told, done, ms, best)


def _eval_records(
    told: NanogptRun, done: LoggedEvaluation, ms: float | None, best: bool
) -> Iterator[PlacedRecord]:
    """The time of both is said once, with the validation split."""
    number, val_loss = done.iteration, done.val_loss
    assert number is not None
    assert val_loss is not None
    if done.train_loss is not None:
        yield done.segment, number, 0, _eval(told, number, "train", done.train_loss, 0.0, False)
    yield done.segment, number, 0, _eval(told, number, "val", val_loss, ms, best)


def _eval(told: NanogptRun, number: int, split: str, loss: float, ms: float | None, best: bool) -> Record:
    per_token = None if told.dataset is None else told.dataset.bytes_per_token(split)
    known = per_token is not None and not math.isnan(per_token)
    tokens = (told.config.eval_iters or 200) * told.plan.batch_size * told.config.block_size
    return {
        "kind": "eval",
        "iter": number,
        "split": split,
        "loss": loss,
        "stderr": math.nan,
        "tokens": tokens,
        "whole_split": False,
        "closing": False,
        "best": best,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_byte": loss / math.log(2) / per_token if known and per_token else None,
        "ms": ms,
        "compile_ms": 0.0,
    }


def _save(number: int, kept: bool) -> Record:
    return {"kind": "checkpoint", "iter": number, "best": None, "kept": kept}
