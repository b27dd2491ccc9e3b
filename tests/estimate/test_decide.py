"""What a device's traits decide: the rules that trainer and plan both ask."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from glassgpt.config import TrainConfig
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError
from glassgpt.estimate.decide import (
    choose_attention,
    choose_compile,
    choose_data_place,
    choose_dtype,
    choose_graph,
    choose_kernels,
    choose_threads,
    decide,
    float8_problems,
    has_float8,
    refused_settings,
)
from glassgpt.estimate.machine_facts import (
    DeviceTraits,
    MachineFacts,
    Origin,
    facts_from_record,
    facts_record,
    find_missing_toolchain,
)
from glassgpt.estimate.peak import PeakFlops
from glassgpt.estimate.training_workload import TrainingWorkload

CPU, MPS, H100 = DeviceTraits("cpu"), DeviceTraits("mps"), DeviceTraits("cuda", (9, 0))
ADA = DeviceTraits("cuda", (8, 9))


def test_no_rule_needs_torch() -> None:
    code = "import sys, glassgpt.estimate.decide; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- compile ---


def compiling(on: DeviceTraits = CPU, step_s: float | None = 1.0, **settings: Any) -> tuple[Any, str]:
    choice = choose_compile(TrainConfig(**settings), on, step_s, kernels=False)
    assert choice.name == "compile"
    return choice.value, choice.reason


def test_what_is_asked_for_is_done() -> None:
    on = DeviceTraits("cpu", missing_toolchain="no compiler")
    assert compiling(on, compile="on") == ("on", "asked for")
    assert compiling(on, compile="off") == ("off", "asked for")


def test_what_is_missing_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C++" in str(find_missing_toolchain("cpu"))
    assert re.search(r"\bC compiler\b", str(find_missing_toolchain("cuda")))
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-compiler" else None)
    assert find_missing_toolchain("cpu") is None
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert str(find_missing_toolchain("cuda")).startswith("triton ")


def test_what_cannot_be_built_is_not_compiled() -> None:
    lacks = "no compiler"
    assert compiling(DeviceTraits("cpu", missing_toolchain=lacks)) == ("off", lacks)
    assert compiling(DeviceTraits("cuda", (8, 0), missing_toolchain=lacks)) == ("off", lacks)
    verdict, reason = compiling(DeviceTraits("cuda", (6, 1)))
    assert (verdict, "triton" in reason) == ("off", True)
    assert compiling(MPS)[0] == "off"
    assert compiling(n_layer=2)[0] == "on"


def test_compiling_has_to_pay() -> None:
    verdict, reason = compiling(n_layer=2, max_iters=1_000_000, step_s=0.1)
    assert verdict == "on"
    assert "100 ms" in reason
    break_even = int(reason.rpartition("update ")[2].replace(",", ""))
    # The figure in the sentence is the very point where the verdict turns.
    assert compiling(n_layer=2, max_iters=break_even - 1, step_s=0.1)[0] == "off"
    assert compiling(n_layer=2, max_iters=break_even + 1, step_s=0.1)[0] == "on"
    assert compiling(step_s=None)[0] == "off"
    assert "no estimate" in compiling(step_s=None)[1]
    assert compiling(eval_only=True)[0] == "off"
    assert "one evaluation" in compiling(eval_only=True)[1]


def test_kernels_of_our_own_make_compiling_needless() -> None:
    assert choose_compile(TrainConfig(), H100, 1.0, kernels=True).value == "off"
    assert choose_compile(TrainConfig(compile="on"), H100, 1.0, kernels=True).value == "on"


# --- kernels and graphs ---


def test_our_kernels_are_for_cuda() -> None:
    assert choose_kernels(TrainConfig(), CPU).value == "plain"
    with pytest.raises(UserError, match="--kernels=triton is not possible here: the Triton kernels"):
        choose_kernels(TrainConfig(kernels="triton"), CPU)


def test_kernels_weigh_seconds_saved_against_seconds_of_building() -> None:
    """On an H200, where 124M for 100 updates and a modern 350M for 120 lost by plain kernels."""
    h200 = DeviceTraits("cuda", (9, 0), bandwidth_bytes_per_s=4.8e12)

    def chosen(updates: int, built: bool = False, **settings: Any) -> Any:
        return choose_kernels(TrainConfig(max_iters=updates, **settings), h200, built=built).value

    gpt2: dict[str, Any] = {"batch_size": 64}
    modern: dict[str, Any] = {"n_layer": 24, "n_embd": 1024, "n_head": 16, "batch_size": 20, "arch": "modern"}
    assert chosen(100, **gpt2) == chosen(120, **modern) == "triton"
    assert chosen(40, **gpt2) == chosen(30, **modern) == "plain"
    # Built before, they only have to be loaded.
    assert chosen(20, built=True, **gpt2) == chosen(15, built=True, **modern) == "triton"
    assert chosen(10, built=True, **gpt2) == "plain"
    # Many cards share an update: each of them saves less.
    shared = TrainConfig(max_iters=50, batch_size=64, gradient_accumulation_steps=2)
    assert choose_kernels(shared, h200).value == choose_kernels(shared, h200, ranks=2).value == "triton"
    assert choose_kernels(shared, h200, ranks=4).value == "plain"


def test_our_kernels_must_be_worth_building_and_can_be_built() -> None:
    def chosen(updates: int, on: DeviceTraits = H100, **settings: Any) -> Any:
        return choose_kernels(TrainConfig(n_layer=6, max_iters=updates, **settings), on).value

    assert chosen(20) == "plain"
    assert chosen(600) == chosen(1, kernels="triton") == chosen(100, fp8=True) == "triton"
    assert chosen(600, kernels="plain") == chosen(600, compile="on") == chosen(600, eval_only=True) == "plain"
    assert chosen(600, DeviceTraits("cuda", (9, 0), missing_toolchain="no compiler")) == "plain"
    assert chosen(600, DeviceTraits("cuda", (6, 1))) == "plain"
    assert chosen(600, DeviceTraits("cuda")) == "triton"  # nobody knows the card's capability: as most cards


def micro_batch(config: TrainConfig, dtype: str = "float32", compiled: bool = False) -> TrainingWorkload:
    return TrainingWorkload(config=config, vocab_size=64, batch_size=1, dtype=dtype, compiled=compiled)


def test_a_graph_where_launching_takes_longer_than_computing() -> None:
    def chosen(computing_s: float, dtype: str = "bfloat16", compiled: bool = False, **settings: Any) -> Any:
        work = micro_batch(TrainConfig(**settings), dtype=dtype, compiled=compiled)
        return choose_graph(H100, work, computing_s, launch_s=0.014).value

    assert chosen(0.004) == chosen(0.2) == "on"
    assert chosen(0.2, max_iters=50) == "off"
    assert chosen(0.004, max_iters=50) == "on"
    assert chosen(0.004, activation_checkpointing=True) == "on"
    assert chosen(0.004, activation_checkpointing=True, dropout=0.1) == "off"
    assert chosen(0.2, graph="on") == "on"
    assert chosen(0.004, graph="off") == chosen(0.004, "float16") == chosen(0.004, compiled=True) == "off"
    assert chosen(0.004, eval_only=True) == "off"
    assert choose_graph(CPU, micro_batch(TrainConfig()), 0.004, 0.014).value == "off"
    with pytest.raises(UserError, match="--graph=on is for CUDA cards"):
        choose_graph(CPU, micro_batch(TrainConfig(graph="on")), 0.004, 0.014)


def test_what_is_refused_is_what_the_rules_raise_for() -> None:
    def raises(on: DeviceTraits, config: TrainConfig) -> bool:
        try:
            choose_kernels(config, on)
            choose_graph(on, micro_batch(config), 0.1, 0.1)
        except UserError:
            return True
        return False

    for on in (CPU, MPS, H100, DeviceTraits("cuda", (6, 1))):
        for config in (TrainConfig(), TrainConfig(kernels="triton"), TrainConfig(graph="on")):
            assert raises(on, config) == bool(refused_settings(config, on))


# --- dtype ---


def test_the_card_decides_the_dtype() -> None:
    def chosen(capability: tuple[int, int] | None) -> tuple[Any, list[str]]:
        choice = choose_dtype("auto", DeviceTraits("cuda", capability))
        return choice.value, re.findall(r"\b\d+\.\d|bfloat16|loss scaling", choice.reason)

    assert chosen((7, 5)) == ("float16", ["7.5", "bfloat16", "loss scaling"])
    assert chosen((8, 0)) == ("bfloat16", ["8.0", "loss scaling"])
    assert chosen((12, 0)) == ("bfloat16", ["12.0", "loss scaling"])
    assert chosen(None)[0] == "bfloat16"


def test_without_tensor_cores_nothing_is_gained() -> None:
    choice = choose_dtype("auto", DeviceTraits("cuda", (7, 5), has_tensor_cores=False))
    assert choice.value == "float32"
    assert "tensor cores" in choice.reason
    assert choose_dtype("float16", DeviceTraits("cuda", (7, 5), has_tensor_cores=False)).value == "float16"


def test_what_is_asked_for_is_remarked_on() -> None:
    assert "emulates" in choose_dtype("bfloat16", DeviceTraits("cuda", (7, 5))).reason
    assert "TF32" in choose_dtype("float32", H100).reason
    assert choose_dtype("float32", DeviceTraits("cuda")).reason == "asked for"
    assert choose_dtype("float16", CPU).value == "bfloat16"
    assert choose_dtype("auto", MPS, 768).value == "float32"


def test_a_cpu_computes_in_bfloat16_where_that_is_fast() -> None:
    fast = DeviceTraits("cpu", has_fast_bfloat16=True)
    assert choose_dtype("auto", fast, 64).value == "bfloat16"
    assert choose_dtype("auto", fast, 63).value == choose_dtype("auto", fast).value == "float32"
    assert choose_dtype("auto", CPU, 64).value == "float32"


# --- the rest ---


def test_attention_is_fused_unless_asked_or_slow() -> None:
    def chosen(on: DeviceTraits, dtype: str, run_s: float, **settings: Any) -> Any:
        choice = choose_attention(TrainConfig(**settings), on, dtype, run_s)
        return None if choice is None else choice.value

    assert chosen(CPU, "float32", 1e6) == "sdpa"
    assert chosen(CPU, "float32", 1e6, attention="manual") == "manual"
    assert chosen(CPU, "bfloat16", 1e6, block_size=256) == "sdpa"
    assert chosen(CPU, "bfloat16", 1e6, block_size=257) == "sdpa"
    assert chosen(ADA, "bfloat16", 59) == chosen(ADA, "float32", 61) == chosen(H100, "float32", 61) == "sdpa"
    assert chosen(ADA, "bfloat16", 61) is None  # worth measuring
    assert chosen(H100, "bfloat16", 1) == chosen(H100, "float16", 1e6) == "cudnn"
    for unmeasured in ({"block_size": 128}, {"n_head": 24}, {"n_head": 3}):
        assert chosen(H100, "bfloat16", 61, **unmeasured) is None


def test_the_fastest_attention_is_taken_and_flash_if_it_is_close() -> None:
    def chosen(**measured_s: float) -> tuple[Any, str]:
        choice = choose_attention(TrainConfig(), ADA, "bfloat16", 61, measured_s)
        assert choice is not None
        return choice.value, choice.reason

    fastest, reason = chosen(flash=0.002, cudnn=0.0015)
    assert (fastest, reason.partition(": ")[2]) == ("cudnn", "flash 2.00 ms, cudnn 1.50 ms")
    assert chosen(flash=0.002, cudnn=0.00195)[0] == "flash"
    assert chosen()[0] == "sdpa"


def test_8_bit_floats_need_a_card_a_dtype_and_round_sizes() -> None:
    def problems(on: DeviceTraits, dtype: str, is_correct: bool = True, **settings: Any) -> str:
        kernels = settings.pop("kernels", True)
        config = TrainConfig(fp8=True, **settings)
        work = TrainingWorkload(config=config, vocab_size=65, batch_size=1, dtype=dtype, kernels=kernels)
        return " ".join(float8_problems(work, on, is_correct))

    on_cpu = problems(CPU, "float32", n_embd=24, n_head=2)
    for part in ("card with 8-bit floats", "requires --dtype=bfloat16, not float32", "multiples of 16"):
        assert part in on_cpu
    assert "card with 8-bit floats" in problems(DeviceTraits("cuda", (8, 6)), "bfloat16")
    assert "needs the Triton kernels" in problems(H100, "bfloat16", kernels=False)
    assert "multiples of 16" in problems(H100, "bfloat16", block_size=1023)
    assert problems(H100, "bfloat16") == ""
    assert "computes wrongly" in problems(H100, "bfloat16", is_correct=False)
    assert has_float8(DeviceTraits("cuda", (8, 9)))
    assert not has_float8(MPS)


def test_small_data_lies_on_the_card() -> None:
    assert choose_data_place("auto", 2_000_000, H100, 8 * 2**30).value == "on the card"
    assert choose_data_place("auto", 18_000_000_000, H100, 8 * 2**30).value == "in memory"
    assert choose_data_place("auto", 2_000_000, CPU, None).value == "in memory"
    unknown = choose_data_place("auto", 2_000_000, H100, None)
    assert (unknown.value, unknown.reason) == ("in memory", "how much memory the card has free is not known")


def test_where_data_lies_can_be_said() -> None:
    assert choose_data_place("memory", 2_000_000, H100, 8 * 2**30).value == "in memory"
    assert choose_data_place("card", 4_000_000_000, H100, 8 * 2**30).value == "on the card"
    assert choose_data_place("memory", 2_000_000, CPU, None).value == "in memory"
    with pytest.raises(UserError, match=r"18.0 GB do not fit into the 8.6 GB that are free"):
        choose_data_place("card", 18_000_000_000, H100, 8 * 2**30)
    with pytest.raises(UserError, match="--data_place=card is for CUDA cards"):
        choose_data_place("card", 2_000_000, CPU, None)


def test_a_recording_needs_room() -> None:
    def chosen(**settings: Any) -> Any:
        work = micro_batch(TrainConfig(**settings), dtype="bfloat16")
        return choose_graph(H100, work, 0.004, 0.014, fits=False).value

    assert chosen() == "off"
    assert chosen(graph="on") == "on"  # whoever asks for it knows better


def test_threads_leave_busy_cores_alone() -> None:
    def chosen(usual: int, busy: float, before: int | None = None, asked: int | None = None) -> object:
        choice = choose_threads(asked, usual, before, busy)
        return None if choice is None else choice.value

    # None: as PyTorch decides.
    assert [chosen(4, busy) for busy in (0.0, 0.4, 0.5, 1.4, 2.6, 4.0, 99.0)] == [None, None, 3, 3, 1, 1, 1]
    assert chosen(1, 5.0) is None
    assert chosen(4, 9.0, asked=3) == 3
    # The count of a run that is resumed stays, unless this machine has fewer cores.
    assert [chosen(4, 0.0, before) for before in (4, 2, 8)] == [None, 2, None]
    assert [chosen(4, 3.0, before) for before in (4, 2, 8)] == [4, 2, 1]


# --- all of them together ---

TEXT = DatasetInfo("mine", 10**6, 10**5, 50257, "gpt2", 4.5, "")
MEASURED: dict[str, Any] = {"peak": PeakFlops(1e15, "table"), "kernels_built": False, "attention_s": {}}


def specified(on: DeviceTraits = H100, origin: Origin | None = None, **settings: Any) -> Any:
    """Fields of MachineFacts and of TrainConfig."""
    known = {name: settings.pop(name) for name in MachineFacts.__dataclass_fields__ if name in settings}
    return decide(TrainConfig(**settings), MachineFacts(on, **MEASURED | known), TEXT, origin or Origin())


def test_it_says_which_facts_it_lacks_and_only_those_it_needs() -> None:
    nothing: dict[str, Any] = dict.fromkeys(MEASURED)
    long: dict[str, Any] = {"max_iters": 10**6}
    assert specified(**long).unknown == ()
    assert specified(ADA, **nothing, **long).unknown == ("kernels_built", "peak", "attention_s")
    assert specified(**nothing, **long).unknown == ("kernels_built", "peak")  # cuDNN's attention
    assert specified(ADA, **nothing, max_iters=1).unknown == ("kernels_built", "peak")
    assert specified(**nothing, kernels="plain", attention="flash").unknown == ("peak",)
    assert specified(CPU, **nothing, **long).unknown == ("peak",)
    assert specified(**long, fp8=True).unknown == ("float8_is_correct",)
    assert specified(CPU, fp8=True).unknown == ()  # impossible anyway


def test_memory_bounds_the_micro_batch() -> None:
    update: dict[str, Any] = {"batch_tokens": 2**20, "kernels": "triton"}

    def fit(gib: float, on: DeviceTraits = H100, **settings: Any) -> int:
        return int(specified(on, free_bytes=int(gib * 2**30), **update | settings).batch.batch_size)

    assert specified(**update).batch.batch_size == 64  # as fast as it gets
    assert fit(0.1) == 1  # never none at all: the run will say it better
    assert 8 <= fit(12) < fit(80) == 64
    assert fit(12, dtype="float32") < fit(12) < fit(12, activation_checkpointing=True)
    # What is chosen counts, not what usually is: a card without bfloat16, or without a compiler.
    old = DeviceTraits("cuda", (6, 1), has_tensor_cores=False)
    assert fit(12, old, kernels="plain") == fit(12, dtype="float32", kernels="plain")
    lacking = DeviceTraits("cuda", (9, 0), missing_toolchain="no C compiler was found")
    assert fit(12, lacking, kernels="auto", max_iters=10**5) == fit(12, kernels="plain", compile="off")
    # Without a card it is main memory.
    on_cpu: dict[str, Any] = {"batch_tokens": 2**16, "n_layer": 36}
    assert specified(CPU, memory_bytes=2**40, **on_cpu).batch.batch_size == 4
    assert specified(CPU, memory_bytes=8 * 2**30, **on_cpu).batch.batch_size < 4


def test_a_checkpoint_is_copied_beside_a_run() -> None:
    def has_copy(on: DeviceTraits, **settings: Any) -> Any:
        return specified(on, **settings).workload.has_checkpoint_copy

    assert has_copy(H100, free_bytes=10**11, max_iters=1000, eval_interval=100)
    assert not has_copy(H100, free_bytes=10**9, max_iters=1000, eval_interval=100)  # to main memory
    assert not has_copy(H100, free_bytes=10**11, max_iters=1000, eval_interval=1000)  # after all updates
    assert has_copy(CPU, max_iters=1000, eval_interval=1000)  # that is main memory too


def test_facts_survive_a_journal() -> None:
    facts = MachineFacts(
        H100, "H100", {"cuda": 2, "mps": 0, "cpu": 1}, 4, ranks=2, is_launched=True, free_bytes=10**10,
        peak=PeakFlops(1e15, "table", 8e14), kernels_built=True, attention_s={"flash": 0.001, "cudnn": 0.002},
    )  # fmt: skip
    text = json.dumps(facts_record(facts, TEXT, Origin(50257, 2)))
    assert facts_from_record(json.loads(text)) == (facts, TEXT, Origin(50257, 2))
