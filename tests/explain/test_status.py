"""The sentence at the top of the page and of `glass watch`: what a run is doing, how far, and how well."""

from __future__ import annotations

import journals
from run_logs import make_run_log, make_steps
from written_findings import written_finding

from glassgpt.explain.summary import compose_status, forecast_positions
from glassgpt.record.finding import Finding
from glassgpt.record.journal import Record
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.runs.progress import progress_of
from glassgpt.runs.run_log import RunLog


def status(run_log: RunLog, later_s: float = 0.0, findings: list[Finding] | None = None) -> str:
    run = Analysis(run_log)
    return compose_status(progress_of(run, run_log, 1e9 + later_s, 1e9), run_log, run.facts, findings or [])


def own_run(
    val_loss: float = 2.0,
    rates: tuple[float, float] = (4e5, 4.5e5),
    live: bool = True,
    train_loss: float | None = None,
) -> RunLog:
    """At update 1,250 of 5,000. `train_loss`: evaluated; None: that of the validation split."""
    start = journals.run(5000)
    start["config"]["eval_interval"] = 250
    start["forecast"] = {
        "tokens_per_s": [rates[0], sum(rates) / 2, rates[1]],
        "mfu": [10.0, 12.0, 13.0],
        "loss_curve": [[0, 4.1, 4.2, 4.3], [1000, 1.9, 2.0, 2.1], [5000, 1.5, 1.6, 1.7]],
    }
    records: list[Record] = [start, journals.first_step()]
    for at in range(10, 1251, 10):
        records.append(journals.step(at, step_ms=38.0, loss=1.93))
        if at % 250 == 0:
            losses = {"train": val_loss if train_loss is None else train_loss, "val": val_loss}
            records += [journals.evaluation(at, split, loss) for split, loss in losses.items()]
    return run_log_from_records(records, "run", live=live)


def test_a_run_in_progress_that_is_as_expected() -> None:
    # 3,750 updates of 38 ms and 15 evaluations of 0.8 s.
    assert status(own_run()) == (
        "Training: iteration 1,250 of 5,000 (25%), loss 1.9300; about 3 min left, evaluations included. "
        "Speed and loss are as expected."
    )


def test_what_is_not_as_expected_is_said() -> None:
    facts = Analysis(own_run()).facts
    assert forecast_positions(own_run(), facts) == {"loss": "on", "training_loss": "on", "speed": "on"}
    assert "learns more slowly" in status(own_run(val_loss=2.6))
    assert "the training loss is not" in status(own_run(val_loss=2.6, train_loss=2.0))
    assert "learns faster" in status(own_run(val_loss=1.2))
    assert "loss is below what was expected" in status(own_run(val_loss=1.2, train_loss=2.0))
    assert "slower than was expected" in status(own_run(rates=(9e5, 9.5e5)))
    worse = written_finding("x", "warning", "It is bad", "", "", "")
    assert status(own_run(), findings=[worse]).endswith("It is bad.")


def test_a_foreign_log() -> None:
    steps = make_steps(range(0, 1001, 10), ms=100.0, loss=[2.0] * 101)
    planned = make_run_log(steps, settings={"max_iters": 2000}, live=True)
    assert status(planned) == (
        "Training: iteration 1,000 of 2,000 (50%), loss 2.0000; about 2 min left. Nothing unusual so far."
    )
    assert status(make_run_log(steps, live=True)) == (
        "Training: iteration 1,000, loss 2.0000. Nothing unusual so far."
    )


def test_starting_stalled_and_over() -> None:
    assert status(run_log_from_records([journals.run()], "run", live=True)) == (
        "Starting: no update is logged yet."
    )
    expected = journals.run()
    expected["forecast"] = {"total_s": [237.0, 380.0, 851.0]}
    assert "4 min to 14 min" in status(run_log_from_records([expected], "run", live=True))
    assert status(own_run(), later_s=600) == (
        "No new line for 10m 00s, where one usually comes every 380 ms. "
        "The last was iteration 1,250 of 5,000 (25%), loss 1.9300."
    )
    assert status(own_run(live=False)).startswith("A GlassGPT run, logged up to iteration 1,250")
