"""What the loss means, compared with n-grams of the text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learning_logs import CPU_TRAIN, CPU_VAL, GPU_TRAIN, GPU_VAL, analyse, readme_run, require_finding
from run_logs import make_run_log, make_steps

from glassgpt.explain.rules.learned import ladder
from glassgpt.runs.run_log import LoggedSetup, RunLog


def with_ladder(run_log: RunLog, losses: list[float]) -> RunLog:
    rows = [{"order": order, "loss": loss, "bits_per_byte": None} for order, loss in enumerate(losses)]
    return replace(run_log, setup=replace(run_log.setup, data={"ladder": rows}))


def test_nanogpts_cpu_run_ends_between_three_and_four_letters() -> None:
    run_log = readme_run(CPU_TRAIN, CPU_VAL, 0.02, dataset="shakespeare_char")
    progress = analyse(run_log).ladder_progress
    assert progress is not None
    assert progress.is_assumed
    passed_at = {order: one.iteration for order, one in progress.passed.items()}
    assert passed_at == {0: 250, 1: 250, 2: 500, 3: 1500}
    assert progress.next_rung is not None
    assert (progress.next_rung.order, progress.next_rung.loss) == (4, 1.72904)
    finding = require_finding(ladder(analyse(run_log)))
    assert finding.claims == {"ladder order": 3}
    assert finding.values["best_loss"] == 1.8857
    assert finding.at == 1500


def test_nanogpts_gpu_run_passes_the_best_table() -> None:
    run_log = readme_run(GPU_TRAIN, GPU_VAL, 0.02, dataset="shakespeare_char")
    finding = require_finding(ladder(analyse(run_log)))
    assert finding.claims == {"ladder order": 6}
    assert finding.values["distance"] == pytest.approx(1.55808 - 1.4576)


def test_a_run_that_records_its_ladder_needs_no_assumption() -> None:
    run_log = with_ladder(readme_run(GPU_TRAIN, GPU_VAL, 0.02), [4.0, 3.0, 1.0])
    progress = analyse(run_log).ladder_progress
    assert progress is not None
    assert not progress.is_assumed
    assert sorted(progress.passed) == [0, 1]
    assert progress.ladder.best.loss == 1.0


def test_nothing_is_said_of_unknown_data_or_of_a_ladder_that_is_none() -> None:
    plain = readme_run(GPU_TRAIN, GPU_VAL, 0.02)
    assert ladder(analyse(plain)) is None
    assert ladder(analyse(readme_run(GPU_TRAIN, GPU_VAL, 0.02, dataset="openwebtext"))) is None
    # GPT-2's tokens of the same text are not its characters.
    gpt2_tokens = readme_run(GPU_TRAIN, GPU_VAL, 0.02, dataset="shakespeare_char", vocab_size=50304)
    assert ladder(analyse(gpt2_tokens)) is None
    damaged: list[dict[str, object]] = [
        {"ladder": []},
        {"ladder": "x"},
        {"ladder": [{"order": 1}]},
        {"ladder": [[1, 2]]},
    ]
    for data in damaged:
        run_log = replace(plain, setup=replace(plain.setup, data=data))
        assert ladder(analyse(run_log)) is None
    without_evals = make_run_log(make_steps([0, 1, 2], [1.0] * 3, [3.0] * 3), setup=LoggedSetup())
    assert ladder(analyse(with_ladder(without_evals, [4.0, 3.0]))) is None


def test_a_loss_within_noise_of_a_rung_has_not_passed_it() -> None:
    run_log = readme_run(CPU_TRAIN, CPU_VAL, 0.02)
    noisy = replace(run_log, evals=tuple(replace(one, stderr=0.05) for one in run_log.evals))
    progress = analyse(with_ladder(noisy, [4.17, 1.95])).ladder_progress
    assert progress is not None
    assert sorted(progress.passed) == [0]
    exact = replace(run_log, evals=tuple(replace(one, stderr=0.001) for one in run_log.evals))
    progress = analyse(with_ladder(exact, [4.17, 1.95])).ladder_progress
    assert progress is not None
    assert progress.passed[1].iteration == 1500
