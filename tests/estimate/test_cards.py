"""The card table against itself and against arithmetic; names as drivers report and people type them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.errors import UserError
from glassgpt.estimate.cards import (
    PEAK_DTYPES,
    Card,
    _normalize_device_name,
    cards,
    find_card,
    nearest_cards,
    resolve_card_name,
)

GIB = 2**30

# Floating-point operations per core and clock (a multiply-add is two), from each architecture's whitepaper:
# float32, tf32, bfloat16, float16, float8; 0 where the hardware has no such unit or nobody publishes it.
OPERATIONS = {
    "Pascal data centre": (2, 0, 0, 0, 0),
    "Pascal (GP10x)": (2, 0, 0, 0, 0),
    "GeForce GTX 16 (Turing, no tensor cores)": (2, 0, 0, 0, 0),
    "GeForce GTX 16 laptop (Turing, no tensor cores)": (2, 0, 0, 0, 0),
    "GeForce RTX 20 (Turing)": (2, 0, 0, 8, 0),
    "GeForce RTX 20 laptop (Turing)": (2, 0, 0, 8, 0),
    "Turing, full rate": (2, 0, 0, 16, 0),
    "Volta data centre": (2, 0, 0, 16, 0),
    "Ampere data centre (GA100)": (2, 16, 32, 32, 0),
    "GeForce RTX 30 (Ampere)": (2, 2, 4, 4, 0),
    "GeForce RTX 30 laptop (Ampere)": (2, 2, 4, 4, 0),
    "Ampere professional (GA10x), half rate": (2, 2, 4, 4, 0),
    "Ampere professional (GA10x)": (2, 4, 8, 8, 0),
    "GeForce RTX 40 (Ada)": (2, 2, 4, 4, 8),
    "GeForce RTX 40 laptop (Ada)": (2, 2, 4, 4, 8),
    "Ada professional, half rate": (2, 2, 4, 4, 8),
    "Ada professional": (2, 4, 8, 8, 16),
    "Hopper data centre": (2, 16, 32, 32, 64),
    "GeForce RTX 50 (Blackwell)": (2, 2, 4, 4, 8),
    "GeForce RTX 50 laptop (Blackwell)": (2, 2, 4, 4, 8),
    "RTX PRO (Blackwell)": (2, 4, 8, 8, 16),
    "AMD CDNA 2": (4, 0, 16, 16, 0),
    "AMD CDNA 3": (4, 16, 32, 32, 64),
    "Apple M1": (2, 0, 0, 2, 0),
    "Apple M2": (2, 0, 0, 2, 0),
    "Apple M3": (2, 0, 0, 0, 0),
    "Apple M4": (2, 0, 0, 0, 0),
}
UNPUBLISHED_CORES = {"B200", "GB200"}
UNPUBLISHED_WATTS = {"GH200 96GB"}  # with its CPU only


def card(name: str, memory_gib: float | None = None) -> Card:
    found = find_card(name, None if memory_gib is None else int(memory_gib * GIB))
    assert found is not None, name
    return found


def tflops(name: str, dtype: str, memory_gib: float | None = None) -> float:
    return card(name, memory_gib).peaks[dtype] / 1e12


# --- the table


def test_every_peak_is_cores_times_clock_times_operations() -> None:
    assert {one.name for one in cards() if one.cuda_cores is None} == UNPUBLISHED_CORES
    wrong = {}
    for one in cards():
        for dtype, operations in zip(
            PEAK_DTYPES, OPERATIONS.get(one.family, ()), strict=one.family in OPERATIONS
        ):
            mhz = one.boost_mhz if dtype == "float32" else one.tensor_mhz or one.boost_mhz
            expected = (one.cuda_cores or 0) * (mhz or 0) * 1e6 * operations
            if one.peaks.get(dtype, 0.0) != pytest.approx(expected, rel=0.03, abs=1e9):
                wrong[one.name, dtype] = (one.peaks.get(dtype), expected)
    assert wrong == {}


def test_every_family_is_checked_by_the_arithmetic() -> None:
    assert set(OPERATIONS) | {"Blackwell data centre"} == {one.family for one in cards()}


def test_a_card_has_a_source_and_sane_numbers(subtests: pytest.Subtests) -> None:
    for one in cards():
        with subtests.test(one.name):
            assert len(one.source) > 15
            assert "float32" in one.peaks
            assert all(math.isfinite(peak) and 1e12 < peak < 1e16 for peak in one.peaks.values())
            assert 50 < one.bandwidth_gb_s < 10_000
            assert one.memory_gb is None or 4 <= one.memory_gb <= 288
            assert set(one.peaks) <= set(PEAK_DTYPES)


def test_what_a_card_can_do_follows_from_its_capability(subtests: pytest.Subtests) -> None:
    for one in cards():
        if one.vendor != "nvidia":
            continue
        with subtests.test(one.name):
            peaks = one.peaks
            assert one.capability is not None
            assert ("bfloat16" in peaks) == (one.capability >= (8, 0))
            assert ("tf32" in peaks) == (one.capability >= (8, 0))
            assert ("float8" in peaks) == (one.capability >= (8, 9))
            if "bfloat16" in peaks:
                assert peaks["float32"] <= peaks["tf32"] * 1.03 < peaks["bfloat16"] == peaks["float16"]
                assert "float8" not in peaks or peaks["float8"] > peaks["float16"]


def test_only_apple_and_superchips_have_no_board_power() -> None:
    without = {one.name for one in cards() if one.watts is None}
    assert without == {one.name for one in cards() if one.vendor == "apple"} | UNPUBLISHED_WATTS
    assert [one.name for one in cards() if one.watts is not None and not 30 <= one.watts <= 1200] == []


def test_cards_of_a_family_do_much_the_same_per_watt() -> None:
    """A digit too many or too few would show."""
    rates: dict[str, list[float]] = defaultdict(list)
    for one in cards():
        if one.watts:
            rates[one.family].append(one.peaks["float32"] / one.watts)
    assert {family: found for family, found in rates.items() if max(found) > 3 * min(found)} == {}


LAPTOP = re.compile(" Laptop GPU| Max-Q$")


def test_a_laptop_draws_less_than_a_desktop_card_of_its_name() -> None:
    only_laptops, too_hungry = set(), []
    for one in cards():
        if not LAPTOP.search(one.name):
            continue
        name = LAPTOP.split(one.name)[0]
        desktop = [other.watts or 0 for other in cards() if re.fullmatch(rf"{name}( \d+GB)?", other.name)]
        if not desktop:
            only_laptops.add(name)
        if (one.watts or 0) > max(desktop, default=115):
            too_hungry.append(one.name)
    assert only_laptops <= {"RTX 3050 Ti", "RTX 4050"}
    assert too_hungry == []


def test_the_board_power_people_quote() -> None:
    cases: list[tuple[str, int]] = [
        ("GTX 1080 Ti", 250),
        ("RTX 2080 Ti", 250),
        ("RTX 3090", 350),
        ("RTX 4070", 200),
        ("RTX 4070 Ti", 285),
        ("RTX 4090", 450),
        ("RTX 5090", 575),
        ("RTX 4090 Laptop GPU", 150),
        ("T4", 70),
        ("A100 SXM4 80GB", 400),
        ("H100 PCIe", 350),
        ("H100 SXM5", 700),
        ("H200", 700),
        ("B200", 1000),
        ("MI300X", 750),
    ]
    wrong = [
        (name, watts, got) for name, watts in cases if (got := resolve_card_name(name).card.watts) != watts
    ]
    assert wrong == []


def test_no_card_is_in_the_table_twice() -> None:
    assert max(Counter(one.name for one in cards()).values()) == 1
    known = Counter((name, one.memory_gb) for one in cards() for name in one.normalized_names)
    assert [key for key, count in known.items() if count > 1] == []


def test_the_figures_people_quote() -> None:
    cases: list[tuple[str, str, float]] = [
        ("NVIDIA GeForce RTX 2080 Ti", "float16", 53.8),
        ("NVIDIA GeForce RTX 3090", "bfloat16", 71),
        ("NVIDIA GeForce RTX 4070 Ti", "bfloat16", 80.2),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA GeForce RTX 4090", "float8", 330.3),
        ("NVIDIA GeForce RTX 5090", "bfloat16", 209.5),
        ("NVIDIA RTX A6000", "bfloat16", 154.8),
        ("Tesla T4", "float16", 65),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156),
        ("NVIDIA A10G", "bfloat16", 70),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ]
    wrong = [
        (name, dtype, published, got)
        for name, dtype, published in cases
        if (got := tflops(name, dtype)) != pytest.approx(published, abs=0.05)
    ]
    assert wrong == []


def test_a_dearer_card_is_a_faster_card(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "RTX 2070, RTX 2070 SUPER, RTX 2080, RTX 2080 SUPER, RTX 2080 Ti",
        "RTX 3060, RTX 3060 Ti, RTX 3070, RTX 3070 Ti, RTX 3080 10GB, RTX 3080 12GB, RTX 3080 Ti, RTX 3090, "
        "RTX 3090 Ti",
        "RTX 4060, RTX 4060 Ti 8GB, RTX 4070, RTX 4070 SUPER, RTX 4070 Ti, RTX 4070 Ti SUPER, RTX 4080, "
        "RTX 4080 SUPER, RTX 4090 D, RTX 4090",
        "RTX 5050, RTX 5060, RTX 5060 Ti 8GB, RTX 5070, RTX 5070 Ti, RTX 5080, RTX 5090",
        "RTX 4050 Laptop GPU, RTX 4060 Laptop GPU, RTX 4070 Laptop GPU, RTX 4080 Laptop GPU, "
        "RTX 4090 Laptop GPU, RTX 4090",
        "RTX 5050 Laptop GPU, RTX 5060 Laptop GPU, RTX 5070 Laptop GPU, RTX 5070 Ti Laptop GPU, "
        "RTX 5080 Laptop GPU, RTX 5090 Laptop GPU, RTX 5090",
        "T4, V100-PCIE-16GB, V100-SXM2-16GB, A100-SXM4-40GB, H100 PCIe, H100 NVL, H100 SXM5, B200, GB200",
        "Apple M1 7-core GPU, Apple M1 8-core GPU, Apple M2 8-core GPU, Apple M2 10-core GPU",
    ]
    for slow_to_fast in cases:
        with subtests.test(slow_to_fast):
            speeds = [tflops(name, "float16") for name in slow_to_fast.split(", ")]
            assert speeds == sorted(speeds)
            assert len(set(speeds)) == len(speeds)


# --- finding a card


def test_every_card_is_found_by_each_of_its_names() -> None:
    lost = []
    for one in cards():
        memory = None if one.memory_gb is None else int(one.memory_gb * 0.96 * GIB)
        for name in (one.name, one.name.upper(), *one.device_names):
            if find_card(name, memory) != one:
                lost.append((one.name, name))
    assert lost == []


def test_names_as_drivers_report_them() -> None:
    cases: list[tuple[str, str]] = [
        ("NVIDIA GeForce RTX 4070", "RTX 4070"),
        ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("nvidia geforce rtx 4090 laptop gpu", "RTX 4090 Laptop GPU"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("Apple M2 Pro 19-core GPU", "Apple M2 Pro 19-core GPU"),
        ("GeForce RTX 2070 with Max-Q Design", "RTX 2070 Max-Q"),
        ("NVIDIA GeForce RTX 2080 Super", "RTX 2080 SUPER"),
        ("NVIDIA GeForce GTX 1660 Ti with Max-Q Design", "GTX 1660 Ti Max-Q"),
        ("NVIDIA GeForce GTX 1060 6GB", "GTX 1060 6GB"),
        ("NVIDIA GeForce RTX 3050Ti Laptop GPU", "RTX 3050 Ti Laptop GPU"),
        ("NVIDIA RTX A2000 12GB", "RTX A2000 12GB"),
        ("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada"),
        ("Tesla P40", "P40"),
    ]
    wrong = [(reported, name, got) for reported, name in cases if (got := card(reported).name) != name]
    assert wrong == []


def test_what_we_do_not_know_stays_unknown(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "NVIDIA GeForce RTX 6090",
        "NVIDIA GeForce RTX 4070 Ti Laptop GPU",  # there is none; it must not become the desktop card
        "NVIDIA GeForce RTX 3090 Max-Q",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # a seventh of the card
        "NVIDIA H100",
        "RTX",
        "Apple M2 Pro",  # 16 or 19 GPU cores?
        "AMD EPYC 9654",
        "",
    ]
    for unknown in cases:
        with subtests.test(unknown):
            assert find_card(unknown) is None
            assert find_card(unknown, 40 * GIB) is None


def test_memory_decides_between_cards_of_one_name() -> None:
    assert card("NVIDIA GeForce RTX 3080", 9.77).name == "RTX 3080 10GB"
    assert card("NVIDIA GeForce RTX 3080", 11.75).name == "RTX 3080 12GB"
    assert card("NVIDIA GeForce RTX 4060 Ti", 15.6).memory_gb == 16
    assert find_card("NVIDIA GeForce RTX 3080") is None
    assert find_card("NVIDIA GeForce RTX 3080", 20 * GIB) is None


def test_without_a_memory_a_name_is_the_card_that_we_call_so() -> None:
    assert card("NVIDIA GeForce RTX 3060").name == "RTX 3060"
    assert card("NVIDIA GeForce RTX 3060", 11.8).name == "RTX 3060"
    assert card("NVIDIA GeForce RTX 3060", 7.9).name == "RTX 3060 8GB"
    assert find_card("NVIDIA GeForce RTX 3060", 24 * GIB) is None


def test_that_costs_no_speed() -> None:
    named = ((one, other) for one in cards() for other in cards() if one.name in other.device_names)
    assert [(one.name, other.name) for one, other in named if other.peaks != one.peaks] == []


def test_nearest_cards_for_did_you_mean() -> None:
    assert nearest_cards("RTX 4070 supr")[0] == "RTX 4070 SUPER"
    assert nearest_cards("4070ti")[0] == "RTX 4070 Ti"
    assert set(nearest_cards("RTX 3080", 2)) <= {"RTX 3080 10GB", "RTX 3080 12GB", "RTX 3080 Ti"}
    assert all(name.startswith("H100") for name in nearest_cards("h100"))
    assert nearest_cards("2080s")[0] == "RTX 2080"
    assert set(nearest_cards("6000")) == {"RTX A6000", "RTX 6000 Ada", "Quadro RTX 6000"}
    assert len(nearest_cards("toaster", 5)) == 5


# --- what somebody types


def test_a_short_name_means_the_usual_card_and_says_the_others(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str]] = [
        ("rtx4070", "RTX 4070", "RTX 4070 Laptop GPU"),
        ("4070", "RTX 4070", "RTX 4070 Laptop GPU"),
        ("RTX 4070 Ti", "RTX 4070 Ti", ""),
        ("4070ti-super", "RTX 4070 Ti SUPER", ""),
        ("4070 laptop", "RTX 4070 Laptop GPU", ""),
        ("RTX 4070 Mobile", "RTX 4070 Laptop GPU", ""),
        ("4050", "RTX 4050 Laptop GPU", ""),  # there is no other
        ("rtx 2070 max-q", "RTX 2070 Max-Q", ""),
        ("RTX 3060", "RTX 3060", "RTX 3060 8GB, RTX 3060 Laptop GPU"),
        ("rtx 3060 12GB", "RTX 3060", ""),
        ("3080", "RTX 3080 10GB", "RTX 3080 12GB, RTX 3080 Laptop GPU 8GB, RTX 3080 Laptop GPU 16GB"),
        ("4060 ti 16gb", "RTX 4060 Ti 16GB", ""),
        ("a6000", "RTX A6000", ""),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Max-Q"),
        ("h100", "H100 SXM5", "H100 PCIe, H100 NVL"),
        ("H100 80GB", "H100 SXM5", "H100 PCIe"),
        ("h100-pcie", "H100 PCIe", ""),
        ("h200", "H200", "H200 NVL"),
        ("a100", "A100 SXM4 40GB", "A100 SXM4 80GB, A100 PCIe 40GB, A100 PCIe 80GB"),
        ("A100 80GB", "A100 SXM4 80GB", "A100 PCIe 80GB"),
        ("a100-sxm-40gb", "A100 SXM4 40GB", ""),
        ("a100 40GB pcie", "A100 PCIe 40GB", ""),
        ("v100", "V100 SXM2 16GB", "V100 SXM2 32GB, V100 PCIe 16GB, V100 PCIe 32GB"),
        ("mi300x", "Instinct MI300X", ""),
        ("m3-max", "Apple M3 Max 30-core GPU", "Apple M3 Max 40-core GPU"),
        ("m3 max 40 cores", "Apple M3 Max 40-core GPU", ""),
        ("M1", "Apple M1 7-core GPU", "Apple M1 8-core GPU"),
    ]
    for text, name, others in cases:
        with subtests.test(text):
            found = resolve_card_name(text)
            assert (found.card.name, ", ".join(found.alternatives)) == (name, others)


MAKERS = {"nvidia": ["", "NVIDIA ", "nvidia geforce "], "amd": ["", "AMD "], "apple": ["", "Apple "]}


@st.composite
def typed(draw: st.DrawFn) -> tuple[str, Card]:
    """A whole name as people type it: other capitals and separators, with or without maker and series."""
    one = draw(st.sampled_from(cards()))
    words = one.name.removeprefix("Apple ").replace("-", " ").split()
    if words[0] in {"RTX", "GTX"} and draw(st.booleans()):
        words = words[1:]
    text = words[0]
    for word in words[1:]:
        text += draw(st.sampled_from(["", " ", "-", "_", "  "])) + word
    if draw(st.booleans()):
        text = text.lower()
    return draw(st.sampled_from(MAKERS[one.vendor])) + text, one


@given(typed())
def test_a_whole_name_means_that_card_however_it_is_typed(case: tuple[str, Card]) -> None:
    text, one = case
    assert resolve_card_name(text).card == one


def test_a_name_that_drivers_report_means_a_card_that_reports_it(subtests: pytest.Subtests) -> None:
    for one in cards():
        for name in one.device_names:
            with subtests.test(f"{one.name} as {name}"):
                found = resolve_card_name(name)
                assert one.name in {found.card.name, *found.alternatives}
                assert _normalize_device_name(name) in found.card.normalized_names


@given(st.text(max_size=12))
def test_any_text_is_a_card_or_a_problem_with_its_fix(text: str) -> None:
    try:
        assert resolve_card_name(text).card in cards()
    except UserError as error:
        (problem,) = error.problems
        assert problem.startswith(f"--gpu={text} ")
        assert "--gpu=auto" in problem or any(one.name in problem for one in cards())


def test_an_unknown_name_is_refused_with_the_nearest(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("RTX 6090", "RTX 5090"),
        ("RTX 1080", "GTX 1080"),  # another series
        ("4070 Ti laptop", "RTX 4070 Laptop GPU"),
        ("RTX 3090 Max-Q", "RTX 2080 Max-Q"),
        ("RTX 6000", "Quadro RTX 6000"),  # three generations have one
        ("A100-SXM4-40GB MIG 1g.5gb", "A100 SXM4 40GB"),
        ("H100 40GB", "H100 PCIe"),
        ("RTX 4090 48GB", "RTX 4090"),
        ("3090 12 GB", "RTX 3090"),
        ("M3 Max 38-core", "Apple M3 Max 30-core GPU"),
        ("RTX", "RTX 2060"),
    ]
    for unknown, nearest in cases:
        with subtests.test(unknown):
            with pytest.raises(UserError) as caught:
                resolve_card_name(unknown)
            (problem,) = caught.value.problems
            assert f"--gpu={unknown} is not" in problem
            assert nearest in problem.partition("did you mean")[2]


def test_what_names_no_card_at_all_is_told_how_to(subtests: pytest.Subtests) -> None:
    for unknown in ("", "GeForce", "gpu", "cuda", "cuda:0", "MPS", "💥"):
        with subtests.test(unknown), pytest.raises(UserError, match="--gpu=auto is this machine's"):
            resolve_card_name(unknown)


@pytest.mark.parametrize("several", ["2x4090", "2 × RTX 4090", "4090x2", "RTX 4090 x 2"])
def test_several_cards_are_said_in_another_way(several: str) -> None:
    with pytest.raises(UserError, match=r"--gpu=(RTX )?4090 --gpus=2 plans for them"):
        resolve_card_name(several)


def test_the_table_can_be_read_without_torch() -> None:
    code = (
        "import sys, json; from glassgpt.estimate import cards; cards.resolve_card_name('t4');"
        "print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
