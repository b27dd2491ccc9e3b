"""Numbers as people read them, and text that cannot harm a terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.show import format
from glassgpt.show.chart import bar, sparkline
from glassgpt.show.format import harmless

few = settings(max_examples=150, deadline=None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0421, "42 ms"),
        (0.9994, "999 ms"),
        (0.9995, "1.0 s"),
        (1.24, "1.2 s"),
        (9.949, "9.9 s"),
        (9.95, "10 s"),
        (45, "45 s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (3599.6, "1h 00m"),
        (7620, "2h 07m"),
        (86_399.6, "1d 00h"),
        (3 * 86_400 + 4 * 3600 + 59, "3d 04h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.424, "0.42 ms"), (9.994, "9.99 ms"), (9.996, "10.0 ms"), (38.13, "38.1 ms"), (5985.4, "5985 ms")],
)
def test_milliseconds(value: float, text: str) -> None:
    assert format.milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (812, "812"),
        (999.4, "999"),
        (999.6, "1k"),
        (19_412, "19.4k"),
        (999_600, "1M"),
        (10_745_088, "10.7M"),
        (1.56e9, "1.56B"),
        (3e12, "3T"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert format.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.0 KiB"),
        (164_768, "161 KiB"),
        (9.7 * 2**20, "9.7 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (5 * 2**40, "5.0 TiB"),
    ],
)
def test_sizes(value: float, text: str) -> None:
    assert format.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(48e12, "48 TFLOP/s"), (96.2e9, "96.2 GFLOP/s"), (1.5e15, "1.5 PFLOP/s"), (5e6, "5 MFLOP/s")],
)
def test_flops(value: float, text: str) -> None:
    assert format.flops(value) == text


@few
@given(st.floats(1, 1e14))
def test_a_count_is_within_half_a_percent(value: float) -> None:
    text = format.count(value)
    unit = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    number = float(text[:-1]) * unit[text[-1]] if text[-1] in unit else float(text)
    assert number == pytest.approx(value, rel=0.0051, abs=0.5)
    assert "e" not in text or value >= 999.5e12


@few
@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_durations_keep_their_order(a: float, b: float) -> None:
    def back(text: str) -> float:
        units = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
        return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) ?(ms|[dhms])", text))

    low, high = sorted((a, b))
    assert back(format.duration(low)) <= back(format.duration(high))
    assert back(format.duration(a)) == pytest.approx(a, rel=0.06, abs=0.0005)


# --- harmless


@few
@given(st.text())
def test_harmless_leaves_no_control_character(text: str) -> None:
    safe = harmless(text)
    assert len(safe) == len(text)
    for before, after in zip(text, safe, strict=True):
        control = (
            unicodedata.category(before) in ("Cc", "Cf", "Cs", "Co") and before not in "\n\t\u200c\u200d"
        )
        bad = control or ord(before) & 0xFFFE == 0xFFFE
        assert after == ("\N{REPLACEMENT CHARACTER}" if bad else before)
    assert harmless(safe) == safe


def test_harmless_takes_every_control_character() -> None:
    controls = [chr(code) for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
    assert len(controls) == 63
    assert set(harmless("".join(controls))) == {"\N{REPLACEMENT CHARACTER}"}
    # Overrides of direction hide what a line says.
    assert (
        harmless("a\N{RIGHT-TO-LEFT OVERRIDE}b\N{ZERO WIDTH SPACE}")
        == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
    )
    assert harmless("Ünï\ncode\t\N{GRINNING FACE}") == "Ünï\ncode\t\N{GRINNING FACE}"


# --- charts


def test_a_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 1.0]) == "█▁"
    assert sparkline([2.0, 2.0, 2.0]) == "▁▁▁"
    assert sparkline([1.0, float("nan"), 2.0, float("inf")]) == "▁ █ "


@pytest.mark.parametrize("values", [[], [1.0], [float("nan"), 1.0], [float("nan")] * 3])
def test_a_sparkline_of_fewer_than_two_values_is_none(values: list[float]) -> None:
    assert sparkline(values) == ""


@few
@given(st.lists(st.floats(-1e100, 1e100) | st.sampled_from([float("nan"), float("inf")]), max_size=20))
def test_a_sparkline_has_a_character_per_value(values: list[float]) -> None:
    assert len(sparkline(values)) in (0, len(values))


def test_a_bar_is_exact_to_an_eighth() -> None:
    assert bar(0.0, 20) == ""
    assert bar(1.0, 4) == "████"
    assert bar(0.5, 4) == "██"
    assert bar(1 / 32, 4) == "▏"
    assert bar(7 / 32, 4) == "▉"
    assert bar(-3.0, 4) == ""
    assert bar(9.0, 4) == "████"


@few
@given(st.floats(-1, 2), st.floats(-1, 2), st.integers(1, 40))
def test_a_larger_share_never_has_a_shorter_bar(a: float, b: float, width: int) -> None:
    low, high = sorted((a, b))
    assert len(bar(low, width)) <= len(bar(high, width)) <= width
