"""Findings about speed, on the figures of notes 001 and 004 and of a real run on four GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from run_logs import make_run_log, make_steps
from timed_logs import analyse, any_timed_run, even_run, require_finding

from glassgpt.config import ConfigValue
from glassgpt.estimate.cards import find_card
from glassgpt.explain.registry import MFU_RULES
from glassgpt.explain.rules.mfu import mfu_dip_is_eval, mfu_wrong_peak
from glassgpt.explain.rules.workload import hidden_accumulation, parameters_inferred
from glassgpt.i18n import say
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.trainer import A100_PEAK
from glassgpt.runs.trainers import BY_ID

SMALL: dict[str, ConfigValue] = {"n_layer": 12, "n_embd": 384, "block_size": 1024}  # note 004's first model
LARGE: dict[str, ConfigValue] = {"n_layer": 12, "n_embd": 768, "block_size": 1024}
BABY: dict[str, ConfigValue] = {"n_layer": 6, "n_embd": 384, "block_size": 256, "batch_size": 64}


def note_001() -> RunLog:
    steps = make_steps([4980, 4990, 5000], [33.22, 33.23, 4446.83], mfu=[11.07, 11.09, 9.99])
    return make_run_log(
        steps, [(5000, 0.6224, 1.7044)], segments=(LoggedProcess(has_startup=False, first_iteration=4980),)
    )


def note_004(ms: float, mfu: float, **setup: object) -> RunLog:
    """Iterations 800 to 1000, as the note quotes them: one time and one MFU."""
    steps = make_steps(range(800, 1001, 10), ms, mfu=[mfu] * 21)
    run_log = make_run_log(steps, segments=(LoggedProcess(has_startup=False, first_iteration=800),))
    return replace(run_log, setup=LoggedSetup(tokens_per_iteration=524288, **setup))  # type: ignore[arg-type]


def nanogpt_run(
    flops_per_iteration: float,
    ms: float,
    settings: dict[str, ConfigValue],
    jitter: float = 0.0,
    **setup: object,
) -> RunLog:
    """What nanoGPT prints: a line every 10 iterations, an evaluation every 250, its running average."""
    at = np.arange(0, 2001, 10)
    times = ms * (1 + jitter * np.random.default_rng(3).standard_normal(len(at)))
    times[at % 250 == 0] += 3000.0
    average, printed = -1.0, [np.nan]
    for spent in times[1:]:
        single = flops_per_iteration / (spent / 1000) / A100_PEAK * 100
        average = single if average < 0 else 0.9 * average + 0.1 * single
        printed.append(round(average, 2))
    run_log = make_run_log(
        make_steps(at.tolist(), np.round(times, 2).tolist(), mfu=printed),
        [(int(place), 2.0, 2.0) for place in at if place % 250 == 0],
    )
    return replace(run_log, setup=LoggedSetup(settings=settings, **setup))  # type: ignore[arg-type]


# --- mfu-dip-is-eval ---


def test_the_fall_to_9_99_is_the_running_average() -> None:
    finding = require_finding(mfu_dip_is_eval(analyse(note_001())))
    assert (finding.values["mfu_before"], finding.values["mfu_printed"]) == (11.09, 9.99)
    assert finding.values["iteration_ms"] == 4446.83
    assert finding.values["iteration_mfu"] == pytest.approx(11.07 * 33.2 / 4446.83, rel=0.02)
    assert finding.values["mfu_recomputed"] == pytest.approx(0.9 * 11.09 + 0.1 * 0.083, abs=0.005)
    assert (finding.severity, finding.at, finding.advice) == ("info", 5000, "")


def test_the_average_is_recomputed_at_every_evaluation() -> None:
    analysis = analyse(nanogpt_run(70.96e6 * 16384, 12.88, BABY, jitter=0.08))
    finding = require_finding(mfu_dip_is_eval(analysis))
    assert (finding.values["explained_evaluations"], finding.values["evaluations"]) == (8, 8)
    assert analysis.facts.steady_ms is not None
    single = 100 * 70.96e6 * 16384 / (analysis.facts.steady_ms / 1000) / A100_PEAK
    # Not the average, which evaluations pull down.
    assert analysis.throughput is not None
    assert analysis.throughput.mfu_percent == pytest.approx(single, rel=0.005)
    assert analysis.facts.mfu_reported_steady is not None
    assert analysis.facts.mfu_reported_steady < 0.99 * single


def test_a_fall_that_the_average_does_not_explain_is_not_excused() -> None:
    run_log = note_001()
    fallen = replace(run_log.steps, mfu=np.array([11.07, 11.09, 8.0]))
    assert mfu_dip_is_eval(analyse(replace(run_log, steps=fallen))) is None


def test_no_dip_no_finding() -> None:
    run_log = note_001()
    assert mfu_dip_is_eval(analyse(replace(run_log, evals=()))) is None
    assert (
        mfu_dip_is_eval(
            analyse(replace(run_log, trainer=replace(run_log.trainer, mfu_is_running_average=False)))
        )
        is None
    )
    tiny = replace(run_log.steps, mfu=np.array([0.03, 0.03, 0.03]))  # a CPU: all of it is rounding
    assert mfu_dip_is_eval(analyse(replace(run_log, steps=tiny))) is None
    assert mfu_dip_is_eval(analyse(even_run())) is None


# --- mfu-wrong-peak ---


def test_the_mfu_on_each_plausible_card() -> None:
    finding = require_finding(mfu_wrong_peak(analyse(note_004(9340.0, 15.4))))
    assert finding.values["mfu_percent"] == pytest.approx(15.4)
    assert finding.values["peak_flops_per_s"] == finding.claims["peak of the MFU"] == 312e12
    assert finding.values["flops_per_s"] == pytest.approx(0.154 * 312e12)
    (common,) = finding.text["explanation"]
    for card_mfu in ("RTX 4070 Ti 59.9%", "A100 15.4%"):
        assert repr(card_mfu) in str(common.values["card_mfus"])
    assert [message.key for message in finding.text["advice"]] == ["mfu-wrong-peak.advice.name_card"]
    fast = require_finding(mfu_wrong_peak(analyse(note_004(9340.0, 45.8))))
    assert fast.values["example"] == '"A100 SXM4 40GB"', "it does more than an RTX 4070 Ti can"


def test_an_average_that_an_evaluation_pulled_down_says_nothing_of_the_card() -> None:
    """As note 003 quotes it: the evaluating iteration alone, with a time without the evaluation."""
    whole = note_001()
    last = replace(whole, steps=make_steps([5000], [33.2], mfu=[9.99]), evals=whole.evals)
    nanogpt = replace(last.trainer, step_time_includes_eval=False)
    for run_log in (last, replace(last, trainer=nanogpt)):
        assert mfu_wrong_peak(Analysis(run_log, find_card("RTX 4070 Ti"))) is None
    assert mfu_wrong_peak(Analysis(whole, find_card("RTX 4070 Ti"))) is not None


@pytest.mark.parametrize("by", ["flag", "log"])
def test_the_mfu_on_the_card_that_it_was(by: str) -> None:
    run_log = note_004(9340.0, 15.4, device_name="NVIDIA GeForce RTX 4070 Ti" if by == "log" else None)
    card = find_card("RTX 4070 Ti") if by == "flag" else None
    finding = require_finding(mfu_wrong_peak(Analysis(run_log, card)))
    assert finding.text["title"][0].key == "mfu-wrong-peak.title.known_card"
    assert finding.values["card_mfu_percent"] == pytest.approx(59.9, abs=0.05)
    assert finding.values["mfu_percent"] == pytest.approx(15.4)
    assert "RTX 4070 Ti" in str(finding.values["card"])
    assert finding.values["card_peak_flops_per_s"] == pytest.approx(80.2e12, abs=5e10)
    assert finding.values["dtype"] == "bfloat16"


def test_more_than_the_card_can_do_is_reported() -> None:
    run_log = note_004(9340.0, 15.4)
    finding = require_finding(mfu_wrong_peak(Analysis(run_log, find_card("RTX 3060"))))
    assert finding.severity == "warning"
    assert finding.values["card_mfu_percent"] == pytest.approx(188, abs=0.5)
    assert say("mfu-wrong-peak.explanation.above_own_peak") in finding.text["explanation"]


def test_float32_is_measured_against_tf32() -> None:
    run_log = note_004(9340.0, 15.4, settings={"dtype": "float32"})
    finding = require_finding(mfu_wrong_peak(Analysis(run_log, find_card("RTX 4090"))))
    assert finding.values["card_peak_flops_per_s"] == pytest.approx(82.6e12, abs=5e10)
    assert finding.values["dtype"] == "tf32"


@pytest.mark.parametrize(("device", "mfu"), [("cpu", 0.03), ("mps", 1.6)])
def test_without_a_gpu_it_means_nothing(device: str, mfu: float) -> None:
    finding = require_finding(mfu_wrong_peak(analyse(note_004(42.0, mfu, settings={"device": device}))))
    assert finding.text["title"] == (say("mfu-wrong-peak.title.no_gpu", device=device),)


def test_a_speed_that_no_gpu_has_is_reported() -> None:
    finding = require_finding(mfu_wrong_peak(analyse(note_004(1440.0, 0.01))))
    assert finding.text["title"][0].key == "mfu-wrong-peak.title.very_slow"
    assert "A100" in str(finding.values["reference"])


def test_on_an_a100_the_peak_is_right() -> None:
    run_log = note_004(9340.0, 15.4)
    assert mfu_wrong_peak(Analysis(run_log, find_card("A100 SXM4 40GB"))) is None


def test_no_mfu_or_no_fixed_peak_no_finding() -> None:
    assert mfu_wrong_peak(analyse(even_run())) is None
    llmc = BY_ID["llm.c"]
    assert mfu_wrong_peak(analyse(replace(note_004(9340.0, 15.4), trainer=llmc))) is None


# --- parameters-inferred ---


def test_the_small_model_has_40_5_million_parameters() -> None:
    printed = note_004(3900.0, 12.9, settings=SMALL, parameters=33_000_000)
    assert parameters_inferred(analyse(printed)) is None  # the trainer counted them
    claimed = replace(printed, setup=replace(printed.setup, parameters_are_claimed=True))
    finding = require_finding(parameters_inferred(analyse(claimed)))
    assert finding.severity == "warning"
    assert finding.values["parameters"] == finding.claims["parameters"] == pytest.approx(40.5e6, abs=5e4)
    assert finding.values["stated_parameters"] == 33_000_000
    assert finding.values["flops_per_s"] == pytest.approx(0.129 * A100_PEAK, rel=1e-3)
    assert finding.values["flops_per_token"] == pytest.approx(299e6, abs=5e5)
    assert finding.values["vocab_size"] == 50_304
    assert finding.values["shape_parameters"] == pytest.approx(40.6e6, abs=5e4)
    assert finding.values["deviation"] == pytest.approx(0.18, abs=0.005)


def test_a_stated_size_that_fits_is_no_finding() -> None:
    assert (
        parameters_inferred(analyse(note_004(9340.0, 15.4, settings=LARGE, parameters=125_000_000))) is None
    )
    vocabulary: dict[str, ConfigValue] = {"vocab_size": 50304}
    assert parameters_inferred(analyse(note_004(3900.0, 12.9, settings=SMALL | vocabulary))) is None


def test_a_size_that_is_not_stated_is_inferred() -> None:
    finding = require_finding(parameters_inferred(analyse(note_004(9340.0, 15.4, settings=LARGE))))
    assert finding.severity == "info"
    assert finding.text["title"][0].key == "parameters-inferred.title.unstated"
    assert finding.values["parameters"] == pytest.approx(124e6, abs=5e5)


def test_without_the_shape_there_is_an_upper_bound() -> None:
    finding = require_finding(parameters_inferred(analyse(note_004(3900.0, 12.9))))
    assert finding.values["max_parameters"] == pytest.approx(49.9e6, abs=5e4)  # 299 MFLOP / 6
    assert "parameters" not in finding.claims
    assert parameters_inferred(analyse(note_004(3900.0, 12.9, parameters=33_000_000))) is None
    # More than the bound may be several devices, of which the MFU counts one: no contradiction.
    assert parameters_inferred(analyse(note_004(3900.0, 12.9, parameters=124_000_000))) is None


@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.1])
def test_the_size_survives_evaluations_and_noise(jitter: float) -> None:
    shape = {name: BABY[name] for name in ("n_layer", "n_embd", "block_size")}
    run = nanogpt_run(70.96e6 * 16384, 12.88, shape, jitter, tokens_per_iteration=16384)
    finding = require_finding(parameters_inferred(analyse(run)))
    assert finding.values["parameters"] == pytest.approx(10.65e6, rel=0.02)


def test_a_rounded_away_mfu_infers_nothing() -> None:
    assert parameters_inferred(analyse(note_004(3900.0, 0.03, settings=SMALL))) is None
    no_tokens = replace(note_004(3900.0, 12.9, settings=SMALL), setup=LoggedSetup(settings=SMALL))
    assert parameters_inferred(analyse(no_tokens)) is None


# --- hidden-accumulation ---

BIG: dict[str, ConfigValue] = {"n_layer": 24, "n_embd": 1024, "block_size": 256, "batch_size": 16}
BIG_FLOPS = 6 * 302_106_624 + 12 * 24 * 1024 * 256


def test_four_devices_behind_one_mfu() -> None:
    run = nanogpt_run(BIG_FLOPS * 4096, 75.88, BIG, parameters=302_110_000, tokens_per_iteration=16384)
    finding = require_finding(hidden_accumulation(analyse(run)))
    assert finding.text["title"] == (say("hidden-accumulation.title.one_device", devices=4),)
    assert finding.values["stated_tokens"] == 16_384
    assert finding.values["total_flops_per_s"] == pytest.approx(BIG_FLOPS * 16_384 / 0.07588, rel=1e-3)
    assert parameters_inferred(analyse(run)) is None  # not another size

    four_devices = replace(run, setup=replace(run.setup, world_size=4))
    assert hidden_accumulation(analyse(four_devices)) is None
    assert parameters_inferred(analyse(four_devices)) is None


def test_four_devices_that_share_a_model_do_the_work_of_one_copy() -> None:
    """tp_size=4: the log counts the same 4,096 tokens for each of the four."""
    run = nanogpt_run(
        BIG_FLOPS * 4096,
        327.25,
        BIG,
        parameters=302_110_000,
        tokens_per_iteration=16384,
        world_size=4,
        tensor_parallel=4,
    )
    together = BIG_FLOPS * 4096 / 0.32725
    finding = require_finding(hidden_accumulation(analyse(run)))
    assert (finding.severity, finding.values["devices"]) == ("warning", 4)
    assert finding.values["total_flops_per_s"] == pytest.approx(together, rel=1e-3)
    assert finding.values["device_flops_per_s"] == pytest.approx(together / 4, rel=1e-3)
    assert analyse(run).facts.achieved_tflops == pytest.approx(together / 1e12, rel=1e-3)
    card = find_card("H100 SXM5")
    assert card is not None
    on_card = require_finding(mfu_wrong_peak(Analysis(run, card)))
    assert on_card.values["card_mfu_percent"] == pytest.approx(
        100 * together / 4 / card.peaks["bfloat16"], rel=1e-3
    )
    # Two copies of two devices each work on different tokens.
    two_copies = replace(run, setup=replace(run.setup, tensor_parallel=2))
    assert analyse(two_copies).facts.achieved_tflops == pytest.approx(2 * together / 1e12, rel=1e-3)


def test_a_rounded_mfu_is_not_multiplied() -> None:
    steps = make_steps(range(0, 500, 10), 1445.0, mfu=[0.01] * 50)
    finding = require_finding(mfu_wrong_peak(analyse(make_run_log(steps))))
    assert finding.values == {"mfu_percent": 0.01, "reference": "A100 (312 TFLOP/s)", "trainer": "nanoGPT"}


def test_more_work_than_the_log_says() -> None:
    run = nanogpt_run(70.96e6 * 16384 * 3, 38.0, BABY, parameters=10_650_000, tokens_per_iteration=16384)
    finding = require_finding(hidden_accumulation(analyse(run)))
    assert finding.severity == "warning"
    assert finding.text["title"] == (say("hidden-accumulation.title.more_work", token_ratio=3),)


def test_micro_steps_that_no_setting_names() -> None:
    settings: dict[str, ConfigValue] = LARGE | {"batch_size": 12}
    run = nanogpt_run(854.8e6 * 12 * 1024 * 40, 2800.0, settings, parameters=123_700_000)
    finding = require_finding(hidden_accumulation(analyse(run)))
    assert finding.text["title"] == (say("hidden-accumulation.title.micro_steps", micro_steps=40),)
    assert finding.values["micro_step_ms"] == pytest.approx(70.0, abs=0.05)
    named: dict[str, ConfigValue] = settings | {"gradient_accumulation_steps": 40}
    assert hidden_accumulation(analyse(replace(run, setup=replace(run.setup, settings=named)))) is None


def test_work_that_fits_or_is_no_multiple_is_no_finding() -> None:
    for share in (1.0, 1.17, 2.5):
        run = nanogpt_run(
            70.96e6 * 16384 * share, 38.0, BABY, parameters=10_650_000, tokens_per_iteration=16384
        )
        assert hidden_accumulation(analyse(run)) is None
    assert hidden_accumulation(analyse(even_run())) is None


@given(any_timed_run())
def test_nothing_makes_a_rule_fail(run_log: RunLog) -> None:
    analysis = analyse(run_log)
    for rule in MFU_RULES:
        finding = rule(analysis)
        assert finding is None or (finding.title and finding.evidence and finding.explanation)


def test_an_mfu_of_evaluations_says_nothing_about_the_card() -> None:
    """eval_interval=1: every time that it divides by is an evaluation's."""
    steps = make_steps(range(30), [4030.0] * 30, mfu=[0.08] * 30)
    run_log = make_run_log(steps, evals=[(at, 3.0, 3.1) for at in range(30)])
    assert mfu_wrong_peak(analyse(run_log)) is None


def test_a_card_that_the_log_names_as_people_do() -> None:
    run_log = even_run()
    run_log = replace(run_log, steps=replace(run_log.steps, mfu=np.full(len(run_log.steps), 15.34)))
    for name, dtype, peak in (("V100 32GB", "float16", 125e12), ("RTX 3060", "bfloat16", 25.5e12)):
        setup = LoggedSetup(settings={"dtype": dtype}, device_name=name)
        values = require_finding(mfu_wrong_peak(analyse(replace(run_log, setup=setup)))).values
        assert (values["card"], values["card_peak_flops_per_s"]) == (name, peak)
        assert values["card_mfu_percent"] == pytest.approx(15.34 * A100_PEAK / peak)
