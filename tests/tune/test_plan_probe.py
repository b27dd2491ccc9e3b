"""`glass plan --probe`: a few updates of the very run, and every way in which that fails."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch
from conftest import MakeConfig

from glassgpt.config import TrainConfig
from glassgpt.data.manifest import DatasetInfo
from glassgpt.estimate.machine_facts import facts_from_record
from glassgpt.estimate.measured_speed import ProbeResult, group_means
from glassgpt.isolate import SIGKILL, IsolatedProcess, ProcessDied, ProcessHung
from glassgpt.plan.dataset_info import find_dataset_info
from glassgpt.plan.planning import Plan, make_plan
from glassgpt.plan.target import PlanTarget
from glassgpt.tune import probe_updates
from glassgpt.tune.probe_updates import probe_run
from glassgpt.tune.trial_run import TrialUpdates
from glassgpt.tune.trial_runner import probe_plan
from glassgpt.tune.trial_server import TrialServer

CPU = PlanTarget("a CPU, 2 cores", "cpu", 8 * 2**30, {"float32": 1e11}, "measured", "no GPU found")


def answer_through_json(config: TrainConfig, seconds: float = 0.05) -> ProbeResult:
    """As it comes from the worker process."""
    made = json.loads(json.dumps(dataclasses.asdict(probe_run(config, seconds))))
    return ProbeResult(**made | {"update_s": tuple(made["update_s"])})


def plan(config: TrainConfig, probe: ProbeResult, target: PlanTarget = CPU) -> Plan:
    return make_plan(config, replace(target, probe=probe), find_dataset_info(config))


def test_a_probe_does_updates_evaluates_and_copies(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    run = TrialUpdates.run

    def counted(self: TrialUpdates, count: int) -> Any:
        done.append(count)
        return run(self, count)

    monkeypatch.setattr(TrialUpdates, "run", counted)
    config = tiny(gradient_accumulation_steps=2)
    probe = answer_through_json(config)
    assert probe.ran
    assert probe.micro_steps == 2
    assert probe.micro_batches == 2 * len(probe.update_s) >= 6
    assert sum(done) > len(probe.update_s) + 1  # some to warm up, and one beside the copy
    assert sum(probe.update_s) == pytest.approx(probe.timed_s, rel=0.5)
    assert probe.eval_tokens_per_s is not None
    assert probe.eval_tokens_per_s > 0
    assert probe.peak_bytes is not None
    assert probe.peak_bytes > 100 * 2**20  # of a process with torch
    assert probe.threads == torch.get_num_threads()
    assert facts_from_record(probe.facts)[0].device.device_type == "cpu"


def test_the_plan_is_of_what_was_measured(tiny: MakeConfig) -> None:
    config = tiny(gradient_accumulation_steps=2)
    probe = answer_through_json(config)
    made = plan(config, probe)
    assert made.measured is not None
    assert made.times is not None
    rates = [made.spec.batch.tokens / seconds for seconds in group_means(probe.update_s)]
    assert made.times.throughput.mid == pytest.approx(median(rates))
    assert made.times.start_s == probe.start_s
    assert made.times.updates_s[1] == pytest.approx(20 * made.spec.batch.tokens / made.times.throughput.mid)
    document = json.loads(json.dumps(made.as_dict()))
    assert document["memory"]["measured"] == probe.peak_bytes
    assert document["measured"]["source"] == "probe"
    assert document["probe"]["outcome"] == "ran"
    assert document["probe"]["micro_batches"] == probe.micro_batches


def test_running_out_of_memory_is_an_answer(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TrialUpdates, count: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(TrialUpdates, "run", fail)
    config = tiny()
    probe = answer_through_json(config)
    assert probe.outcome == "out of memory"
    assert "an update with 4 sequences at a time" in probe.why
    assert "2.00 GiB" in probe.why
    made = plan(config, probe)
    assert not made.fits
    assert made.measured is None
    assert made.problems[0].kind == "error"
    assert made.problems[0].fix.startswith("--batch_size=2 --gradient_accumulation_steps=2 ")
    assert made.times is not None  # as estimated


def test_main_memory_is_not_filled_to_find_out(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_updates, "available_memory_bytes", lambda: -(2**50))
    probe = answer_through_json(tiny())
    assert probe.outcome == "out of memory"
    assert "not tried" in probe.why


# --- the other process ---


class Answering(IsolatedProcess):
    """Answers or raises what it was made with."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.was_closed = answer, False

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert request["kind"] == "probe"
        json.dumps(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict(self.answer)

    def close(self) -> None:
        self.was_closed = True


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ProcessHung(""), "hung"),
        (ProcessDied(-SIGKILL), "out of memory"),
        (ProcessDied(1, "Segmentation fault"), "crashed"),
        ({"problems": ["--device=cuda is not available here"]}, "not here"),
        ({"outcome": "crashed", "why": "RuntimeError: on purpose"}, "crashed"),
        (dataclasses.asdict(ProbeResult("out of memory", "ran out of memory")), "out of memory"),
        (dataclasses.asdict(ProbeResult("ran", update_s=(1.0, 2.0), micro_steps=1)), "ran"),
    ],
)
def test_every_end_of_the_process_is_an_answer(answer: Any, outcome: str) -> None:
    process = Answering(answer)
    probe = probe_plan(TrainConfig(), lambda: process)
    assert probe.outcome == outcome
    assert process.was_closed
    assert probe.took_s >= 0
    assert probe.describe()


def test_the_worker_answers_for_a_config_that_cannot_be(tiny: MakeConfig) -> None:
    request = {"kind": "probe", "config": dataclasses.asdict(tiny(device="cuda")), "seconds": 0.1}
    if not torch.cuda.is_available():
        assert "cuda" in TrialServer().answer(request)["problems"][0]


def test_the_whole_way_through_a_process(tiny: MakeConfig) -> None:
    probe = probe_plan(tiny(threads=1))
    assert probe.ran, probe.why
    assert probe.threads == 1
    assert probe.timed_s > 2
    assert probe.took_s > probe.timed_s
    assert sys.modules["torch"] is torch


def test_a_dataset_that_is_not_there_is_replaced_by_random_tokens(here: Any) -> None:
    config = TrainConfig(
        dataset="nowhere", device="cpu", dtype="float32", n_layer=1, n_head=1, n_embd=8, block_size=8,
        batch_size=1, compile="off", probe_seconds=0.0,
    )  # fmt: skip
    probe = probe_run(config, 0.02)
    assert probe.ran
    info = find_dataset_info(config)
    assert isinstance(info, DatasetInfo)
    assert plan(config, answer_through_json(config)).measured is not None
