"""Note 001 explained nanoGPT's lines, and took the MFU's fall from 11.09 to 9.99 % for lost efficiency."""

from __future__ import annotations

import io

import pytest

from glassgpt.explain.explanation import Explanation, explain
from glassgpt.runs.glossary import glossary
from glassgpt.runs.lines import read_lines
from glassgpt.runs.recognise import read_log

LINES = (
    "iter 4980: loss 0.8010, time 33.22ms, mfu 11.07%",
    "iter 4990: loss 0.8212, time 33.23ms, mfu 11.09%",
    "step 5000: train loss 0.6224, val loss 1.7044",
    "iter 5000: loss 0.8236, time 4446.83ms, mfu 9.99%",
)
LOG = "\n".join(LINES) + "\n"
IN_BOLD = "#### Line by line\n" + "".join(f"- **{line}**  \n  At this iteration: …\n\n" for line in LINES)


@pytest.fixture(params=[LOG, IN_BOLD], ids=["log", "bold"])
def explanation(request: pytest.FixtureRequest) -> Explanation:
    return explain(read_log(read_lines(io.BytesIO(request.param.encode())), "note"))


def test_the_figures_are_read(explanation: Explanation) -> None:
    facts = explanation.facts
    assert (facts.first_iteration, facts.last_iteration, facts.iterations_logged) == (4980, 5000, 3)
    assert facts.steady_ms == pytest.approx(33.225)
    assert facts.eval_overhead_ms == pytest.approx(4446.83 - 33.225)
    assert facts.startup_ms is None  # the first line of the log is not the first of the run
    assert (facts.final_train_loss, facts.final_val_loss) == (0.6224, 1.7044)


def test_the_fall_of_the_mfu_is_proved_to_be_the_running_average(explanation: Explanation) -> None:
    dip = next(finding for finding in explanation.findings if finding.id == "mfu-dip-is-eval")
    values = dip.values
    assert (values["mfu_before"], values["mfu_printed"]) == (11.09, 9.99)
    assert values["iteration_mfu"] == pytest.approx(0.083, abs=0.001)
    assert values["mfu_recomputed"] == pytest.approx(9.99, abs=0.005)
    # The same sum, done here: an iteration of 33.23 ms is at 11.09 %, so one of 4446.83 ms is at 0.083 %.
    assert pytest.approx(9.99, abs=0.005) == 0.9 * 11.09 + 0.1 * 11.09 * 33.23 / 4446.83


def test_eleven_percent_is_of_an_a100(explanation: Explanation) -> None:
    peak = next(finding for finding in explanation.findings if finding.id == "mfu-wrong-peak")
    assert peak.values["peak_flops_per_s"] == 312e12
    assert peak.values["flops_per_s"] == pytest.approx(34.6e12, abs=5e10)
    assert pytest.approx(34.6, abs=0.05) == 0.111 * 312


def test_the_lines_are_explained_with_their_own_values(explanation: Explanation) -> None:
    pieces = [entry.log_text for entry in glossary(explanation.log, explanation.facts)]
    assert pieces == [
        "step 5000: train loss 0.6224, val loss 1.7044",
        "iter 5000",
        "loss 0.8236",
        "time 4446.83ms",
        "mfu 9.99%",
    ]
