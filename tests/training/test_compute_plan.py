"""The compute plan: what only the device can answer. The rules are in estimate/decide.py."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import MakeConfig, choices, records, resume

from glassgpt.config import TrainConfig
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError
from glassgpt.estimate.decide import RunSpec, choose_compile, choose_kernels, decide
from glassgpt.estimate.machine_facts import DeviceTraits, MachineFacts, Origin, facts_from_record
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model import float8
from glassgpt.plan.planned_spec import make_run_spec
from glassgpt.plan.target import PlanTarget
from glassgpt.training import probe
from glassgpt.training.compute_plan import execution_config, mark_kernels_built, measure_and_decide
from glassgpt.training.device import device_traits
from glassgpt.training.session import train

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TEXT = DatasetInfo("mine", 10**6, 10**5, 50257, "gpt2", 4.5, "")


def measured(
    device: torch.device = CUDA, data: DatasetInfo = TEXT, origin: Origin | None = None, **settings: Any
) -> tuple[RunSpec, MachineFacts]:
    """With a peak that is not known, and memory that is not limited."""
    facts = MachineFacts(device_traits(device), "H200", peak=PeakFlops())
    return measure_and_decide(TrainConfig(**settings), facts, data, origin or Origin(), device)


def test_a_card_is_asked_what_it_can_build(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    def compiling() -> str:
        return choose_compile(TrainConfig(), device_traits(CUDA), 1e3, kernels=False).reason

    card(6, 1)
    assert "too old" in compiling()
    card(9, 0)
    assert choose_kernels(TrainConfig(), device_traits(CUDA)).value == "triton"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C compiler" in compiling()
    assert choose_kernels(TrainConfig(), device_traits(CUDA)).value == "plain"


def test_attention_is_tried_where_it_is_asked_for() -> None:
    def chosen(**settings: Any) -> Any:
        return measured(CPU, **settings)[0].workload.attention

    for dtype in ("float32", "bfloat16"):
        with pytest.raises(
            UserError, match=rf"--attention=cudnn cannot do heads of 64 channels in {dtype} on cpu"
        ):
            chosen(attention="cudnn", dtype=dtype)
    assert chosen() == "sdpa"
    assert chosen(attention="manual") == "manual"


def test_one_slow_round_does_not_decide_about_attention(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    """In ms. `efficient` is out of the question here."""
    rounds = {"flash": [2.0, 2.0, 2.0], "cudnn": [3.0, 1.5, 1.5]}
    left = {kernel: list(times) for kernel, times in rounds.items()}

    def timed(qkv: torch.Tensor, dropout: float, kernel: str) -> float:
        if kernel not in left:
            raise RuntimeError("no kernel for this shape")
        return left[kernel].pop(0) / 1000

    card(8, 9)
    monkeypatch.setattr(probe, "_attention_time", timed)
    monkeypatch.setattr(torch, "randn", lambda shape, **settings: torch.empty(0))
    spec, facts = measured(max_iters=10**6)
    assert spec.workload.attention == "cudnn"
    assert facts.attention_s == {"flash": 0.002, "cudnn": 0.0015}
    assert not any(left.values())


def test_8_bit_floats_are_refused_where_they_cannot_be(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    def problems(device: torch.device, **settings: Any) -> str:
        with pytest.raises(UserError) as raised:
            measured(device, fp8=True, max_iters=1, **settings)
        return str(raised.value)

    assert "needs a card with 8-bit floats" in problems(CPU)
    card(9, 0)
    assert "needs the Triton kernels" in problems(CUDA, compile="on")
    monkeypatch.setattr(float8, "is_float8_kernel_correct", lambda device: False)
    assert "computes wrongly" in problems(CUDA)


def test_float16_is_refused_with_shards(card: Any) -> None:
    card(7, 5)
    facts = MachineFacts(device_traits(CUDA), "T4", ranks=2, is_launched=True)
    with pytest.raises(UserError, match="--shard=True needs --dtype=float32 on this card"):
        measure_and_decide(TrainConfig(shard=True), facts, TEXT, Origin(), CUDA)


def test_a_head_that_does_not_fit_8_bits_is_told(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    """GPT-2's own vocabulary is no multiple of 16, which finetuning it in 8 bits must live with."""
    card(9, 0)
    monkeypatch.setattr(float8, "is_float8_kernel_correct", lambda device: True)
    settings: dict[str, Any] = {"fp8": True, "max_iters": 10}
    assert "head" not in measured(**settings)[0].reason("fp8")
    of_gpt2 = measured(origin=Origin(vocab_size=50257), **settings)[0].reason("fp8")
    assert re.search(r"head in bfloat16, .*\b50257\b.*\b16$", of_gpt2)


def test_on_a_cpu_only_what_there_is_to_choose_is_told() -> None:
    spec, _ = measured(CPU, max_iters=10, activation="gelu")
    assert [choice.name for choice in spec.choices] == [
        "dtype", "vocab_size", "batch_tokens", "compile", "attention",
    ]  # fmt: skip
    execution = execution_config(spec, CPU)
    decided = (execution.kernels, execution.graph, execution.data_on_card, execution.compile)
    assert decided == (False, False, False, False)


def test_kernels_that_were_built_before_are_taken_for_shorter_runs(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card(9, 0)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def chosen(**settings: Any) -> tuple[RunSpec, MachineFacts]:
        return measured(max_iters=50, graph="off", **settings)

    spec, facts = chosen()
    assert not spec.workload.kernels
    execution = dataclasses.replace(execution_config(spec, CUDA), kernels=True)
    compute: Any = SimpleNamespace(execution=execution, spec=spec, facts=facts)
    mark_kernels_built(compute, {"kernels": "no compiler"})
    assert not chosen()[0].workload.kernels  # building them failed
    mark_kernels_built(compute, {})
    assert chosen()[0].workload.kernels
    assert not chosen(dtype="float16")[0].workload.kernels


def test_a_marker_is_of_all_that_kernels_are_specialised_on(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card(9, 0)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def marker(name: str = "H200", vocab_size: int = 65, **settings: Any) -> Path:
        data = dataclasses.replace(TEXT, vocab_size=vocab_size)
        spec = decide(TrainConfig(**settings), MachineFacts(device_traits(CUDA)), data)
        return probe.kernel_cache_marker(spec, name)

    others = [marker("A100"), marker(vocab_size=96), marker(dtype="float16"), marker(n_embd=1536)]
    markers = {marker(), *others, marker(arch="modern"), marker(block_size=1023)}
    assert len(markers) == 7
    assert {path.parent for path in markers} == {tmp_path}  # who empties Triton's cache removes them too
    assert marker(max_iters=9, learning_rate=1.0, n_layer=3, batch_size=2) == marker()
    monkeypatch.setattr("importlib.metadata.version", lambda package: "9.9")
    assert marker() not in markers


# --- the same facts, the same choices ---


@pytest.mark.parametrize("settings", [{}, {"batch_tokens": 512, "batch_size": None, "arch": "modern"}])
def test_a_journal_has_the_facts_of_its_choices(tiny: MakeConfig, settings: dict[str, Any]) -> None:
    train(tiny("run", max_iters=2, **settings))
    resume(tiny("run", max_iters=3, **settings))
    for record in records(tiny("run").out_dir, "run"):
        spec = decide(TrainConfig(**record["config"]), *facts_from_record(record["facts"]))
        written = [choice for choice in record["choices"] if choice["name"] in {c.name for c in spec.choices}]
        assert written == [dataclasses.asdict(choice) for choice in spec.choices]
        assert record["batch"] == dataclasses.asdict(spec.batch)
        assert spec.unknown == ()


@dataclasses.dataclass(frozen=True)
class KnownTarget(PlanTarget):
    """A machine that `glass plan` knows as well as a run does."""

    known: MachineFacts = dataclasses.field(kw_only=True)

    @property
    def traits(self) -> DeviceTraits:
        return self.known.device

    def facts(self, dtype: str) -> MachineFacts:
        return self.known


def test_a_plan_with_the_facts_of_a_run_chooses_as_the_run(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(probe, "attention_times", lambda *_: {"flash": 0.002, "cudnn": 0.001})
    machines: list[tuple[torch.device, tuple[int, int], int | None]] = [
        (CPU, (0, 0), None), (CUDA, (6, 1), 8), (CUDA, (7, 5), 16), (CUDA, (9, 0), 80),
    ]  # fmt: skip
    runs: list[dict[str, Any]] = [
        {}, {"max_iters": 10**6, "batch_tokens": 2**19}, {"arch": "modern", "n_layer": 2, "n_embd": 64},
        {"max_iters": 20, "compile": "on"}, {"batch_tokens": 2**18, "dtype": "float32", "eval_only": True},
    ]  # fmt: skip
    seen = set()
    for device, capability, gib in machines:
        card(*capability)
        facts = MachineFacts(
            device_traits(device),
            memory_bytes=(gib or 16) * 2**30,
            free_bytes=None if gib is None else gib * 2**30,
            peak=PeakFlops(1e14),
        )
        for settings in runs:
            config = TrainConfig(**settings)
            spec, complete = measure_and_decide(config, facts, TEXT, Origin(), device)
            target = KnownTarget("this one", device.type, 0, {}, "", "found here", known=complete)
            plan = make_run_spec(config, target, TEXT)
            assert (plan.workload, plan.batch, plan.choices) == (spec.workload, spec.batch, spec.choices)
            seen.add(
                (plan.workload.dtype, plan.workload.kernels, plan.workload.graph, plan.workload.attention)
            )
    assert len(seen) > 5


# --- threads ---


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As PyTorch decides by itself on two cores."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_a_busy_core_takes_a_thread_and_a_resume_keeps_the_count(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    def threads_of(name: str) -> int:
        return int(records(tiny(name).out_dir, "run")[-1]["machine"]["cpu"]["torch_threads"])

    for name, busy, threads in (("quiet", 0.2, 2), ("busy", 1.2, 1), ("full", 20.0, 1)):
        monkeypatch.setattr("glassgpt.training.compute_plan.measure_busy_cores", lambda busy=busy: busy)
        train(tiny(name, max_iters=1))
        assert threads_of(name) == threads
        assert ("threads" in choices(tiny(name).out_dir)) == (threads == 1)
        assert torch.get_num_threads() == 2  # it was for that run

    resume(tiny("quiet", max_iters=2))  # while 20 cores' worth of work is waiting
    assert threads_of("quiet") == 2
    value, reason = choices(tiny("quiet").out_dir)["threads"]
    assert value == 2
    assert "--threads=1" in reason
    resume(tiny("quiet", max_iters=3, threads=1))
    assert threads_of("quiet") == 1

    monkeypatch.setattr("glassgpt.training.compute_plan.measure_busy_cores", lambda: 0.0)
    resume(tiny("busy", max_iters=2))
    assert threads_of("busy") == 1
