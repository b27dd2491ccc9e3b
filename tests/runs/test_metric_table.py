"""Rows of metrics: whose they are, which clock they have, what is an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from glassgpt.explain.rules.eval_cost import eval_spikes
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.log_numbers import parse_cell
from glassgpt.runs.metric_table import SAMPLE_ROWS, MetricTable
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.step_clock import parse_clock
from glassgpt.runs.trajectory import last_iteration_done, mean_iteration_time


def read(rows: Iterable[Mapping[str, object]]) -> RunLog:
    table = MetricTable()
    for line, row in enumerate(rows, 1):
        table.feed(row, line)
    (run_log,) = table.build("table")
    return run_log


def losses(count: int, every: int = 10) -> list[dict[str, object]]:
    return [{"step": at * every, "loss": 5.0 - at / count} for at in range(count)]


def note_keys(run_log: RunLog) -> list[str]:
    return [note.key for note in run_log.notes]


# --- cells ---


def test_numbers_in_cells() -> None:
    cases: list[tuple[object, float | None]] = [
        (3, 3.0), (3.5, 3.5), ("3.5", 3.5), (" 1e-4 ", 1e-4), ("", None), (None, None), (True, None),
        ("abc", None), ([1], None), ({}, None), (10**400, math.inf), ("9" * 100, None), ("inf", math.inf),
    ]  # fmt: skip
    assert [(cell, parse_cell(cell)) for cell, value in cases if parse_cell(cell) != value] == []
    assert math.isnan(parse_cell("NaN") or 0.0)


def test_times_in_cells() -> None:
    cases: list[tuple[object, float | None]] = [
        ("0:02:12", 132.0), ("1 day, 0:00:01", 86401.0), ("12 days, 1:00:00.5", 12 * 86400 + 3600.5),
        (12.5, 12.5), ("12.5", 12.5), ("1970-01-01 00:01:00", 60.0), ("1970-01-01T00:01:00+00:00", 60.0),
        ("1970-01-01 00:00:01,500", 1.5), ("soon", None), ("1:2", None), (math.nan, None), (None, None),
        ("9" * 60 + ":00:00", None), ("0001-01-01", -62135596800.0),
    ]  # fmt: skip
    assert [(cell, parse_clock(cell)) for cell, value in cases if parse_clock(cell) != value] == []


# --- iterations ---


def test_the_steady_time_is_a_median_over_iterations() -> None:
    """Lines at 10, 20, 50, 100, …: the last one covers half of the run."""
    at, seconds = [0, 10, 20, 50, 100, 200, 500, 1000], [0.0, 60, 120, 300, 600, 1200, 2100, 3600]
    rows = [{"step": i, "loss": 3.0, "elapsed_s": s} for i, s in zip(at, seconds, strict=True)]
    analysis = Analysis(read(rows))
    assert analysis.facts.steady_ms == pytest.approx(3000)
    assert [one["steady_ms"] for one in analysis.facts.regimes] == [analysis.facts.steady_ms]


def test_a_loss_beside_rewards_is_not_judged() -> None:
    for column, is_judged in (("reward", False), ("train/kl", False), ("rewards/format", False),
                              ("rewards/margins", True), ("accuracy", True)):  # fmt: skip
        rows = [{**row, column: 0.5} for row in losses(60)]
        assert read(rows).trainer.loss_measures_learning == is_judged, column


def test_evaluations_longer_than_the_run_are_of_earlier_processes() -> None:
    rows: list[dict[str, object]] = []
    for row in losses(40):
        rows.append(row)
        if len(rows) % 11 == 10:
            rows.append({"step": row["step"], "eval_loss": 3.0, "eval_runtime": 5000.0})
    rows.append({"step": rows[-1]["step"], "train_runtime": 9000.0})
    run_log = read(rows)
    assert mean_iteration_time(run_log, last_iteration_done(run_log)) is None
    assert eval_spikes(Analysis(run_log)) is None  # of how much time is not known


def test_a_gradient_norm_that_is_printed_as_nan_is_infinite() -> None:
    rows = [{**row, "grad_norm": math.nan if at < 2 else 0.5} for at, row in enumerate(losses(5))]
    rows[4]["grad_norm"] = None
    norms = read(rows).steps.grad_norm
    assert np.isinf(norms).tolist() == [True, True, False, False, False]
    assert math.isnan(norms[4])


def test_held_out_numbers_without_a_loss_are_evaluations() -> None:
    rows = losses(20)
    for name, is_eval in (("heldout_violation_rate", True), ("eval/preference", True), ("held-out F2", True),
                          ("n_eval_actions", False), ("eval_interval", False), ("best_val_score", False),
                          ("expert_load_cv", False), ("valid_tokens", False)):  # fmt: skip
        run_log = read([row | ({name: 0.5} if at % 5 == 0 else {}) for at, row in enumerate(rows)])
        steps = Analysis(run_log).facts.eval_steps
        assert steps == ([0, 50, 100, 150] if is_eval else None), name
    with_loss = [
        row | {"eval/other": 0.5} | ({"eval/loss": 3.0 - at} if at == 7 else {})
        for at, row in enumerate(rows)
    ]
    assert Analysis(read(with_loss)).facts.eval_steps == [70]


def test_losses_that_are_sums_over_tokens_become_means() -> None:
    def table(tokens: float, count: int = 10, noise: float = 0.0) -> RunLog:
        rows: list[dict[str, object]] = []
        for at, row in enumerate(losses(count)):
            mean = 4.0 - 2 * at / count
            evaluated = {"valid_loss": tokens * (mean + noise * (at % 2)), "valid_ppl": math.exp(mean)}
            rows += [row, {"step": row["step"], **evaluated}]
        return read(rows)

    of_sums = table(35_000)
    assert [one.val_loss for one in of_sums.evals] == pytest.approx([4.0 - at / 5 for at in range(10)])
    assert note_keys(of_sums) == ["log.summed_losses"]
    assert of_sums.metric_courses == []  # the perplexities say nothing more
    for other in (table(1.0), table(1 / math.log(2)), table(35_000, noise=0.1)):
        assert note_keys(other) == []
        assert (other.evals[0].val_loss or 0.0) > 3.9
    assert table(25.0, count=1).evals[0].val_loss == pytest.approx(4.0)  # 100 is no mean loss
    assert table(3.0, count=1).evals[0].val_loss == pytest.approx(12.0)
    rows: list[dict[str, object]] = [*losses(9), {"step": 90, "val_loss": 5e3, "val_ppl": math.exp(20)}]
    assert read(rows).evals[0].val_loss == 5e3  # diverged, and the perplexity is clipped


def test_tokens_per_second_are_a_median_over_iterations() -> None:
    at, seconds = [0, 10, 20, 50, 100, 200, 500, 5000], [0.0, 60, 120, 300, 600, 1200, 2100, 9000]
    rows = [{"step": i, "loss": 3.0, "elapsed_s": s, "tokens_per_s": 1000.0 + i}
            for i, s in zip(at, seconds, strict=True)]  # fmt: skip
    facts = Analysis(read(rows)).facts
    assert (facts.tokens_per_s, facts.log_interval) == (6000, None)
    assert Analysis(read(losses(9))).facts.log_interval == 10


def test_steps_and_their_lines() -> None:
    run_log = read(losses(5))
    assert run_log.steps.iteration.tolist() == [0, 10, 20, 30, 40]
    assert run_log.last_step_line == 5
    assert run_log.columns == {"iteration": "step", "loss": "loss"}


def test_rows_without_a_count_are_not_numbered() -> None:
    run_log = read([{"loss": 3.0 - at} for at in range(3)])
    assert not run_log.has_iteration_numbers
    assert Analysis(run_log).facts.last_iteration is None
    assert len(run_log.steps) == 3


def test_epochs_count_where_nothing_else_does() -> None:
    run_log = read([{"epoch": at, "loss": 3.0, "val_loss": 3.5 - at} for at in range(4)])
    assert run_log.steps.iteration.tolist() == [0, 1, 2, 3]
    assert run_log.trainer.iterations_are_epochs
    assert note_keys(run_log) == ["table.epochs"]
    assert run_log.columns["iteration"] == "epoch"
    fractions = read([{"epoch": at / 3, "loss": 3.0} for at in range(4)])
    assert not fractions.has_iteration_numbers


def epoch_rows(epochs: Iterable[int]) -> list[dict[str, object]]:
    return [
        {"epoch": at, "train_loss": 2 - row / 99, "val_loss": 2.5 - row / 99} for row, at in enumerate(epochs)
    ]


def test_an_epoch_that_is_done_again() -> None:
    resumed = read(epoch_rows([*range(1, 12), *range(11, 31)]))
    assert [one.first_iteration for one in resumed.segments] == [1, 11]
    (note,) = [note for note in resumed.notes if note.key == "table.epoch_again"]
    assert note.values == {"epoch": 11}
    # Every row twice: two processes write the table.
    assert len(read(epoch_rows(at // 2 for at in range(2, 42))).segments) == 1
    same = [*epoch_rows(range(1, 31)), epoch_rows(range(1, 31))[-1]]
    assert len(read(same).segments) == 1


def test_a_count_with_what_is_planned() -> None:
    rows = [
        {
            "global_step/max_steps": f"{at}/60",
            "loss": 5 - at / 60,
            "epoch": at / 100,
            "elapsed_time": f"{at // 2}m {at % 2 * 30}s",
        }
        for at in range(1, 61)
    ]
    closing = {"global_step/max_steps": "60/60", "train_loss": 4.5, "train_runtime": 1805.5, "epoch": 0.6}
    run_log = read([*rows, closing])
    facts = Analysis(run_log).facts
    assert run_log.steps.iteration.tolist() == list(range(1, 61))
    assert (run_log.setup.planned_iterations, run_log.setup.wall_s) == (60, 1805.5)
    assert (facts.ended, facts.steady_ms) == ("finished", 30_000)
    assert Analysis(read(rows[:50])).facts.ended == "cut"


def test_rows_of_several_processes_are_one_run() -> None:
    """Each process writes every step, and one lags behind by more and more rows."""
    rows: list[tuple[float, dict[str, object]]] = []
    for rank, pace in enumerate((1.0, 1.02)):
        for at in range(1, 201):
            seconds = at * 10 * pace
            shown = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
            loss = 5 - at / 100 + rank * 1e-4
            row = {"current_steps": at * 10, "loss": loss, "elapsed_time": shown}
            rows.append((seconds, row))
    run_log = read(row for _, row in sorted(rows, key=lambda one: one[0]))
    assert run_log.steps.iteration.tolist() == [at * 10 for at in range(1, 201)]
    assert len(run_log.segments) == 1
    assert np.nanmedian(run_log.steps.ms) == pytest.approx(1000, rel=0.05)


def test_a_restart_is_told_from_a_process_that_lags_by_the_clock() -> None:
    first = [{"step": at, "loss": 3.0, "elapsed_s": at * 60.0} for at in range(10, 110, 10)]
    again = [{"step": at, "loss": 3.0, "elapsed_s": (at - 80) * 60.0} for at in range(90, 150, 10)]
    run_log = read([*first, *again])
    assert len(run_log.segments) == 2
    assert run_log.steps.iteration.tolist() == [*range(10, 110, 10), *range(90, 150, 10)]


def test_a_restart_is_told_from_a_process_that_lags_by_the_losses() -> None:
    lagging = [row for row in losses(20) for _ in range(2)]
    assert len(read([*lagging, lagging[-4]]).segments) == 1
    assert len(read([*losses(20), {"step": 150, "loss": 9.0}]).segments) == 2


def test_a_table_that_begins_again_holds_two_runs() -> None:
    table = MetricTable()
    for line, row in enumerate([*losses(20)[5:], *losses(30)[5:]], 1):
        table.feed(row | {"loss": line}, line)
    first, second = table.build("table")
    assert (len(first.steps), len(second.steps), second.first_line) == (15, 25, 16)


# --- evaluations ---


def test_sparse_columns() -> None:
    rows = losses(20)
    rows.insert(10, {"step": 90, "val_loss": 4.0})
    rows.append({"step": 190, "val_loss": 3.5, "eval_runtime": 2.5})
    run_log = read(rows)
    assert [(one.iteration, one.val_loss, one.ms) for one in run_log.evals] == [
        (90, 4.0, None),
        (190, 3.5, 2500),
    ]
    assert len(run_log.steps) == 20


def test_a_validation_loss_that_is_repeated_is_one_evaluation() -> None:
    rows = [row | {"val_loss": 4.0 - index // 5} for index, row in enumerate(losses(20))]
    assert [one.iteration for one in read(rows).evals] == [0, 50, 100, 150]


def test_equal_validation_losses_with_steps_between_are_two() -> None:
    rows = losses(20)
    rows[0] |= {"val_loss": 4.0}
    rows[10] |= {"val_loss": 4.0}
    assert [one.iteration for one in read(rows).evals] == [0, 100]


def test_nan_beside_a_number_is_a_missing_value_and_alone_it_is_a_nan() -> None:
    rows = [row | {"val_loss": math.nan} for row in losses(10)]
    rows[5]["val_loss"] = 4.0
    run_log = read([*rows, {"step": 100, "loss": math.nan, "val_loss": math.nan}])
    assert [one.iteration for one in run_log.evals if not math.isnan(one.val_loss or 0)] == [50]
    assert Analysis(run_log).facts.nan_step == 100


def test_an_evaluation_that_comes_late_is_of_the_same_process() -> None:
    rows = losses(20)
    rows.insert(12, {"step": 100, "val_loss": 4.0})
    run_log = read(rows)
    assert len(run_log.segments) == 1
    assert [one.iteration for one in run_log.evals] == [100]


def test_a_column_that_begins_after_the_rows_held_back() -> None:
    rows = losses(SAMPLE_ROWS + 50, every=1)
    rows[-10] |= {"eval/loss": 4.0}
    run_log = read(rows)
    assert [one.val_loss for one in run_log.evals] == [4.0]
    assert run_log.columns["val_loss"] == "eval/loss"


def test_whose_loss_a_row_has() -> None:
    rows = [
        {"step": at, "split": split, "loss": 3.0 + (split == "val")}
        for at in range(4)
        for split in ("train", "val")
    ]
    run_log = read(rows)
    assert run_log.steps.loss.tolist() == [3.0] * 4
    assert [one.val_loss for one in run_log.evals] == [4.0] * 4


def test_bits_per_byte() -> None:
    run_log = read([*losses(3), {"step": 20, "val/bpb": 0.98}])
    assert (run_log.val_metric, run_log.evals[0].val_loss) == ("bits_per_byte", 0.98)


# --- times ---


def steady_ms(rows: Iterable[Mapping[str, object]]) -> float | None:
    return Analysis(read(rows)).facts.steady_ms


def test_step_times_and_their_units() -> None:
    """From the name; else from a clock; else from a size that only one unit can have."""
    for extra, wanted in (
        ({"step_time_ms": 250.0}, 250.0),
        ({"seconds_per_step": 0.25}, 250.0),
        ({"dt": 0.025}, 25.0),
        ({"dt": 2500.0}, 2500.0),
        ({"dt": 0.25}, None),
        ({"dt": 25.0}, None),
    ):
        assert steady_ms(row | extra for row in losses(20)) == pytest.approx(wanted), extra
    for dt in (0.25, 250.0):
        rows = [row | {"dt": dt, "_timestamp": 1.7e9 + 2.5 * index} for index, row in enumerate(losses(20))]
        assert steady_ms(rows) == pytest.approx(250.0)
    unknown = read(row | {"dt": 0.25} for row in losses(20))
    assert (note_keys(unknown), "time" in unknown.columns) == (["table.no_unit"], False)


def test_a_clock_gives_step_times() -> None:
    for column, first, factor in (
        ("_timestamp", 1.7e9, 1.0),
        ("timestamp", 1.7e12, 1000.0),  # milliseconds since 1970
        ("_runtime", 12.0, 1.0),
        ("elapsed_ms", 12.0, 1000.0),
        ("time", 0.5, 1.0),
        ("time_ms", 1.0, 1000.0),  # it grows: since the start
    ):
        rows = [row | {column: first + factor * 2.5 * at} for at, row in enumerate(losses(20))]
        assert steady_ms(rows) == pytest.approx(250.0), column


def test_a_time_that_does_not_grow_is_not_a_clock() -> None:
    run_log = read(row | {"time": 0.3} for row in losses(20))
    assert np.isnan(run_log.steps.ms).all()


def test_rounding_of_the_clock_does_not_show() -> None:
    """0.13 s per iteration, 10 iterations a row, in whole seconds: 1 or 2 s from row to row."""
    rows = [row | {"elapsed_s": int(1.3 * index)} for index, row in enumerate(losses(200))]
    run_log = read(rows)
    known = run_log.steps.ms[np.isfinite(run_log.steps.ms)]
    assert len(known) >= 10
    assert np.abs(known / 130 - 1).max() <= 0.05
    assert np.isnan(read(rows[:10]).steps.ms).all()  # too short to say anything


def test_evaluations_are_not_in_step_times() -> None:
    def rows(eval_s: float | None) -> list[dict[str, object]]:
        seconds, table = 0.0, []
        for index, row in enumerate(losses(30)):
            table.append(row | {"_timestamp": 1.7e9 + seconds})
            if index % 10 == 5:
                seconds += 60
                known = {} if eval_s is None else {"eval_runtime": eval_s}
                table.append(
                    {"step": row["step"], "val_loss": 4.0 - index, "_timestamp": 1.7e9 + seconds} | known
                )
            seconds += 2.5
        return table

    known = read(rows(60.0)).steps.ms
    assert known[1:] == pytest.approx(250.0, rel=1e-3)
    unknown = read(rows(None)).steps.ms
    assert np.flatnonzero(np.isnan(unknown)).tolist() == [0, 6, 16, 26]
    assert unknown[np.isfinite(unknown)] == pytest.approx(250.0, rel=1e-3)


def test_mfu_counts_only_in_percent() -> None:
    assert Analysis(read(row | {"mfu": 31.5} for row in losses(5))).facts.mfu_reported_steady == 31.5
    assert Analysis(read(row | {"mfu(%)": 0.5} for row in losses(5))).facts.mfu_reported_steady == 0.5
    fraction = read(row | {"mfu": 0.315} for row in losses(5))
    assert note_keys(fraction) == ["table.no_unit"]
    assert np.isnan(fraction.steps.mfu).all()


def test_tokens_per_iteration_from_a_count_of_tokens() -> None:
    rows = [row | {"total_tokens": 4096 * 10 * (index + 1)} for index, row in enumerate(losses(20))]
    assert read(rows).setup.tokens_per_iteration == 4096


def test_a_column_without_a_name_is_nothing() -> None:
    assert read(row | {"": index} for index, row in enumerate(losses(5))).columns == read(losses(5)).columns


def test_no_loss_no_run() -> None:
    table = MetricTable()
    table.feed({"step": 1, "accuracy": 0.5}, 1)
    assert table.build("table") == ()
    assert MetricTable().build("table") == ()


def test_phases_of_a_curriculum_are_stages() -> None:
    phases = ["structure"] * 20 + ["knowledge"] * 20 + ["voice"] * 20
    rows = [{"step": at, "loss": 1.5 + (at % 20 == 0), "phase": phase} for at, phase in enumerate(phases)]
    table = MetricTable()
    for line, row in enumerate(rows, 1):
        table.feed(row, line)
    runs = table.build("table")
    assert [(one.stage, len(one.steps), int(one.steps.iteration[0])) for one in runs] == [
        ("structure", 20, 0), ("knowledge", 20, 20), ("voice", 20, 40),
    ]  # fmt: skip
    for one in (["warmup"] * 20 + ["decay"] * 40, ["train"] * 60):
        assert read({**row, "phase": name} for row, name in zip(rows, one, strict=True)).stage is None


def test_steps_with_rewards_and_no_loss_are_steps() -> None:
    """An update is skipped where all rewards are equal. `total_time` is of a step, `wall_time` of the run."""
    rows: list[dict[str, object]] = []
    for count in (3, 40):
        for at in range(1, count + 1):
            row: dict[str, object] = {"step": at, "mean_reward": 0.5 + at / 100, "wall_time": 100.0 * at}
            row |= {"total_time": 60.0 + 35 * (at % 3)}
            rows.append(row | ({"loss": 0.1 * (-1) ** at} if at % 4 == 0 else {"skipped": True}))
    table = MetricTable()
    for line, one in enumerate(rows, 1):
        table.feed(one, line)
    first, last = table.build("table")
    assert [one.steps.iteration.tolist() for one in (first, last)] == [[1, 2, 3], list(range(1, 41))]
    assert np.flatnonzero(last.steps.has_loss).tolist() == list(range(3, 40, 4))
    assert Analysis(last).facts.steady_ms == pytest.approx(100_000)
    assert last.columns["time"] == "wall_time (s)"
    notes = {note.key: note.values for note in last.notes}
    assert notes["table.skipped"] == {"column": "skipped", "skipped": 30, "rows": 40}
    assert notes["table.columns_left_out"] == {"columns": "total_time"}


def test_rewards_beside_the_rows_of_losses_are_no_steps() -> None:
    rows = [row for one in losses(20) for row in (one, {"step": one["step"], "reward": 0.5})]
    assert read(rows).steps.has_loss.all()


def test_all_columns_of_numbers_that_are_not_read_are_named() -> None:
    rows = [{**row, "val_loss": row["loss"], "lr": 0.1, "lr-AdamW/pg2": 0.2} for row in losses(9)]
    rows.append({"step": 90, "test_loss": 3.1})
    notes = {note.key: note.values for note in read(rows).notes}
    assert notes["table.columns_left_out"] == {"columns": "test_loss, lr-AdamW/pg2"}


def test_predictions_while_it_trains_are_no_training_time() -> None:
    rows: list[dict[str, object]] = []
    for row in losses(10, every=10)[1:]:
        rows += [
            row,
            {**row, "eval_loss": 3.0, "eval_runtime": 20.0},
            {"predict_loss": 3.0, "predict_runtime": 30.0},
        ]
        del rows[-2]["loss"]
    run_log = read([*rows, {"step": 90, "train_runtime": 500.0, "train_loss": 4.0}])
    assert run_log.setup.prediction_s == 270.0
    assert mean_iteration_time(run_log, last_iteration_done(run_log)) == pytest.approx(
        (500.0, 1000 * (500 - 180 - 270) / 90, False)
    )


# --- columns by other names ---


def test_train_and_val_alone_are_losses_where_their_values_fall() -> None:
    rows = [{"step": at, "train": 9.5 - at / 10, "val": 9.6 - at / 11} for at in range(0, 60, 5)]
    run_log = read(rows)
    assert run_log.steps.loss.tolist() == [row["train"] for row in rows]
    assert [one.val_loss for one in run_log.evals] == [row["val"] for row in rows]
    # Shares, perplexities, and what stands beside a loss.
    for train, val in ((0.1, 0.2), (5e4, 6e4)):
        rows = [{"step": at, "train": train * (70 - at), "val": val} for at in range(0, 60, 5)]
        rows[-1]["loss"] = 2.0
        assert len(read(rows).steps) == 1
    rising = [{"step": at, "train": 1.0 + at, "val": 1.1 + at, "val_acc": 0.5} for at in range(9)]
    assert len(read(rising).steps) == 0


def test_the_time_of_an_epoch() -> None:
    took = [30.5, 20.25, 21.5, 20.75, 20.25, 22.0, 20.5, 21.0, 20.0]
    for name in ("epoch_time_s", "seconds_per_epoch", "elapsed_sec"):  # that begins again in each
        rows = [{"epoch": at, "train_loss": 5 - at / 9, name: time} for at, time in enumerate(took, 1)]
        run_log = read(rows)
        assert run_log.steps.ms.tolist() == [1000 * time for time in took]
        assert Analysis(run_log).total_s == pytest.approx(sum(took))
        assert note_keys(run_log) == ["table.epochs"]
    of_steps = [{**row, "step": 10 * at} for at, row in enumerate(rows)]  # since when is not known
    assert np.isnan(read(of_steps).steps.ms).all()


def test_results_of_one_run_in_one_row() -> None:
    row = {"iter": 500, "n_params": 1e7, "lr": 1e-4, "learning_rate": 1e-3, "lr_decay_iters": 500}
    run_log = read([{**row, "train/step_loss": 0.8, "train/loss": 0.6, "max_iters": 500, "train_runtime": 9}])
    assert (run_log.first_line, run_log.last_line) == (1, 1)
    assert run_log.setup.parameters == 10**7
    assert (run_log.steps.loss[0], run_log.steps.lr[0]) == (0.6, 1e-4)
    course = [{"step": at, "train/step_loss": 3.0 - at, "train/loss": 2.0} for at in range(2)]
    assert read(course).steps.loss.tolist() == [3.0, 2.0]


def test_a_step_time_that_changes_once_is_no_clock() -> None:
    rows = [{"step": at, "loss": 3 - at / 900, "step_time_s": 0.5 if at < 60 else 0.9} for at in range(100)]
    run_log = read(rows)
    assert run_log.steps.ms[[0, 99]].tolist() == [500, 900]
