"""Tables of metrics: where a run begins again, how it ended, and what it took in all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pytest

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.metric_table import MetricTable
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.table_files import read_tables

Row = Mapping[str, object]


def read(rows: Iterable[Row]) -> tuple[RunLog, ...]:
    table = MetricTable()
    for line, row in enumerate(rows, 1):
        table.feed(row, line)
    return table.build("table")


def ended(rows: Iterable[Row]) -> str | None:
    (run_log,) = read(rows)
    return Analysis(run_log).facts.ended


def losses(count: int, every: int = 10, **others: float) -> list[dict[str, object]]:
    """`others`: values that grow by so much a row."""
    return [
        {"step": at * every, "loss": 5.0 - at / count, **{name: at * by for name, by in others.items()}}
        for at in range(1, count + 1)
    ]


# --- where a run begins again ---


def test_a_run_that_begins_again_with_the_same_loss_is_another_one() -> None:
    """The same seed: nearly the same losses. What a row takes is a column, so the clock is not needed."""
    first = [row | {"step_time_sec": 0.05} for row in losses(20, elapsed_sec=0.5)]
    second = [row | {"loss": float(str(row["loss"])) + 1e-6} for row in first]
    assert [one.iterations_logged for one in read([*first, *second])] == [20, 20]


def test_a_row_that_another_process_repeats_is_no_restart() -> None:
    rows = [row for row in losses(20) for _ in range(2)]
    (run_log,) = read(rows)
    assert (run_log.iterations_logged, len(run_log.segments)) == (20, 1)


def test_a_count_of_costs_that_falls_is_that_of_another_process() -> None:
    """It resumes from step 150, with losses that are nearly those of before."""
    first = losses(20, usd=0.1)
    again = [row | {"usd": 0.1 * at} for at, row in enumerate(first[15:], 1)]
    last = losses(24, usd=9.0)[20:]
    (run_log,) = read([*first, *again, *again, *last])
    assert len(run_log.segments) == 3
    assert run_log.iterations_logged == 20 + 5 + 5 + 4


def test_a_step_that_is_logged_again_with_another_loss_was_trained_again() -> None:
    rows = losses(20)
    (run_log,) = read([*rows[:10], rows[9] | {"loss": 4.6}, *rows[10:]])
    assert [part.first_iteration for part in run_log.segments] == [10, 100]
    (with_means,) = read([*rows, rows[-1] | {"loss": 4.6}])
    assert len(with_means.segments) == 1


# --- how it ended ---


def test_a_closing_record_tells_that_it_finished() -> None:
    rows = losses(20)
    closing: list[Row] = [
        {"event": "completed", "reason": "completed", "step": 200},
        {"step": 200, "summary/final_eval_loss": 1.2, "summary/total_iterations": 200},
        {"final_train_loss": 1.2},
    ]
    assert [ended([*rows, row]) for row in closing] == ["finished"] * 3
    assert ended([{"step": 0, "summary/total": 3}, *rows]) == "cut"  # it trained after it


def test_a_text_of_the_last_row_tells_how_it_ended() -> None:
    rows = losses(20)
    texts = {"Training complete! Well done.": "finished", "KeyboardInterrupt": "interrupted",
             "torch.OutOfMemoryError: CUDA out of memory": "oom",
             "new best": "cut", "completed": "finished"}  # fmt: skip
    found = {text: ended([*rows[:-1], rows[-1] | {"message": text}]) for text in texts}
    assert found == texts
    assert {text: ended([*rows, {"level": "info", "message": text}]) for text in texts} == texts
    assert ended([row | {"status": "completed"} for row in rows]) == "cut"  # it is of every row
    assert ended([*rows[:9], rows[9] | {"message": "Training complete!"}, *rows[10:]]) == "cut"


def test_a_record_of_settings_has_the_plan() -> None:
    rows = losses(20)
    records: list[dict[str, object]] = [
        {"type": "config", "args/steps": 200, "args/lr": 1e-4}, {"event": "config", "iters": 200},
        {"config/max_steps": 200},
    ]  # fmt: skip
    for record in records:
        (run_log,) = read([record, *rows])
        assert (Analysis(run_log).facts.ended, len(run_log.steps)) == ("finished", 20), record
        assert run_log.setup.planned_iterations == 200
        assert ended([record, *rows[:-1]]) == "cut"
    (other,) = read([*rows, {"step": 200, "steps": 7}])  # no settings
    assert other.setup.planned_iterations is None


def test_what_a_closing_record_says_is_the_total() -> None:
    (run_log,) = read([*losses(20), {"step": 200, "summary/total_training_time_hours": 1.5}])
    assert Analysis(run_log).total_s == pytest.approx(5400)


@pytest.mark.parametrize(
    ("column", "by", "lr", "status"),
    [
        ("percentage", 5.0, 1.0, "finished"),
        ("progress", 5.0, 1.0, "finished"),
        ("progress", 0.05, 0.0, "finished"),
        ("progress", 0.05, 1.0, "cut"),  # it may be 1%
        ("percentage", 0.05, 0.0, "cut"),
        ("progress", 0.04, 0.0, "cut"),
    ],
)
def test_a_column_of_the_progress_tells_whether_it_is_over(
    column: str, by: float, lr: float, status: str
) -> None:
    rows = [row | {column: round(by * at, 6)} for at, row in enumerate(losses(20), 1)]
    assert ended([row | {"lr": 1e-4} for row in rows[:-1]] + [rows[-1] | {"lr": lr * 1e-4}]) == status


def test_epochs_that_are_planned_are_counted_from_the_first_one() -> None:
    rows: list[Row] = [{"epoch": at, "total_epochs": 30, "train_loss": 3.0 - at / 30} for at in range(30)]
    assert ended(rows) == "finished"
    assert ended(rows[:-1]) == "cut"


def test_a_column_of_a_long_csv_is_read_to_its_end() -> None:
    lines = [f"{at},{3 - at / 50},{100 * at // 50}\n" for at in range(1, 51)]
    (run_log,), _ = read_tables(iter(["step,loss,percent\n", *lines]), "log.csv")
    assert Analysis(run_log).facts.ended == "finished"


def test_a_closing_row_before_the_planned_end_is_that_of_an_abort() -> None:
    row: dict[str, object] = {"total_steps": 200, "percentage": 50.0}
    rows = [{"current_steps": at, "loss": 3.0} | row for at in range(10, 110, 10)]
    (run_log,) = read([*rows, {"current_steps": 105} | row])
    assert (Analysis(run_log).facts.ended, run_log.iterations_done) == ("cut", None)


# --- saves and clocks ---


def test_a_record_of_a_save_is_a_checkpoint() -> None:
    rows = losses(20)
    (run_log,) = read([*rows[:10], {"event": "checkpoint", "step": 100, "path": "a.pt"}, *rows[10:]])
    assert [save.iteration for save in run_log.checkpoints] == [100]


def test_the_total_is_that_of_the_clock() -> None:
    """Steps of 0.05 s, every tenth of them in a row; the rest went into evaluations."""
    rows = [row | {"step_time_sec": 0.05, "val_loss": 4.0} for row in losses(20, elapsed_sec=1.0)]
    (run_log,) = read(rows)
    facts = Analysis(run_log).facts
    assert (facts.steady_ms, facts.wall_s, facts.total_s) == pytest.approx((50.0, 20.0, 20.0))


def test_the_total_is_that_of_the_time_stamps() -> None:
    rows = [row | {"timestamp": 1.7e9 + 10 * at, "step_ms": 50.0} for at, row in enumerate(losses(20))]
    (run_log,) = read(rows)
    facts = Analysis(run_log).facts
    assert (facts.stamped_s, facts.total_s) == pytest.approx((190.0, 190.0))


def test_two_equal_validation_losses_are_two_evaluations() -> None:
    rows = [row | {"val_loss": round(4 - at / 50, 3)} for at, row in enumerate(losses(20))]
    rows[11]["val_loss"] = rows[10]["val_loss"]
    (run_log,) = read(rows)
    assert len(run_log.evals) == 20
    (repeating,) = read([row | {"val_loss": 4 - at // 5} for at, row in enumerate(losses(20))])
    assert [one.val_loss for one in repeating.evals] == [4, 3, 2, 1]


def test_runs_of_one_name_differ_by_their_seeds() -> None:
    """A tracker's list of runs: one row each, of the end."""
    rows = [f"{name},{seed},5000,1.{seed}\n" for seed in (3, 4) for name in ("base", "wide")]
    runs, _ = read_tables(iter(["run_name,seed,iter,train/loss\n", *rows]), "export.csv")
    assert {(one.run_name, float(one.steps.loss[0])) for one in runs} == {
        ("base, seed 3", 1.3), ("wide, seed 3", 1.3), ("base, seed 4", 1.4), ("wide, seed 4", 1.4),
    }  # fmt: skip


def timed_rows(pause_s: float, jitter_s: float = 0.0) -> list[dict[str, object]]:
    """A row every 10 iterations of 2 s; after every 50 an evaluation, whose time no row has."""
    rows: list[dict[str, object]] = []
    seconds = 1.7e9
    for at in range(10, 510, 10):
        seconds += 20 + (jitter_s if at % 20 else -jitter_s)
        rows.append({"step": at, "loss": 5.0 - at / 500, "timestamp": seconds})
        if at % 50 == 0:
            rows.append({"step": at, "val_loss": 5.0 - at / 500})
            seconds += pause_s
    return rows


def test_what_evaluations_took_by_the_clock() -> None:
    (run_log,) = read(timed_rows(30.0))
    analysis = Analysis(run_log)
    assert [one.ms for one in run_log.evals] == pytest.approx([30_000.0] * 10)
    assert analysis.facts.steady_ms == pytest.approx(2000)
    # The last one is after the last stamp. Of the second half, half of the evaluations.
    assert analysis.total_s == pytest.approx(1000 + 300, abs=25)
    assert (analysis.facts.pause_share or 0) == pytest.approx(300 / 1300, abs=0.02)
    saved = analysis.seconds_and_share_after(250, 500)
    assert saved is not None
    assert saved[0] == pytest.approx(500 + 150, rel=0.02)
    for unclear in (timed_rows(0.0), timed_rows(5.0, jitter_s=8.0)):
        (run_log,) = read(unclear)
        assert {one.ms for one in run_log.evals} == {None}


# --- rows of several kinds ---


def events(kind: str = "event", train: str = "train", evaluation: str = "eval") -> list[dict[str, object]]:
    """An evaluation and a checkpoint every 50 steps, with the loss under the name of the training loss."""
    rows: list[dict[str, object]] = [{kind: "config", "args": {"max_steps": 200}}]
    for row in losses(20):
        rows.append({kind: train, **row, "accuracy": 0.5})
        if int(str(row["step"])) % 50 == 0:
            rows.append({kind: evaluation, **row, "loss": float(str(row["loss"])) + 0.5, "accuracy": 0.25})
            rows.append({kind: "checkpoint", "step": row["step"], "loss": 9.0, "path": "model.pt"})
    return [*rows, {kind: "summary", "step": 300, "loss": 0.1}]


@pytest.mark.parametrize(
    ("kind", "train", "evaluation"),
    [
        ("event", "train", "eval"), ("type", "train_step", "validation"),
        ("kind", "metrics", "val_epoch_end"), ("name", "train", "test"), ("split", "train", "dev"),
    ],
)  # fmt: skip
def test_the_kind_of_a_row_says_whose_loss_it_has(kind: str, train: str, evaluation: str) -> None:
    rows = events(kind, train, evaluation)
    (run_log,) = read(rows[:-1] if kind == "split" else rows)
    assert run_log.steps.iteration.tolist() == list(range(10, 201, 10))
    assert [one.iteration for one in run_log.evals] == [50, 100, 150, 200]
    assert [one.val_loss for one in run_log.evals] == pytest.approx([5.25, 5.0, 4.75, 4.5])
    names = {one.name: set(one.value.tolist()) for one in run_log.metrics}
    assert sorted(map(len, names.values())) == [1, 1]
    assert names["accuracy"] == {0.5}


def test_rows_of_one_kind_have_training_losses() -> None:
    """Where all are of the same kind, or the words are of something else."""
    for kind in ("eval", "iteration_complete", "epoch_end"):
        (run_log,) = read([{"event": kind, **row} for row in losses(20)])
        assert (len(run_log.steps), len(run_log.evals)) == (20, 0)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"event": "train_error", "error": "RuntimeError: shapes differ"}, "crashed"),
        ({"event": "error", "error": "CUDA out of memory. Tried to allocate 2.00 GiB"}, "oom"),
        ({"type": "training_timeout", "status": "timeout"}, "interrupted"),
        ({"event": "run_end", "status": "completed"}, "finished"),
        ({"event": "heartbeat"}, "cut"),
    ],
)
def test_a_row_says_how_it_ended(last: Row, expected: str | None) -> None:
    assert ended([*losses(20), last]) == expected


def test_rows_in_an_envelope() -> None:
    rows = [{"type": "metrics", "ts": 1.7e9 + at, "data": row} for at, row in enumerate(losses(40))]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    ((run_log,), _) = read_tables(iter([text]), "events.jsonl")
    assert run_log.steps.iteration.tolist() == list(range(10, 401, 10))
    assert run_log.columns["iteration"] == "step"


def test_events_alone_are_no_run() -> None:
    rows = [{"type": "train_error", "iteration": 1, "error": "TIMEOUT"}, {"type": "train_end", "loss": 0.9}]
    assert read(rows) == ()
