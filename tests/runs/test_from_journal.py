"""A GlassGPT journal as a RunLog, and the facts that follow."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import LEDGER, checkpoint, end, evaluation, first_step, record, resume, run, step, whole_run

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain
from glassgpt.record.finding import Finding
from glassgpt.record.journal import FILE_NAME, Record, encode_line
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.from_journal import read_run_journal, run_log_from_records
from glassgpt.runs.reading import read_run_log
from glassgpt.training.session import train


def facts(records: list[Record], live: bool = False) -> Facts:
    return Analysis(run_log_from_records(records, "runs/mine", live)).facts


def test_the_facts_of_a_whole_run() -> None:
    run_facts = facts(whole_run())
    assert (
        run_facts.iterations_logged,
        run_facts.first_iteration,
        run_facts.last_iteration,
        run_facts.log_interval,
    ) == (
        11,
        1,
        100,
        10,
    )
    assert (run_facts.tokens_per_iteration, run_facts.parameters) == (16_384, 10_646_784)
    assert run_facts.steady_ms == 39  # 38 + at % 3 over 10, 20, … 100
    assert run_facts.first_iteration_ms == 1530
    assert run_facts.startup_ms == 1530 - 39
    assert run_facts.eval_steps == [0, 50, 100]
    assert run_facts.checkpoint_steps == [50, 100]
    assert run_facts.eval_overhead_ms is None  # its step times are without evaluations
    assert (
        run_facts.best_val_loss,
        run_facts.best_val_step,
        run_facts.final_val_loss,
        run_facts.final_train_loss,
    ) == (
        2.25,
        50,
        2.75,
        2.0,
    )
    assert (run_facts.loss_first, run_facts.loss_last, run_facts.nan_step) == (4 - 1 / 50, 2.0, None)
    assert (run_facts.segments, run_facts.ended, run_facts.val_metric) == (1, "finished", "loss")


def test_its_total_and_overhead_are_the_ledgers() -> None:
    run_facts = facts(whole_run())
    assert run_facts.estimated_total_s == pytest.approx(sum(LEDGER.values()))
    assert run_facts.overhead_share == pytest.approx((2 + 10 + 12 + 4) / 100)


def test_its_arithmetic_is_the_recorded_one() -> None:
    run_facts = facts(whole_run())
    assert run_facts.flops_per_token == 70_958_592
    assert run_facts.tokens_per_s == pytest.approx(16_384 / 0.039)
    assert run_facts.achieved_tflops == pytest.approx(70_958_592 * 16_384 / 0.039 / 1e12)
    assert run_facts.mfu_reported_steady == 12.5


def test_what_was_said_about_the_run() -> None:
    setup = run_log_from_records(whole_run(), "x").setup
    assert setup.settings["n_layer"] == 6
    assert setup.settings["vocab_size"] == 65
    assert "seed" not in setup.settings  # None: not set
    assert (setup.device_name, setup.memory_bytes) == ("NVIDIA H200", 150_000_000_000)
    assert (setup.peak_flops, setup.planned_iterations, setup.bytes_per_token) == (96e9, 100, 1.0)


def test_evaluations_hold_both_splits() -> None:
    evals = run_log_from_records(whole_run(), "x").evals
    assert [(done.iteration, done.train_loss, done.val_loss) for done in evals] == [
        (0, 4.20, 4.25),
        (50, 2.20, 2.25),
        (100, 2.00, 2.75),
    ]
    assert (evals[0].ms, evals[0].stderr, evals[0].tokens) == (800, 0.0125, 32_768)


def test_a_resume_takes_back_what_lies_past_it() -> None:
    records = [
        *whole_run()[:-2],
        run(process=1),
        resume(50, 1),
        evaluation(50, "val", 2.25, 1),
        first_step(1, 51),
        *(step(at, 1) for at in range(60, 110, 10)),
        end(100, process=1),
    ]
    run_log = run_log_from_records(records, "x")
    assert [segment.resumed for segment in run_log.segments] == [False, True]
    assert run_log.steps.iteration.tolist() == [1, 10, 20, 30, 40, 50, 51, 60, 70, 80, 90, 100]
    assert run_log.steps.segment.tolist() == [0] * 6 + [1] * 6
    run_facts = Analysis(run_log).facts
    assert (run_facts.segments, run_facts.eval_steps, run_facts.checkpoint_steps) == (2, [0, 50], [50])
    assert run_facts.first_iteration_ms == 1530


def test_how_it_ended(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Record, str]] = [
        (end(100), "finished"),
        (end(60, "interrupted"), "interrupted"),
        (end(60, "crashed", error="ValueError: x"), "crashed"),
        (end(60, "not finite"), "crashed"),
        (end(60, "crashed", error="torch.OutOfMemoryError: CUDA out of memory. Tried"), "oom"),
        (end(60, "crashed", error="RuntimeError: DefaultCPUAllocator: can't allocate memory: you"), "oom"),
        (end(60, "crashed", error="MemoryError: "), "oom"),
        (step(60), "cut"),  # killed: nothing more was written
    ]
    for last, ended in cases:
        with subtests.test(repr(last)):
            records = [record for record in whole_run() if record["iter"] <= 60 and record["kind"] != "end"]
            assert facts([*records, last]).ended == ended


@pytest.mark.parametrize(
    ("error", "name", "said"),
    [
        ("ValueError: a fault of ours", "crashed", '"ValueError: a fault of ours".'),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
         "oom", "tried to allocate 2.0 GiB more"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes",
         "oom", "tried to allocate 2.0 GiB more"),
    ],
)  # fmt: skip
def test_the_fault_that_ended_it_is_told(error: str, name: str, said: str) -> None:
    records = [record for record in whole_run() if record["iter"] <= 60 and record["kind"] != "end"]
    run_log = run_log_from_records([*records, end(60, "crashed", error=error)], "x")
    (finding,) = [one for one in explain(run_log).findings if one.id in ("crashed", "oom")]
    assert finding.id == name
    assert said in finding.evidence
    assert "Line " not in finding.evidence
    assert not run_log_from_records([*records, end(60, "interrupted")], "x").events


def test_a_live_run_has_not_ended() -> None:
    run_facts = facts(whole_run()[:8], live=True)
    assert run_facts.ended is None
    assert run_facts.last_iteration == 40


def test_a_run_that_was_killed_counts_as_far_as_its_steps_tell() -> None:
    run_facts = facts([record for record in whole_run() if record["kind"] != "end"])
    assert run_facts.estimated_total_s == pytest.approx(11 * 0.390)


def test_nan_losses_come_back_as_numbers(tmp_path: Path) -> None:
    records = [run(), first_step(), step(10), step(20, loss=math.nan), evaluation(20, "val", math.inf)]
    (tmp_path / FILE_NAME).write_bytes(b"".join(encode_line(record) for record in records))
    run_facts = Analysis(read_run_journal(tmp_path)).facts
    assert run_facts.nan_step == 20
    assert run_facts.final_val_loss == math.inf


def test_a_run_that_only_began() -> None:
    run_facts = facts([run()])
    assert (run_facts.iterations_logged, run_facts.ended, run_facts.tokens_per_iteration) == (
        0,
        "cut",
        16_384,
    )


def test_no_records_at_all() -> None:
    assert facts([]).iterations_logged == 0


# --- through files ---


def written(folder: Path, records: list[Record], tail: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / FILE_NAME).write_bytes(b"".join(encode_line(record) for record in records) + tail)
    return folder


def test_a_folder_and_its_journal_say_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", whole_run())
    assert read_run_log(str(folder)).trainer.id == "glassgpt"
    assert Analysis(read_run_log(str(folder))).facts == Analysis(read_run_log(str(folder / FILE_NAME))).facts


def test_a_torn_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", whole_run()[:-1], b'{"kind":"step","iter":11')
    assert Analysis(read_run_log(str(folder))).facts.last_iteration == 100


def test_a_journal_under_another_name_is_known_by_its_content(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_bytes(b"".join(encode_line(record) for record in whole_run()))
    assert read_run_log(str(other)).trainer.id == "glassgpt"


def test_an_empty_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        read_run_log(str(written(tmp_path / "run", [])))


JUNK: tuple[Any, ...] = (None, "x", -1, 1e400, 10**30, [], {}, [1], {"a": {}}, True, "nan", "inf", 0, 1.5)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6))
def test_damaged_records_do_not_stop_it(seed: int) -> None:
    """A value of another type, a field that is gone: an answer, or a UserError."""
    dice = random.Random(seed)
    records: list[Record] = json.loads(json.dumps(whole_run()))
    for _ in range(dice.randrange(1, 6)):
        damage(dice.choice(records), dice)
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    from glassgpt.record.journal import parse_records

    try:
        run_facts = Analysis(run_log_from_records(parse_records(lines.splitlines()), "x")).facts
    except UserError:
        return
    json.dumps(run_facts.as_dict())


def damage(value: dict[str, Any], dice: random.Random) -> None:
    name = dice.choice(sorted(value))
    if isinstance(value[name], dict) and value[name] and dice.random() < 0.6:
        damage(value[name], dice)
    elif dice.random() < 0.3:
        del value[name]
    else:
        value[name] = dice.choice(JUNK)


# --- a real one ---


def test_a_real_run(tiny: Callable[..., TrainConfig]) -> None:
    config = tiny(max_iters=30, eval_interval=10, log_interval=5)
    train(config)
    run_facts = Analysis(read_run_log(config.out_dir)).facts
    assert (run_facts.last_iteration, run_facts.eval_steps, run_facts.ended) == (
        30,
        [0, 10, 20, 30],
        "finished",
    )
    assert run_facts.tokens_per_iteration == 32
    assert run_facts.steady_ms is not None
    assert run_facts.tokens_per_s == pytest.approx(32_000 / run_facts.steady_ms)
    assert run_facts.estimated_total_s is not None
    assert run_facts.overhead_share is not None
    assert 0 < run_facts.overhead_share < 1
    json.dumps(run_facts.as_dict())


def test_unused_kinds_are_left_alone() -> None:
    assert facts([*whole_run(), record("sample", 100, text="To be,\nor not")]).iterations_logged == 11
    assert checkpoint(5)["kind"] == "checkpoint"


# --- an end that was not finite ---


def ended_not_finite(norms: list[float]) -> list[Finding]:
    last = end(60, "not finite", bad_iter=61, recent_grad_norms=norms, exit_code=3)
    return explain(run_log_from_records([*whole_run()[:-1], last], "runs/mine")).findings


def test_a_gradient_that_is_not_finite_is_told_where_the_loss_still_was() -> None:
    growing = [1.0] * 12 + [20.0, 400.0, 9000.0, math.inf]
    (one,) = [finding for finding in ended_not_finite(growing) if finding.id == "loss-nan"]
    assert one.severity == "problem"
    assert (one.at, one.text["title"][0].key) == (61, "loss-nan.title.gradient")
    assert one.values["grad_norms"] == [1.0, 20.0, 400.0, 9000.0, math.inf]
    assert one.text["explanation"][0].key == "loss-nan.explanation.norm_rise"
    assert one.values["saved_iteration"] == 50
    (few,) = [finding for finding in ended_not_finite([math.nan]) if finding.id == "loss-nan"]
    assert few.text["explanation"][0].key == "loss-nan.explanation.unknown"


@pytest.mark.parametrize("norms", [None, "inf", ["1", None, {}], []])
def test_norms_that_are_none_are_no_crash(norms: Any) -> None:
    assert any(finding.id == "loss-nan" for finding in ended_not_finite(norms))


def test_integers_of_400_digits_are_read(tmp_path: Path) -> None:
    for name in ("learning_rate", "max_iters", "n_layer", "seed"):
        records = whole_run()
        records[0]["config"][name] = 10**400
        records += [record("profile", 100, from_iter=10**400, updates=10**400, busy=10**400)]
        (tmp_path / FILE_NAME).write_bytes(b"".join(map(encode_line, records)))
        assert explain(read_run_journal(tmp_path)).facts.steady_ms == 39
