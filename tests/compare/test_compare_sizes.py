"""Model size and FLOPs per token, inferred from a log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from compared_runs import SHAPE, claim_ids, compare_run_logs, make_run
from run_logs import make_run_log, make_steps

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.model_size import MAX_FLOPS_ERROR, parameters_from_flops
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import LoggedSetup, RunLog
from glassgpt.runs.trainers import BY_ID

_FLOPS_PER_TOKEN = 6 * 10_646_784 + 12 * 6 * 384 * 256  # FLOPs per token of 10.65M parameters


def nano_mfu(flops_per_token: float, ms: Sequence[float], tokens: int = 16_384) -> list[float]:
    """As nanoGPT prints it: a running average, rounded."""
    average = math.nan
    printed = []
    for time in ms:
        now = 100 * flops_per_token * tokens / (time / 1000) / 312e12
        average = now if math.isnan(average) else 0.9 * average + 0.1 * now
        printed.append(round(average, 2))
    return printed


def with_mfu(flops_per_token: float, **settings: int | None) -> RunLog:
    ms = [12.0 + (i * 7 % 5) for i in range(200)]
    steps = make_steps(range(0, 2000, 10), ms, mfu=nano_mfu(flops_per_token, ms))
    return make_run_log(steps, settings={**SHAPE, **settings})


def test_the_size_is_read_back_through_the_running_average() -> None:
    run_log = with_mfu(_FLOPS_PER_TOKEN)
    work = Analysis(run_log).iteration_flops
    assert work is not None
    assert work.flops / 16_384 == pytest.approx(_FLOPS_PER_TOKEN, rel=0.002)
    assert work.relative_error <= MAX_FLOPS_ERROR
    assert parameters_from_flops(work.flops / 16_384, run_log) == pytest.approx(10_646_784, rel=0.002)


def test_a_coarse_mfu_infers_nothing() -> None:
    assert Analysis(with_mfu(1e5)).iteration_flops is None


def test_other_formulas_infer_no_parameters() -> None:
    llmc = replace(BY_ID["llm.c"], mfu_peak=312e12)
    run_log = replace(with_mfu(71e6), trainer=llmc)
    assert parameters_from_flops(71e6, run_log) is None


def test_several_devices_are_not_a_smaller_model() -> None:
    """MFU is that of one of four devices, tokens per iteration are those of all."""
    run_log = with_mfu(_FLOPS_PER_TOKEN / 4)
    comparison = compare_run_logs(run_log, run_log)
    assert "parameters-contradicted" not in claim_ids(comparison)
    assert comparison.runs[0].analysis.size.flops_per_token == pytest.approx(_FLOPS_PER_TOKEN, rel=0.001)


def test_devices_and_micro_steps_contradict_no_size(subtests: pytest.Subtests) -> None:
    for factor in (1 / 8, 1 / 3, 1 / 2, 1 / 2.4, 2, 40):
        with subtests.test(repr(factor)):
            comparison = compare_run_logs(with_mfu(_FLOPS_PER_TOKEN * factor), make_run())
            assert "parameters-contradicted" not in claim_ids(comparison)
            assert comparison.runs[0].analysis.size.flops_per_token == pytest.approx(
                _FLOPS_PER_TOKEN, rel=0.001
            )


@pytest.mark.parametrize(("factor", "world"), [(0.8, None), (1.3, None), (1 / 2.4, 1)])
def test_a_size_that_nothing_explains_is_contradicted(factor: float, world: int | None) -> None:
    run_log = with_mfu(_FLOPS_PER_TOKEN * factor)
    run_log = replace(run_log, setup=replace(run_log.setup, world_size=world))
    assert "parameters-contradicted" in claim_ids(compare_run_logs(run_log, make_run()))


def test_an_untied_embedding_is_no_contradiction() -> None:
    """Our journal states its parameters exactly. An untied one is looked up, so it is not in the FLOPs."""
    untied = 10_646_784 + 5_000_000
    run_log = replace(with_mfu(_FLOPS_PER_TOKEN), trainer=BY_ID["glassgpt"])
    setup = replace(run_log.setup, parameters=untied, flops_per_token=_FLOPS_PER_TOKEN, peak_flops=312e12)
    size = Analysis(replace(run_log, setup=setup)).size
    assert (size.parameters, size.flops_per_token) == (untied, _FLOPS_PER_TOKEN)
    assert not size.is_contradicted


@pytest.mark.parametrize("factor", [0.8, 1.3])
def test_a_recorded_size_is_never_contradicted(factor: float) -> None:
    """Of a journal: its MFU may be off, of a wrong peak for instance. Its size is counted."""
    run_log = with_mfu(_FLOPS_PER_TOKEN * factor)
    setup = replace(run_log.setup, parameters=10_646_784, flops_per_token=_FLOPS_PER_TOKEN, peak_flops=312e12)
    size = Analysis(replace(run_log, trainer=BY_ID["glassgpt"], setup=setup)).size
    assert (size.parameters, size.parameters_source) == (10_646_784, "stated")
    assert (size.flops_per_token, size.flops_source) == (_FLOPS_PER_TOKEN, "stated")
    assert not size.is_contradicted


def test_parameter_counts_of_the_optimizer_are_exact() -> None:
    run_log = make_run(vocab_size=None)
    setup = replace(run_log.setup, parameters=10_650_000, trained_parameters=10_745_088)
    size = compare_run_logs(replace(run_log, setup=setup), make_run()).runs[0].analysis.size
    assert size.parameters == 10_745_088 - 256 * 384
    assert size.flops_per_token == _FLOPS_PER_TOKEN


def test_an_iteration_of_litgpt_is_a_micro_batch() -> None:
    litgpt = BY_ID["litgpt"]
    assert (
        compare_run_logs(replace(make_run(), trainer=litgpt), make_run())
        .runs[0]
        .analysis.tokens_per_iteration
        is None
    )


def test_flops_per_token_without_a_shape_are_those_of_undisturbed_iterations() -> None:
    """Evaluations pull the printed running average down by 3% in this log."""
    run_log = read_run_log("demo:gpu")
    shapeless = replace(run_log, setup=LoggedSetup(tokens_per_iteration=16_384))
    assert Analysis(shapeless).size.flops_per_token == pytest.approx(_FLOPS_PER_TOKEN, rel=1e-4)


def test_an_mfu_of_one_of_many_unstated_devices_gives_no_flops_per_token() -> None:
    """Each token needs at least 6 FLOPs per parameter."""
    run_log = with_mfu(_FLOPS_PER_TOKEN / 4, n_layer=None)
    setup = replace(run_log.setup, parameters=10_650_000)
    assert Analysis(replace(run_log, setup=setup)).size.flops_per_token is None


def test_parameters_and_flops_are_of_one_model() -> None:
    """One that states half of what its shape would have: both follow what is stated."""
    run_log = make_run()
    size = Analysis(replace(run_log, setup=replace(run_log.setup, parameters=5_000_000))).size
    assert size.parameters == 5_000_000
    assert size.flops_per_token == 6 * 5_000_000 + 12 * 6 * 384 * 256
