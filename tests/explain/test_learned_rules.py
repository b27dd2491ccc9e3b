"""What the loss means, compared with n-grams of the text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learning_logs import CPU_TRAIN, CPU_VAL, GPU_TRAIN, GPU_VAL, analyse, readme_run, require_finding
from run_logs import make_run_log, make_steps

from glassgpt.explain.rules.learned import (
    brackets_close,
    context_unused,
    copied_text,
    half_known_words,
    induction_head,
    ladder,
)
from glassgpt.runs.checkpoint_looks import CheckpointLook
from glassgpt.runs.run_log import LoggedEvaluation, LoggedSetup, RunLog


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


# --- context ---


def with_positions(losses: list[float], stderr: float = 0.001, **settings: int) -> RunLog:
    """A finished run of 2,000 updates whose closing evaluation has these losses at 1, 2 … 3, 4 … 7, …"""
    rows = [[2**index, 2 ** (index + 1) - 1, 2**index * 1000, loss] for index, loss in enumerate(losses)]
    shape = {"block_size": 2 ** len(losses), "n_layer": 2, "n_embd": 16, "max_iters": 2000} | settings
    run_log = readme_run(CPU_TRAIN, CPU_VAL, 0.02)
    closing = LoggedEvaluation(2000, 0, 1.9, stderr=stderr, parts={"by_position": rows})
    setup = replace(run_log.setup, settings={**run_log.setup.settings, **shape}, planned_iterations=2000)
    return replace(run_log, setup=setup, closing_eval=closing)


def test_a_flat_tail_says_how_much_context_is_useful() -> None:
    finding = require_finding(context_unused(analyse(with_positions([3.0, 2.5, 2.0, 1.9, 1.9, 1.9, 1.89]))))
    assert finding.claims == {"useful context": 16}
    assert finding.values["loss"] == 1.9
    assert finding.values["later_loss"] == pytest.approx((16 * 1.9 + 32 * 1.9 + 64 * 1.89) / 112)


def test_the_saving_is_that_of_attention() -> None:
    run_log = with_positions([2.0] * 10, stderr=1e-6)
    known = replace(run_log, setup=replace(run_log.setup, flops_per_token=1e6))
    finding = require_finding(context_unused(analyse(known)))
    # 12 FLOPs per layer, channel and token of context.
    assert finding.values["saved"] == pytest.approx(12 * 2 * 16 * (1024 - 2) / 1e6)
    assert finding.severity == "advice"
    small = replace(run_log, setup=replace(run_log.setup, flops_per_token=1e9))
    assert require_finding(context_unused(analyse(small))).severity == "info"


def test_nothing_is_said_of_context_that_is_used_or_not_measured_well() -> None:
    assert context_unused(analyse(with_positions([3.0, 2.5, 2.2, 2.1, 2.0, 1.95, 1.9]))) is None
    assert context_unused(analyse(with_positions([3.0, 2.5, 2.0, 1.9, 1.9, 1.9, 1.89], stderr=0.1))) is None
    # Flat only past its half: a shorter one would not save much.
    run_log = with_positions([3.0, 2.5, 2.2, 2.1, 2.0, 1.9, 1.8, 1.8], stderr=1e-6, block_size=140)
    assert context_unused(analyse(run_log)) is None
    early = with_positions([2.0] * 7)
    early = replace(early, setup=replace(early.setup, planned_iterations=20_000))
    assert context_unused(analyse(early)) is None
    # A model that has not passed triples has not learned to use a context yet.
    assert context_unused(analyse(with_ladder(with_positions([2.0] * 7), [4.0, 3.0, 2.0, 1.5]))) is None
    assert context_unused(analyse(readme_run(CPU_TRAIN, CPU_VAL, 0.02))) is None


# --- milestones ---


def look(iteration: int, **values: object) -> CheckpointLook:
    plain = CheckpointLook(
        iteration, "aa", 1, (1.0,), ((("a", 1.0),),), ((0.1, 0.1),), 0.1, ((0.02, 0.03),), 0.02, 4.0, 4.0
    )
    return replace(plain, **values)  # type: ignore[arg-type]


def with_looks(*looks: CheckpointLook) -> RunLog:
    return replace(readme_run(CPU_TRAIN, CPU_VAL, 0.02), looks=looks)


def test_the_first_checkpoint_half_of_whose_words_are_known() -> None:
    shares = {250: 0.3, 500: 0.49, 750: 0.5, 1000: 0.8}
    looks = [look(at, known_words=share, val_known_words=0.98) for at, share in shares.items()]
    finding = require_finding(half_known_words(analyse(with_looks(look(0), *looks))))
    assert finding.at == 750
    assert (finding.values["share"], finding.values["val_share"]) == (0.5, 0.98)
    assert half_known_words(analyse(with_looks(*looks[:2]))) is None


def test_samples_that_close_their_brackets() -> None:
    looks = [
        look(250, brackets_opened=9, brackets_closed=0.2, val_brackets_closed=0.9),
        look(500, brackets_opened=3, brackets_closed=1.0, val_brackets_closed=0.9),  # too few
        look(750, brackets_opened=9, brackets_closed=0.5, val_brackets_closed=0.9),
    ]
    assert require_finding(brackets_close(analyse(with_looks(*looks)))).at == 750
    assert brackets_close(analyse(with_looks(*looks[:2]))) is None


def test_an_induction_head_attends_and_helps_to_repeat() -> None:
    high = ((0.1, 0.6), (0.2, 0.3))
    looks = [look(250), look(500, induction=high), look(750, induction=high, second_copy_loss=1.0)]
    finding = require_finding(induction_head(analyse(with_looks(*looks))))
    assert finding.at == 750
    assert (finding.values["layer"], finding.values["head"]) == (1, 2)
    assert induction_head(analyse(with_looks(*looks[:2]))) is None
    assert induction_head(analyse(with_looks(look(250, induction=None)))) is None


def test_memorised_or_learned() -> None:
    learned = look(500, sample_tokens=500, copied_tokens=27, copied_share=0.4, val_copied_tokens=27)
    memorised = replace(learned, iteration=1000, copied_tokens=200, copied_share=0.8)
    assert require_finding(copied_text(analyse(with_looks(memorised, learned)))).severity == "info"
    finding = require_finding(copied_text(analyse(with_looks(learned, memorised))))
    assert (finding.severity, finding.at, finding.values["share"]) == ("advice", 1000, 0.8)
    assert copied_text(analyse(with_looks(look(1)))) is None
