"""Change points of step times: found where they are, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from run_logs import make_run_log, make_steps

from glassgpt.explain.rules.step_time import batch_changed, find_regime_cost, throughput_drift
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.regimes import find_changes
from glassgpt.runs.run_log import Floats, LoggedProcess, RunLog

Noise = Callable[[np.random.Generator, int], Floats]


def _autoregressive(rng: np.random.Generator, count: int, decay: float, spread: float) -> Floats:
    innovations = rng.normal(0, spread * np.sqrt(1 - decay**2), count)
    values = np.zeros(count)
    for at in range(1, count):
        values[at] = decay * values[at - 1] + innovations[at]
    return values


# Of the logarithm of the step time.
NOISES: dict[str, Noise] = {
    "2%": lambda rng, count: rng.normal(0, 0.02, count),
    "50%": lambda rng, count: rng.normal(0, 0.5, count),
    "heavy tails": lambda rng, count: np.clip(rng.standard_t(2, count) * 0.05, -5, 5),
    "Cauchy": lambda rng, count: np.clip(rng.standard_cauchy(count) * 0.03, -5, 5),
    "skewed": lambda rng, count: rng.exponential(0.3, count),
    "two levels at random": lambda rng, count: 0.7 * (rng.random(count) < 0.5) + rng.normal(0, 0.02, count),
    "spikes": lambda rng, count: 2.3 * (rng.random(count) < 0.05) + rng.normal(0, 0.02, count),
    "every other one slow": lambda rng, count: 0.7 * (np.arange(count) % 2) + rng.normal(0, 0.02, count),
    "short bursts": lambda rng, count: 1.4 * (np.arange(count) % 97 < 5) + rng.normal(0, 0.02, count),
    "wave": lambda rng, count: 0.1 * np.sin(np.arange(count) / 16) + rng.normal(0, 0.02, count),
    "drift": lambda rng, count: np.linspace(0, 0.3, count) + rng.normal(0, 0.02, count),
    "rounded": lambda rng, count: np.log(np.round(3 * np.exp(rng.normal(0, 0.1, count))) / 3),
    "autocorrelated": lambda rng, count: _autoregressive(rng, count, 0.99, 0.05),
}


@pytest.mark.parametrize("kind", NOISES)
def test_noise_is_no_regime(kind: str) -> None:
    """At most one false alarm in twenty runs of each kind, of different lengths."""
    rng = np.random.default_rng(7)
    counts = [40, 100, 300, 1000, 3000] * 4
    alarms = [len(find_changes(100 * np.exp(NOISES[kind](rng, count)))) > 0 for count in counts]
    assert sum(alarms) <= 1


@pytest.mark.parametrize(
    ("count", "begin", "length", "factor", "noise"),
    [
        (200, 60, 100, 1.3, 0.03),
        (2000, 700, 10, 2.0, 0.03),  # ten lines only
        (1200, 940, 96, 4.0, 0.05),
        (4400, 72, 2900, 2.35, 0.03),
        (50_000, 20_000, 1000, 1.2, 0.05),
    ],
)
def test_a_slow_stretch_is_found_where_it_is(
    count: int, begin: int, length: int, factor: float, noise: float
) -> None:
    rng = np.random.default_rng(3)
    ms = 100 * np.exp(rng.normal(0, noise, count))
    ms[begin : begin + length] *= factor
    ms[rng.random(count) < 0.02] *= 8  # spikes are part of no regime
    assert find_changes(ms) == pytest.approx([begin, begin + length], abs=2)


def _wandering(rng: np.random.Generator, count: int, decay: float, spread: float) -> Floats:
    """A machine whose step time wanders by that share, as it would after a long warm-up."""
    return 100 * np.exp(_autoregressive(rng, count + 500, decay, spread)[500:])


def test_a_step_time_that_wanders_has_no_regimes() -> None:
    """At most one false alarm in twenty, whatever the autocorrelation and the spread."""
    rng = np.random.default_rng(11)
    for decay, spread in [(0.9, 0.05), (0.9, 0.1), (0.9, 0.2), (0.99, 0.05), (0.99, 0.1), (0.99, 0.2)]:
        runs = [_wandering(rng, count, decay, spread) for count in (40, 100, 300, 1000) * 10]
        noisy = [ms * np.exp(rng.normal(0, 0.05, len(ms))) for ms in runs[::4]]
        alarms = sum(len(find_changes(ms)) > 0 for ms in (*runs, *noisy))
        assert alarms <= 0.05 * (len(runs) + len(noisy)), (decay, spread)


def test_a_change_is_found_in_a_step_time_that_wanders() -> None:
    rng = np.random.default_rng(12)
    least = {(0.9, 0.05): 1.0, (0.9, 0.1): 0.9, (0.99, 0.05): 1.0, (0.99, 0.1): 0.95, (0.99, 0.2): 0.75}
    for (decay, spread), share in least.items():
        hits = []
        for count in (40, 100, 300, 1000) * 5:
            ms, begin = _wandering(rng, count, decay, spread), count // 3
            ms[begin:] *= 1.5
            hits.append(any(abs(at - begin) <= max(3, count // 50) for at in find_changes(ms)))
        assert np.mean(hits) >= share, (decay, spread)


def slow_between(first: int, last: int) -> RunLog:
    """A line every ten of 4,000 iterations, 100 ms, but 250 ms from `first` to `last`."""
    at = range(0, 4000, 10)
    noise = np.random.default_rng(1).normal(1, 0.01, len(at))
    ms = [(250.0 if first <= i <= last else 100.0) * one for i, one in zip(at, noise, strict=True)]
    return make_run_log(make_steps(at, ms))


def test_regimes_say_where_how_much_and_how_sure() -> None:
    analysis = Analysis(slow_between(800, 2790))
    regimes = analysis.facts.regimes
    assert [(one["first_iteration"], one["last_iteration"]) for one in regimes] == [
        (0, 790),
        (800, 2790),
        (2800, 3990),
    ]
    assert [one["steady_ms"] for one in regimes] == pytest.approx([100, 250, 100], rel=0.01)
    assert [one["iterations"] for one in regimes] == [791, 2000, 1200]
    assert [one["separation"] for one in regimes] == [None, 1.0, 1.0]


def test_the_total_counts_each_unlogged_iteration_by_its_regime() -> None:
    analysis = Analysis(slow_between(800, 2790))
    truth_s = (1990 * 100 + 2000 * 250 + 100) / 1000
    assert analysis.total_s == pytest.approx(truth_s, rel=0.005)
    assert analysis.facts.regime_total_s == analysis.total_s
    # By the median of the whole log, which is that of the slow regime, it would be far too long.
    assert (analysis.facts.estimated_total_s or 0) > 1.2 * truth_s
    one_regime = Analysis(make_run_log(make_steps(range(0, 4000, 10), 100.0)))
    assert one_regime.facts.regime_total_s == one_regime.facts.estimated_total_s


def test_slow_regimes_have_a_price() -> None:
    analysis = Analysis(slow_between(800, 2790))
    cost, finding = find_regime_cost(analysis), throughput_drift(analysis)
    assert cost is not None
    assert finding is not None
    assert cost.lost_s == pytest.approx(2000 * 0.15, rel=0.01)
    assert finding.severity == "warning"  # 300 s of 699 s
    assert finding.values["saving"] == pytest.approx(cost.lost_s / (analysis.total_s or 1))
    assert (finding.at, finding.values["changes"]) == (800, [800, 2800])


def test_a_batch_schedule_is_no_trouble() -> None:
    """Megatron's ramp-up prints the batch size; others print tokens/s, which do not change."""
    process = LoggedProcess(True, batch_size_changes=((0, 64), (2000, 160)))
    stated = replace(slow_between(2000, 4000), segments=(process,))
    steps = slow_between(2000, 4000).steps
    tokens = np.where(steps.iteration < 2000, 65_536, 163_840)
    implied = replace(slow_between(2000, 4000), steps=replace(steps, tokens_per_s=tokens / steps.ms * 1000))
    for run_log in (stated, implied):
        analysis = Analysis(run_log)
        assert [regime.cause for regime in analysis.regimes] == [None, "batch"]
        assert throughput_drift(analysis) is None
        schedule = batch_changed(analysis)
        assert schedule is not None
        assert (schedule.severity, schedule.at) == ("info", 2000)
    # Tokens/s that fall are another matter.
    slower = replace(slow_between(2000, 4000), steps=replace(steps, tokens_per_s=65_536 / steps.ms * 1000))
    assert [regime.cause for regime in Analysis(slower).regimes] == [None, None]
    assert throughput_drift(Analysis(slower)) is not None
    assert batch_changed(Analysis(slower)) is None


def test_a_regime_begins_with_its_process() -> None:
    ms = [3000.0, *[100.0] * 99, 3000.0, *[150.0] * 99]
    run_log = make_run_log(
        make_steps(range(200), ms, segment=[0] * 100 + [1] * 100),
        segments=(LoggedProcess(True), LoggedProcess(True, resumed=True, first_iteration=100)),
    )
    _, second = Analysis(run_log).regimes
    assert (second.first_iteration, second.cause, second.steady_ms) == (100, "process", 150.0)


def test_a_million_lines_take_a_second() -> None:
    rng = np.random.default_rng(0)
    ms = 100 * np.exp(rng.normal(0, 0.05, 1_000_000))
    ms[300_000:500_000] *= 1.5
    assert find_changes(ms) == [300_000, 500_000]
    ms[-400:] = np.where(np.arange(400) // 20 % 2, 100.0, 300.0)  # less than a block
    assert find_changes(ms) == [300_000, 500_000]
