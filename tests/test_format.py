"""Numbers as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt import format

few = settings(max_examples=150, deadline=None)


def test_durations() -> None:
    cases: list[tuple[float, str]] = [
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
    ]
    wrong = [
        (seconds, text, got) for seconds, text in cases if (got := format.format_duration(seconds)) != text
    ]
    assert wrong == []


def test_milliseconds() -> None:
    cases: list[tuple[float, str]] = [
        (0.424, "0.42 ms"),
        (9.994, "9.99 ms"),
        (9.996, "10.0 ms"),
        (38.13, "38.1 ms"),
        (5985.4, "5985 ms"),
        (11_505.2, "11.5 s"),
        (59_960.0, "1m 00s"),
    ]
    wrong = [(value, text, got) for value, text in cases if (got := format.format_ms(value)) != text]
    assert wrong == []


def test_counts() -> None:
    cases: list[tuple[float, str]] = [
        (0, "0"),
        (812, "812"),
        (999.4, "999"),
        (999.6, "1k"),
        (19_412, "19.4k"),
        (999_600, "1M"),
        (10_745_088, "10.7M"),
        (1.56e9, "1.56B"),
        (3e12, "3T"),
    ]
    wrong = [(value, text, got) for value, text in cases if (got := format.format_count(value)) != text]
    assert wrong == []


def test_sizes() -> None:
    cases: list[tuple[float, str]] = [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.0 KiB"),
        (164_768, "161 KiB"),
        (9.7 * 2**20, "9.7 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (5 * 2**40, "5.0 TiB"),
    ]
    wrong = [(value, text, got) for value, text in cases if (got := format.format_bytes(value)) != text]
    assert wrong == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(48e12, "48.0 TFLOP/s"), (96.2e9, "96.2 GFLOP/s"), (1.5e15, "1.50 PFLOP/s"), (5e6, "5.00 MFLOP/s")],
)
def test_flops(value: float, text: str) -> None:
    assert format.format_flops_per_s(value) == text


@few
@given(st.floats(1, 1e14))
def test_a_count_is_within_half_a_percent(value: float) -> None:
    text = format.format_count(value)
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
    assert back(format.format_duration(low)) <= back(format.format_duration(high))
    assert back(format.format_duration(a)) == pytest.approx(a, rel=0.06, abs=0.0005)


# --- harmless


def test_work() -> None:
    cases: list[tuple[float, str]] = [
        (812, "812 FLOP"), (999.6, "1.00 kFLOP"), (185_664, "186 kFLOP"), (3e8, "300 MFLOP"),
        (1.2e21, "1.20e+21 FLOP"),
    ]  # fmt: skip
    wrong = [(value, text, got) for value, text in cases if (got := format.format_flops(value)) != text]
    assert wrong == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (181_248, "0.1812 MFLOP"),
        (854.8e6, "854.8 MFLOP"),
        (9.9996e9, "10,000 MFLOP"),
        (10.3e9, "10,300 MFLOP"),
    ],
)
def test_work_per_token(value: float, text: str) -> None:
    assert format.format_flops_per_token(value) == text


def test_losses() -> None:
    cases = [(2.34567, "2.3457"), (0.0, "0.0000"), (0.00123, "0.0012"), (0.0009499, "0.00095")]
    cases += [(-8.16e-6, "-8.2e-06"), (12345.0, "1.234e+04"), (float("nan"), "nan")]
    wrong = [(value, text, got) for value, text in cases if (got := format.format_loss(value)) != text]
    assert wrong == []


def test_norms() -> None:
    cases: list[tuple[float, str]] = [
        (0.0, "0"),
        (0.0064, "0.0064"),
        (0.75, "0.75"),
        (999.4, "999.40"),
        (1.2e20, "1.2e+20"),
    ]
    cases += [(float("inf"), "inf"), (float("nan"), "nan")]
    wrong = [(value, text, got) for value, text in cases if (got := format.format_norm(value)) != text]
    assert wrong == []


def test_epochs() -> None:
    cases: list[tuple[float, str]] = [
        (0.0043, "0.0043"),
        (1.6, "1.6"),
        (99.4, "99"),
        (99.6, "100"),
        (12_345, "12,345"),
    ]
    wrong = [(value, text, got) for value, text in cases if (got := format.format_epochs(value)) != text]
    assert wrong == []


def test_rough_durations() -> None:
    seconds = (0.2, 4.4, 12.0, 44.0, 58.0, 240.0, 2968.0, 3590.0, 3900.0, 97_000.0)
    shown = ["1 s", "4 s", "10 s", "45 s", "1 min", "4 min", "49 min", "59m 50s", "1h 05m", "1d 02h"]
    assert [format.format_rough_duration(one) for one in seconds] == shown
