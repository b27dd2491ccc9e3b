"""Notes 000 and 002 asked why some iterations take 30 times as long, and advised to reduce eval_interval."""

from __future__ import annotations

import io

import pytest
from note_000 import console_log, quoted

from glassgpt.explain.explanation import Explanation, explain
from glassgpt.runs.lines import read_lines
from glassgpt.runs.recognise import read_log


def explained(text: str) -> Explanation:
    return explain(read_log(read_lines(io.BytesIO(text.encode())), "note"))


@pytest.fixture(params=[console_log, quoted], ids=["log", "quoted"])
def explanation(request: pytest.FixtureRequest) -> Explanation:
    return explained(request.param())


def test_the_figures_are_read(explanation: Explanation) -> None:
    facts = explanation.facts
    assert (facts.first_iteration, facts.last_iteration, facts.log_interval) == (0, 1000, 100)
    assert facts.first_iteration_ms == 12543
    assert facts.steady_ms == 168 + (0.5 if facts.iterations_logged == 11 else 0)
    assert facts.eval_overhead_ms == pytest.approx((5985 + 5726) / 2 - facts.steady_ms)
    assert facts.startup_ms == pytest.approx(12543 - (5985 + 5726) / 2)
    assert facts.checkpoint_steps == [500, 1000]


def test_the_spikes_their_cause_and_cost_are_found(explanation: Explanation) -> None:
    spikes = next(finding for finding in explanation.findings if finding.id == "eval-spikes")
    values = spikes.values
    assert values["spike_ms"] == (5985 + 5726) / 2  # the median of both
    assert spikes.claims["cause of slow iterations"] == "evaluation"
    assert spikes.text["explanation"][0].key == "eval-spikes.explanation.clock_includes_save"
    # Three evaluations of 5.7 s in 1,001 iterations of 168 ms and one start-up.
    assert (values["evaluations"], values["eval_s"]) == (3, pytest.approx(17.06, abs=0.01))
    assert values["run_s"] == pytest.approx(192, abs=1)
    assert values["eval_share"] == pytest.approx(0.0888, abs=0.0005)


def test_the_advice_is_to_raise_the_interval(explanation: Explanation) -> None:
    spikes = next(finding for finding in explanation.findings if finding.id == "eval-spikes")
    values = spikes.text["advice"][0].values
    assert values["interval_setting"] == "eval_interval"
    assert (values["old_interval"], values["new_interval"]) == (500, 2000)
    assert values["interval_saving"] == pytest.approx(0.0475, abs=0.0002)


def test_quotes_out_of_order_are_one_run() -> None:
    facts = explained(quoted()).facts
    assert facts.iterations_logged == 6
    assert facts.segments == 1
    assert facts.eval_steps == [500, 1000]
    assert facts.best_val_loss is None  # the quotes have none
