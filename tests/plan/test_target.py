"""The machine that a run is planned for, as drivers and environment variables describe it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from glassgpt.cli.plan_command import plan
from glassgpt.errors import UserError
from glassgpt.estimate.cards import cards, resolve_card_name
from glassgpt.plan import target as targets
from glassgpt.plan.dataset_info import find_dataset_info, known_dataset_info
from glassgpt.plan.planning import make_plan
from glassgpt.plan.propose import propose
from glassgpt.plan.target import (
    InstalledCard,
    PlanTarget,
    find_amd_cards,
    find_target,
    is_torch_built_for_rocm,
    local_cpu_target,
    target_of_card,
    visible_amd_cards,
    visible_nvidia_cards,
)
from glassgpt.recipe import build_config, find_recipe
from glassgpt.record.gpu_state import NO_DRIVER, GpuReading, GpuState

GIB = 2**30
MIB = 2**20
TWO = (
    GpuState("GPU-aaaa-1", "NVIDIA GeForce RTX 3060", memory_total=12288 * MIB),
    GpuState("GPU-bbbb-2", "NVIDIA GeForce RTX 4090", memory_total=24564 * MIB),
)
INSTALLED = [InstalledCard(gpu.name, gpu.memory_total, gpu.uuid) for gpu in TWO]


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No NVIDIA card, no AMD card, no environment variable, unless a test sets them."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    set_gpus(monkeypatch)
    monkeypatch.setattr(targets, "find_amd_cards", list)
    return monkeypatch


def set_gpus(drivers: pytest.MonkeyPatch, *gpus: GpuState, slices: tuple[GpuState, ...] = ()) -> None:
    reading = GpuReading(gpus, slices, problem="" if gpus else NO_DRIVER)
    drivers.setattr(targets, "read_gpus", lambda: reading)


# --- NVIDIA ---


def test_a_local_card_is_looked_up_in_the_table(drivers: pytest.MonkeyPatch) -> None:
    set_gpus(drivers, GpuState("GPU-1", "NVIDIA GeForce RTX 4070", memory_total=12282 * MIB))
    target = find_target("auto")
    assert (target.name, target.device_type, target.memory_bytes) == ("RTX 4070", "cuda", 12282 * MIB)
    set_gpus(drivers, GpuState("GPU-1", "NVIDIA Something Else", memory_total=8192 * MIB))
    unknown = find_target("auto")
    assert unknown.card is None
    config = build_config(find_recipe("shakespeare_char"), {}, "cuda")
    assert make_plan(config, unknown, known_dataset_info("shakespeare_char")).times is None
    set_gpus(drivers)
    assert find_target("auto").device_type == ("mps" if sys.platform == "darwin" else "cpu")


def test_the_plan_is_for_the_device_of_the_run(
    drivers: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_gpus(drivers, *TWO)
    assert find_target("auto", "cuda").name == "RTX 4090"  # CUDA's first
    assert find_target("auto", "cuda:1").name == "RTX 3060"
    assert find_target("auto", "cpu").device_type == "cpu"
    assert find_target("rtx4070", "cpu").name == "RTX 4070"  # a hypothetical machine
    for device in ("cuda:2", "mps"):
        with pytest.raises(UserError, match=f"--device={device} is not in this machine"):
            find_target("auto", device)
    assert plan(["shakespeare_char_cpu", "--json=True"]) == 0  # a setting of this preset
    assert json.loads(capsys.readouterr().out)["target"]["device_type"] == "cpu"


def test_a_plan_for_another_device_than_the_run_uses(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["shakespeare_char_cpu", "--gpu=rtx4070"]) == 0
    assert re.search("--device=cpu .*RTX 4070", capsys.readouterr().out)
    assert plan(["shakespeare_char_cpu", "--gpu=rtx4070", "--hours=0.1"]) == 0
    assert 'device = "auto"' in capsys.readouterr().out


def test_a_driver_without_the_memory(drivers: pytest.MonkeyPatch) -> None:
    set_gpus(drivers, GpuState("GPU-1", "NVIDIA H200"))
    assert find_target("auto").memory_bytes == 141 * GIB
    set_gpus(drivers, GpuState("GPU-2", "NVIDIA GB10"))
    drivers.setattr(targets, "usable_memory", lambda: (128 * GIB, False))
    assert find_target("auto").memory_bytes == 128 * GIB


def test_a_driver_that_fails_is_the_reason(drivers: pytest.MonkeyPatch) -> None:
    drivers.setattr(sys, "platform", "linux")
    assert find_target("auto").found_how == "no GPU found"
    drivers.setattr(targets, "read_gpus", lambda: GpuReading(problem="lost"))
    assert find_target("auto").found_how == "no GPU found: lost"


def test_cuda_device_order() -> None:
    assert [card.uuid for card in visible_nvidia_cards(INSTALLED, {})] == ["GPU-bbbb-2", "GPU-aaaa-1"]
    by_slot = visible_nvidia_cards(INSTALLED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [card.uuid for card in by_slot] == ["GPU-aaaa-1", "GPU-bbbb-2"]


def test_cuda_visible_devices() -> None:
    expected: dict[str, list[str]] = {
        "0": ["RTX 4090"],
        "1": ["RTX 3060"],
        " 1, 0": ["RTX 3060", "RTX 4090"],
        "GPU-aaaa": ["RTX 3060"],
        "0,7,1": ["RTX 4090"],  # an index that does not exist hides all that follow
        "GPU-": [],  # ambiguous
        "": [],
        "-1": [],
        "NoDevFiles": [],
    }
    visible = {
        variable: visible_nvidia_cards(INSTALLED, {"CUDA_VISIBLE_DEVICES": variable}) for variable in expected
    }
    names = {
        variable: [card.name.removeprefix("NVIDIA GeForce ") for card in cards]
        for variable, cards in visible.items()
    }
    assert names == expected


def test_a_hidden_card_leaves_the_cpu(drivers: pytest.MonkeyPatch) -> None:
    set_gpus(drivers, *TWO)
    drivers.setenv("CUDA_VISIBLE_DEVICES", "")
    drivers.setattr(sys, "platform", "linux")
    target = find_target("auto")
    assert (target.device_type, "CUDA_VISIBLE_DEVICES" in target.found_how) == ("cpu", True)
    drivers.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_target("auto").name == "RTX 3060"


def test_a_mig_slice_is_not_the_card(drivers: pytest.MonkeyPatch) -> None:
    name = "NVIDIA A100-SXM4-40GB"
    slices = (
        GpuState("MIG-5c89852c", f"{name} MIG 3g.20gb", memory_total=20 * GIB),
        GpuState("MIG-9e3b1a7d", f"{name} MIG 1g.5gb", memory_total=5 * GIB),
    )
    set_gpus(drivers, GpuState("GPU-5d5ba0d6", name, memory_total=40 * GIB), slices=slices)
    drivers.setenv("CUDA_VISIBLE_DEVICES", "MIG-9e3b1a7d")
    target = find_target("auto")
    assert (target.name, target.memory_bytes) == ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB)
    assert target.card is None
    assert not target.peaks


# --- AMD ---


def write_card(root: Path, name: str, **files: str) -> None:
    (root / name / "device").mkdir(parents=True)
    for file, text in files.items():
        (root / name / "device" / file).write_text(f"{text}\n")


def test_amd_cards_are_read_from_sysfs(tmp_path: Path) -> None:
    vram = str(191 * GIB)
    write_card(
        tmp_path, "card10", vendor="0x1002", device="0x74a1", mem_info_vram_total=vram, unique_id="ab12"
    )
    write_card(
        tmp_path, "card2", vendor="0x1002", device="0xffff", mem_info_vram_total="x", product_name="New"
    )
    write_card(tmp_path, "card3", vendor="0x10de", device="0x74a1", mem_info_vram_total=vram)
    write_card(tmp_path, "card10-HDMI-A-1", vendor="0x1002", device="0x74a1")
    write_card(tmp_path, "renderD128", vendor="0x1002", device="0x74a1")
    new, mi300 = find_amd_cards(tmp_path)
    assert (new.name, new.memory_bytes) == ("New", None)
    assert (mi300.name, mi300.memory_bytes, mi300.uuid) == ("Instinct MI300X", 191 * GIB, "GPU-ab12")
    assert find_amd_cards(tmp_path / "nowhere") == []


def test_amd_cards_need_pytorch_for_rocm(drivers: pytest.MonkeyPatch) -> None:
    drivers.setattr(sys, "platform", "linux")
    drivers.setattr(targets, "find_amd_cards", lambda: [InstalledCard("Instinct MI300X", 192 * GIB, "GPU-a")])
    drivers.setattr(targets, "is_torch_built_for_rocm", lambda: False)
    without = find_target("auto")
    assert without.device_type == "cpu"
    assert re.search("Instinct MI300X .*PyTorch.* AMD", without.found_how)
    drivers.setattr(targets, "is_torch_built_for_rocm", lambda: True)
    assert find_target("auto").name == "Instinct MI300X"
    drivers.setenv("HIP_VISIBLE_DEVICES", "-1")
    assert find_target("auto").device_type == "cpu"


def test_rocr_and_hip_visible_devices() -> None:
    four = [InstalledCard(f"AMD {number}", None, f"GPU-{number}") for number in range(4)]

    def visible(**environment: str) -> list[str]:
        return [card.name[-1] for card in visible_amd_cards(four, environment)]

    assert visible(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="1") == ["3"]
    assert visible(CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="2") == ["2"]
    assert visible(CUDA_VISIBLE_DEVICES="1") == ["1"]
    assert visible() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("line", "is_rocm"),
    [("hip: Optional[str] = None", False), ("hip: Optional[str] = '6.2.41'", True), ("hip = '5.7'", True)],
)
def test_is_torch_built_for_rocm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, is_rocm: bool
) -> None:
    (tmp_path / "version.py").write_text(f"cuda: Optional[str] = None\n{line}\nxpu = 'x'\n")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert is_torch_built_for_rocm() == is_rocm


# --- memory ---


def test_memory_of_an_apple_chip_by_name() -> None:
    chip = target_of_card(resolve_card_name("m3-max").card, "asked for")
    assert (chip.memory_bytes, "smallest" in chip.memory_note) == (36 * GIB, True)
    here = target_of_card(resolve_card_name("m3-max").card, "found here", memory_bytes=96 * GIB)
    assert (here.memory_bytes, here.memory_note) == (96 * GIB, "")
    assert all(card.memory_gb or card.smallest_gb for card in cards())
    assert target_of_card(resolve_card_name("rtx4090").card, "asked for").memory_note == ""


def test_memory_of_this_mac(drivers: pytest.MonkeyPatch) -> None:
    drivers.setattr(sys, "platform", "darwin")
    drivers.setattr(targets, "apple_gpu_name", lambda: "Apple M2 Pro 19-core GPU")
    drivers.setattr(targets, "unified_memory_bytes", lambda: 32 * GIB)
    target = find_target("auto")
    assert (target.name, target.device_type, target.memory_bytes) == (
        "Apple M2 Pro 19-core GPU",
        "mps",
        32 * GIB,
    )


def test_memory_limit_of_a_container(drivers: pytest.MonkeyPatch) -> None:
    drivers.setattr(targets, "usable_memory", lambda: (3 * GIB, True))
    target = find_target("cpu")
    assert (target.memory_bytes, target.memory_note, target.found_how) == (
        3 * GIB,
        "the container's limit",
        "asked for",
    )


def test_a_busy_machine_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    config, ratios = build_config(find_recipe("quickstart"), {}, "cpu"), []
    for load, is_busy in ((0.2, False), (64.0, True)):
        monkeypatch.setattr("glassgpt.plan.target.load_average", lambda load=load: load)
        monkeypatch.setattr("glassgpt.plan.target.usable_cores", lambda: 2)
        monkeypatch.setattr("glassgpt.estimate.measured_speed.usable_cores", lambda: 2)
        target = local_cpu_target("asked for", seconds=0.05)
        assert target.fair_share == pytest.approx(2 / 66 if is_busy else 1)
        assert target.peaks["float32"] > 1e9
        assert target.peak_source.endswith("on one core") == is_busy
        made = make_plan(config, target, find_dataset_info(config))
        busy = [problem.what for problem in made.problems if "load 64.0" in problem.what]
        assert bool(busy) == is_busy
        assert made.times is not None
        ratios.append(made.times.total_s[2] / made.times.total_s[0])
    assert ratios[1] == pytest.approx(ratios[0], rel=0.3)  # the band is that of an idle machine


def test_a_proposal_for_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glassgpt.plan.target.load_average", lambda: 64.0)
    assert plan(["quickstart", "--gpu=cpu", "--hours=10"]) == 0
    assert "load 64.0" in capsys.readouterr().out


def test_hours_on_an_unknown_card() -> None:
    unknown = PlanTarget("RTX 9090", "cuda", 64 * 2**30, {}, "unknown", "found here")
    config = build_config(find_recipe("gpt2_124m"), {}, "cuda")
    with pytest.raises(UserError, match="the speed of RTX 9090 is unknown"):
        propose(config, unknown, find_dataset_info(config), 2.0)
