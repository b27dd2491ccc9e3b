"""This machine as plans see it: whatever its drivers and variables say."""

from __future__ import annotations

import json
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
    find_nvidia_cards,
    find_target,
    is_torch_built_for_rocm,
    local_cpu_target,
    parse_mig_slices,
    parse_nvidia_smi,
    target_of_card,
    visible_amd_cards,
    visible_nvidia_cards,
)
from glassgpt.recipe import build_config, find_recipe

GIB = 2**30
TWO = """GPU-aaaa-1, NVIDIA GeForce RTX 3060, 12288
GPU-bbbb-2, NVIDIA GeForce RTX 4090, 24564
"""
SLICES = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-5c89852c)
  MIG 1g.5gb      Device  1: (UUID: MIG-9e3b1a7d)
"""


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """`nvidia-smi` says nothing, there is no AMD card, no variable is set: until a test says otherwise."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(targets, "command_output", lambda *command: None)
    monkeypatch.setattr(targets, "find_amd_cards", list)
    return monkeypatch


# --- NVIDIA ---


def test_a_card_found_here_is_the_tables(says: pytest.MonkeyPatch) -> None:
    says.setattr(targets, "command_output", lambda *command: "GPU-1, NVIDIA GeForce RTX 4070, 12282")
    found = find_target("auto")
    assert (found.name, found.device_type, found.memory_bytes) == ("RTX 4070", "cuda", 12282 * 2**20)
    says.setattr(targets, "command_output", lambda *command: "GPU-1, NVIDIA Something Else, 8192")
    unknown = find_target("auto")
    assert unknown.card is None
    config = build_config(find_recipe("shakespeare_char"), {}, "cuda")
    assert make_plan(config, unknown, known_dataset_info("shakespeare_char")).times is None
    says.setattr(targets, "command_output", lambda *command: None)
    assert find_target("auto").device_type == ("mps" if sys.platform == "darwin" else "cpu")


def test_the_device_that_the_run_will_take_is_planned_for(
    says: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says.setattr(targets, "command_output", lambda *command: TWO)
    assert find_target("auto", "cuda").name == "RTX 4090"  # CUDA's first
    assert find_target("auto", "cuda:1").name == "RTX 3060"
    assert find_target("auto", "cpu").device_type == "cpu"
    assert find_target("rtx4070", "cpu").name == "RTX 4070"  # what if
    for device in ("cuda:2", "mps"):
        with pytest.raises(UserError, match=f"--device={device} is not in this machine"):
            find_target("auto", device)
    assert plan(["shakespeare_char_cpu", "--json=True"]) == 0  # this preset says so
    assert json.loads(capsys.readouterr().out)["target"]["device_type"] == "cpu"


def test_a_plan_for_what_the_run_will_not_take_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["shakespeare_char_cpu", "--gpu=rtx4070"]) == 0
    assert "--device=cpu is not RTX 4070" in capsys.readouterr().out
    assert plan(["shakespeare_char_cpu", "--gpu=rtx4070", "--hours=0.1"]) == 0
    assert 'device = "auto"' in capsys.readouterr().out


def test_a_driver_that_does_not_say_the_memory(says: pytest.MonkeyPatch) -> None:
    (known, unknown) = parse_nvidia_smi("GPU-1, NVIDIA H200, [N/A]\nGPU-2, NVIDIA GB10, [Not Supported]\n")
    assert known.memory_bytes is unknown.memory_bytes is None
    says.setattr(targets, "find_nvidia_cards", lambda: [known])
    assert find_target("auto").memory_bytes == 141 * GIB
    says.setattr(targets, "find_nvidia_cards", lambda: [unknown])
    says.setattr(targets, "usable_memory", lambda: (128 * GIB, False))
    assert find_target("auto").memory_bytes == 128 * GIB


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "[N/A], [N/A], [N/A]", "a warning, of sorts, x"]
)
def test_what_is_no_card_is_none(text: str) -> None:
    assert parse_nvidia_smi(text) == []


def test_the_order_is_cudas() -> None:
    found = parse_nvidia_smi(TWO)
    assert [one.uuid for one in visible_nvidia_cards(found, {})] == ["GPU-bbbb-2", "GPU-aaaa-1"]
    by_slot = visible_nvidia_cards(found, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [one.uuid for one in by_slot] == ["GPU-aaaa-1", "GPU-bbbb-2"]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("0", ["RTX 4090"]),
        ("1", ["RTX 3060"]),
        (" 1, 0", ["RTX 3060", "RTX 4090"]),
        ("GPU-aaaa", ["RTX 3060"]),
        ("0,7,1", ["RTX 4090"]),  # what stands behind a number that does not exist is hidden too
        ("GPU-", []),  # means two
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_what_is_hidden_is_not_seen(asked: str, names: list[str]) -> None:
    seen = visible_nvidia_cards(parse_nvidia_smi(TWO), {"CUDA_VISIBLE_DEVICES": asked})
    assert [one.name.removeprefix("NVIDIA GeForce ") for one in seen] == names


def test_a_hidden_card_leaves_the_cpu(says: pytest.MonkeyPatch) -> None:
    says.setattr(targets, "find_nvidia_cards", lambda: parse_nvidia_smi(TWO))
    says.setenv("CUDA_VISIBLE_DEVICES", "")
    says.setattr(sys, "platform", "linux")
    found = find_target("auto")
    assert (found.device_type, found.found_how) == ("cpu", "CUDA_VISIBLE_DEVICES hides the GPU")
    says.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_target("auto").name == "RTX 3060"


def test_a_slice_of_a_card_is_not_the_card(says: pytest.MonkeyPatch) -> None:
    assert [one.memory_bytes for one in parse_mig_slices(SLICES)] == [20 * GIB, 5 * GIB]
    says.setattr(
        targets,
        "find_nvidia_cards",
        lambda: [InstalledCard("NVIDIA A100-SXM4-40GB", None, "GPU-5d5ba0d6")],
    )
    says.setattr(targets, "command_output", lambda *command: SLICES)
    says.setenv("CUDA_VISIBLE_DEVICES", "MIG-9e3b1a7d")
    found = find_target("auto")
    assert (found.name, found.memory_bytes) == ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB)
    assert found.card is None
    assert not found.peaks


def test_the_driver_is_asked_for_what_is_read(says: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []
    says.setattr(targets, "command_output", lambda *command: commands.append(command))
    assert find_nvidia_cards() == []
    assert commands == [("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")]


# --- AMD ---


def listed(root: Path, name: str, **files: str) -> None:
    (root / name / "device").mkdir(parents=True)
    for file, text in files.items():
        (root / name / "device" / file).write_text(f"{text}\n")


def test_amds_cards_are_read_from_the_kernel(tmp_path: Path) -> None:
    vram = str(191 * GIB)
    listed(tmp_path, "card10", vendor="0x1002", device="0x74a1", mem_info_vram_total=vram, unique_id="ab12")
    listed(tmp_path, "card2", vendor="0x1002", device="0xffff", mem_info_vram_total="x", product_name="New")
    listed(tmp_path, "card3", vendor="0x10de", device="0x74a1", mem_info_vram_total=vram)
    listed(tmp_path, "card10-HDMI-A-1", vendor="0x1002", device="0x74a1")
    listed(tmp_path, "renderD128", vendor="0x1002", device="0x74a1")
    new, mi300 = find_amd_cards(tmp_path)
    assert (new.name, new.memory_bytes) == ("New", None)
    assert (mi300.name, mi300.memory_bytes, mi300.uuid) == ("Instinct MI300X", 191 * GIB, "GPU-ab12")
    assert find_amd_cards(tmp_path / "nowhere") == []


def test_amds_cards_count_where_pytorch_can_use_them(says: pytest.MonkeyPatch) -> None:
    says.setattr(sys, "platform", "linux")
    says.setattr(targets, "find_amd_cards", lambda: [InstalledCard("Instinct MI300X", 192 * GIB, "GPU-a")])
    says.setattr(targets, "is_torch_built_for_rocm", lambda: False)
    without = find_target("auto")
    assert without.device_type == "cpu"
    assert "Instinct MI300X is here, but this PyTorch was not built for AMD's cards" in without.found_how
    says.setattr(targets, "is_torch_built_for_rocm", lambda: True)
    assert find_target("auto").name == "Instinct MI300X"
    says.setenv("HIP_VISIBLE_DEVICES", "-1")
    assert find_target("auto").device_type == "cpu"


def test_two_variables_hide_one_after_the_other() -> None:
    four = [InstalledCard(f"AMD {number}", None, f"GPU-{number}") for number in range(4)]

    def seen(**environment: str) -> list[str]:
        return [one.name[-1] for one in visible_amd_cards(four, environment)]

    assert seen(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="1") == ["3"]
    assert seen(CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="2") == ["2"]
    assert seen(CUDA_VISIBLE_DEVICES="1") == ["1"]
    assert seen() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("line", "is_amds"),
    [("hip: Optional[str] = None", False), ("hip: Optional[str] = '6.2.41'", True), ("hip = '5.7'", True)],
)
def test_pytorch_says_what_it_was_built_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, is_amds: bool
) -> None:
    (tmp_path / "version.py").write_text(f"cuda: Optional[str] = None\n{line}\nxpu = 'x'\n")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert is_torch_built_for_rocm() == is_amds


# --- memory ---


def test_apples_memory_by_name_is_the_smallest_sold() -> None:
    chip = target_of_card(resolve_card_name("m3-max").card, "asked for")
    assert chip.memory_note == "the smallest sold"
    assert chip.memory_bytes == 36 * GIB
    assert (
        target_of_card(resolve_card_name("m3-max").card, "found here", memory_bytes=96 * GIB).memory_note
        == ""
    )
    assert all(card.memory_gb or card.smallest_gb for card in cards())
    assert target_of_card(resolve_card_name("rtx4090").card, "asked for").memory_note == ""


def test_a_mac_is_asked_how_much_it_has(says: pytest.MonkeyPatch) -> None:
    says.setattr(sys, "platform", "darwin")
    says.setattr(targets, "apple_gpu_name", lambda: "Apple M2 Pro 19-core GPU")
    says.setattr(targets, "unified_memory_bytes", lambda: 32 * GIB)
    found = find_target("auto")
    assert (found.name, found.device_type, found.memory_bytes) == (
        "Apple M2 Pro 19-core GPU",
        "mps",
        32 * GIB,
    )


def test_a_containers_limit_is_the_memory(says: pytest.MonkeyPatch) -> None:
    says.setattr(targets, "usable_memory", lambda: (3 * GIB, True))
    found = find_target("cpu")
    assert (found.memory_bytes, found.memory_note, found.found_how) == (
        3 * GIB,
        "the container's limit",
        "asked for",
    )


def test_a_driver_that_says_no_memory_is_no_card_without_any() -> None:
    (found,) = parse_nvidia_smi("GPU-1, NVIDIA GeForce RTX 4090, 0\n")
    assert found.memory_bytes is None
    assert found.card is not None


def test_a_busy_machine_is_said_to_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(find_recipe("quickstart"), {}, "cpu")
    for load, is_told in ((0.2, False), (64.0, True)):
        monkeypatch.setattr("glassgpt.plan.target.load_average", lambda load=load: load)
        monkeypatch.setattr("glassgpt.plan.target.usable_cores", lambda: 2)
        made = make_plan(config, local_cpu_target("asked for", seconds=0.05), find_dataset_info(config))
        told = [problem.what for problem in made.problems if "busy" in problem.what]
        assert bool(told) == is_told


def test_a_proposal_of_a_busy_machine_says_so_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glassgpt.plan.target.load_average", lambda: 64.0)
    assert plan(["quickstart", "--gpu=cpu", "--hours=10"]) == 0
    assert "other programs keep 64.0 cores busy" in capsys.readouterr().out


def test_hours_on_a_card_that_nobody_knows() -> None:
    unknown = PlanTarget("RTX 9090", "cuda", 64 * 2**30, {}, "unknown", "found here")
    config = build_config(find_recipe("gpt2_124m"), {}, "cuda")
    with pytest.raises(UserError, match="the speed of RTX 9090 is unknown"):
        propose(config, unknown, find_dataset_info(config), 2.0)
