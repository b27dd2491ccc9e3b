"""Files that hold tables: what is read from each kind, by the values that were written into it."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
from tables import (
    EVERY,
    TABLES,
    history,
    lightning_csv,
    loss_at,
    tensorboard_csv,
    trainer_log,
    trainer_state,
    wandb_csv,
    wandb_history,
)

from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain
from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.lines import read_texts
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.table_files import growing_table, read_tables
from glassgpt.runs.trajectory import last_iteration_done, mean_iteration_time

STEPS = list(range(EVERY, 201, EVERY))


def read(data: str | bytes, name: str = "table") -> RunLog:
    run_logs = read_all(data, name)
    assert len(run_logs) == 1
    return run_logs[0]


def read_all(data: str | bytes, name: str = "table") -> tuple[RunLog, ...]:
    content = data if isinstance(data, bytes) else data.encode()
    return read_tables(read_texts(io.BytesIO(content)), name)[0]


def assert_losses(run_log: RunLog, iterations: list[int], more: float = 0.0) -> None:
    assert run_log.steps.iteration.tolist() == iterations
    assert run_log.steps.loss.tolist() == pytest.approx([loss_at(at) + more for at in iterations])


# --- Hugging Face's trainer_state.json ---


def test_trainer_state() -> None:
    run_log = read(trainer_state())
    assert_losses(run_log, STEPS)
    assert run_log.trainer.id == "hf-trainer"
    assert [(one.iteration, one.ms) for one in run_log.evals] == [(100, 4500), (200, 4500)]
    assert run_log.steps.grad_norm.tolist() == [1.5] * 20
    assert [save.iteration for save in run_log.checkpoints] == [100]
    assert run_log.setup.settings["batch_size"] == 8
    facts = Analysis(run_log).facts
    assert (facts.ended, facts.log_interval, facts.best_val_step) == ("finished", EVERY, 200)


def test_trainer_state_of_a_checkpoint_on_the_way() -> None:
    run_log = read(trainer_state(steps=150))
    assert run_log.setup.planned_iterations == 200
    assert Analysis(run_log).facts.ended == "cut"
    assert [save.iteration for save in run_log.checkpoints] == [100, 150]


def test_how_far_a_state_came() -> None:
    done = read(trainer_state(steps=200, planned=204, global_step=204))
    assert (done.iterations_done, Analysis(done).facts.last_iteration) == (204, 200)
    assert "204" in explain(done).verdict[0]
    on_the_way = read(trainer_state(steps=195, planned=200, save_steps=65))
    assert on_the_way.iterations_done == 195
    assert explain(on_the_way).verdict[0] == translate(
        "verdict.saved_state", trainer="Hugging Face Trainer", at="195"
    )
    assert "98%" in explain(on_the_way).verdict[1]
    # It says save_steps also where it saved by other rules.
    saves = {
        every: [save.iteration for save in read(trainer_state(steps=150, save_steps=every)).checkpoints]
        for every in (50, 70, 0, -1, 1e-9, "50", None)
    }
    assert saves.pop(50) == [50, 100, 150]
    assert list(saves.values()) == [[100, 150]] * 6


def test_the_time_in_a_closing_row() -> None:
    state = json.loads(trainer_state())
    state["log_history"].append({"epoch": 2.0, "step": 200, "train_loss": 2.5, "train_runtime": 500.0})
    run_log = read(json.dumps(state))
    assert (run_log.setup.wall_s, len(run_log.steps)) == (500, 20)
    assert mean_iteration_time(run_log, last_iteration_done(run_log)) == (500, 2455, False)


def test_an_evaluation_after_the_closing_row_is_not_in_its_time() -> None:
    state = json.loads(trainer_state(steps=160, planned=160))
    rows = state["log_history"]
    rows.append({"epoch": 1.6, "step": 160, "train_loss": 2.5, "train_runtime": 500.0})
    rows.append({"epoch": 1.6, "step": 160, "eval_loss": 2.5, "eval_runtime": 40.0})
    saved = read(json.dumps(state))
    assert mean_iteration_time(saved, last_iteration_done(saved)) == (540, (540 - 44.5) / 0.16, False)


def test_trainer_state_with_tokens() -> None:
    setup = read(trainer_state(num_input_tokens_seen=200 * 4096)).setup
    assert setup.tokens_per_iteration == 4096
    assert setup.flops_per_token == pytest.approx(1e15 / (200 * 4096))


def test_lines_of_a_document_are_those_of_its_rows() -> None:
    text = trainer_state()
    last = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == "{"][-2]
    assert read(text).last_step_line == last  # the last row is an evaluation


def test_trainer_state_that_is_cut_off() -> None:
    text = trainer_state()
    run_log = read(text[: text.index('"step": 150')])
    assert run_log.steps.iteration.tolist() == STEPS[: STEPS.index(150)]
    assert Analysis(run_log).facts.ended == "cut"


# --- LLaMA-Factory's trainer_log.jsonl ---


def test_trainer_log() -> None:
    run_log = read(trainer_log())
    assert_losses(run_log, STEPS)
    facts = Analysis(run_log).facts
    assert run_log.trainer.id == "llama-factory"
    assert (facts.steady_ms, facts.ended, facts.tokens_per_s) == (2000, "finished", 3000.5)
    assert run_log.setup.planned_iterations == 200
    assert run_log.columns["time"] == "elapsed_time (s)"
    # Its last loss may be a few iterations before its end.
    ends_later = trainer_log().replace(
        '"current_steps": 200, "total_steps": 200, "epoch"', '"current_steps": 203, "epoch"'
    )
    assert (read(trainer_log()).iterations_done, read(ends_later).iterations_done) == (200, 203)
    assert Analysis(run_log).total_s == 400


def test_trainer_log_without_its_closing_row() -> None:
    assert Analysis(read(trainer_log(steps=150, closes=False))).facts.ended == "cut"


def test_trainer_log_of_a_resumed_run() -> None:
    restarted = trainer_log(seconds_per_step=0.5).splitlines(keepends=True)[10:]
    run_log = read(trainer_log(steps=150, closes=False) + "".join(restarted))
    assert [one.first_iteration for one in run_log.segments] == [10, 110]


@pytest.mark.parametrize("batches", [30, 900])
def test_an_evaluation_after_training_counts_its_own_batches(batches: int) -> None:
    row = {"current_steps": batches, "total_steps": batches, "loss": None, "eval_loss": 2.5, "epoch": 2.0}
    rows = trainer_log() + json.dumps(row | {"percentage": 100.0, "elapsed_time": "0:07:00"}) + "\n"
    run_log = read(rows)
    facts = Analysis(run_log).facts
    assert (facts.ended, facts.best_val_loss, facts.best_val_step) == ("finished", 2.5, 200)
    assert (run_log.setup.planned_iterations, run_log.iterations_done, run_log.segments[0].rounds) == (
        200,
        200,
        1,
    )
    assert facts.total_s == 420


def test_a_row_of_a_new_epoch_is_no_evaluation_after_training() -> None:
    rows = [{"epoch": epoch, "step": at, "total_steps": 90 + 10 * epoch, "loss": 3.0 - epoch}
            for epoch in range(2) for at in range(10, 100, 10)]  # fmt: skip
    run_log = read("".join(json.dumps(row) + "\n" for row in rows))
    assert run_log.steps.iteration[-1] == 180


# --- ms-swift's logging.jsonl ---


def swift_log(text_chars: int = 10) -> str:
    rows: list[dict[str, object]] = [
        {"loss": loss_at(at), "token_acc": 0.5, "epoch": at / 100, "global_step/max_steps": f"{at}/195",
         "elapsed_time": f"{at // 60}m {at % 60}s", "train_speed(iter/s)": 1.0}
        for at in range(EVERY, 200, EVERY)
    ]  # fmt: skip
    rows.append({"train_runtime": 200.0, "train_loss": 3.0, "global_step/max_steps": "195/195"})
    summary = {"model_parameter_info": "Model: 700.5M Params (7.5M Trainable [1.07%]), 0.0M Buffers.",
               "last_model_checkpoint": "out/checkpoint-195", "best_model_checkpoint": "out/checkpoint-150",
               "global_step": 195, "log_history": [{"text": "x" * text_chars}]}  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in [*rows, summary])


@pytest.mark.parametrize("text_chars", [10, 1 << 17])
def test_the_summary_of_swift(text_chars: int) -> None:
    run_log = read(swift_log(text_chars))
    facts = Analysis(run_log).facts
    assert run_log.trainer.id == "ms-swift"
    assert (facts.ended, facts.parameters, facts.total_s) == ("finished", 700_500_000, 200)
    assert facts.checkpoint_steps == [150, 195]
    assert len(run_log.steps) == 19


# --- CSV ---


def test_lightning() -> None:
    run_log = read(lightning_csv())
    assert_losses(run_log, list(range(9, 200, EVERY)))
    assert [one.iteration for one in run_log.evals] == [99, 199]
    assert run_log.columns == {
        "iteration": "step",
        "loss": "train_loss_step",
        "val_loss": "val_loss",
        "lr": "lr-AdamW",
    }


def test_wandb_exports_runs_beside_each_other() -> None:
    first, second = read_all(wandb_csv())
    assert_losses(first, list(range(0, 200, EVERY)))
    assert_losses(second, list(range(0, 200, 2 * EVERY)), more=1)
    assert (first.label, second.label, first.runs_in_file) == ("fast-sun-1", "slow - moon-2", 2)


def test_tensorboard_names_the_metric_in_the_files_name_only(tmp_path: Path) -> None:
    for name, is_loss in (
        ("run-a-b-tag-train_loss.csv", True),
        ("val_loss (2).csv", False),
        ("Loss.csv", True),
    ):
        (tmp_path / name).write_text(tensorboard_csv())
        run_log = read_run_log(str(tmp_path / name))
        assert (len(run_log.steps), len(run_log.evals)) == ((20, 0) if is_loss else (0, 20)), name
    assert Analysis(read_run_log(str(tmp_path / "Loss.csv"))).facts.steady_ms == pytest.approx(200)
    with pytest.raises(UserError, match=r"rename it to train_loss\.csv"):
        read(tensorboard_csv(), "export.csv")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_any_csv_with_steps_and_losses(delimiter: str, encoding: str) -> None:
    rows = ["Iteration,Training Loss,note", *(f'{at},{loss_at(at)},"a\nb ""c"""' for at in STEPS)]
    if delimiter != ",":
        rows = [row.replace(",", delimiter) for row in rows]
    assert_losses(read("\r\n".join(rows).encode(encoding)), STEPS)


def test_csv_with_comments_blanks_and_short_rows() -> None:
    text = "# made by hand\n\nstep, loss\n1, 3.0\n\n2\n3, 2.5, 7, 8\n# the end\n"
    assert read(text).steps.iteration.tolist() == [1, 3]


def test_csv_of_losses_alone() -> None:
    run_log = read("train_loss,val_loss\n3.0,3.1\n2.5,2.6\n")
    assert not run_log.has_iteration_numbers
    assert (len(run_log.steps), len(run_log.evals)) == (2, 2)


def test_packed_csv(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv.gz").write_bytes(gzip.compress(lightning_csv().encode()))
    assert len(read_run_log(str(tmp_path / "metrics.csv.gz")).steps) == 20


def test_rows_that_name_their_run() -> None:
    """One after the other, or in turns, as a sweep writes them."""
    rows = [
        {"model": model, "step": at, "loss": loss_at(at) + shift}
        for at in STEPS
        for model, shift in (("a", 0), ("b", 1))
    ]
    for table in (rows, sorted(rows, key=lambda row: str(row["model"]))):
        csv_text = "model,step,loss\n" + "".join(
            f"{row['model']},{row['step']},{row['loss']}\n" for row in table
        )
        for text in (csv_text, "".join(json.dumps(row) + "\n" for row in table)):
            first, second = read_all(text)
            assert (first.label, second.label, second.runs_in_file) == ("a", "b", 2)
            assert_losses(first, STEPS)
            assert_losses(second, STEPS, more=1)
    (alone,) = read_all("model,step,loss\n" + "".join(f"a,{at},{loss_at(at)}\n" for at in STEPS))
    assert alone.run_name is None


# --- JSON ---


def test_wandb_history() -> None:
    run_log = read(wandb_history())
    assert_losses(run_log, list(range(0, 200, EVERY)))
    facts = Analysis(run_log).facts
    assert facts.steady_ms == pytest.approx(200)
    assert facts.mfu_reported_steady == 30.5
    assert run_log.columns["iteration"] == "iter"


def test_wandb_summary_is_one_row() -> None:
    summary = {"_step": 40, "_runtime": 90.5, "train/loss": 2.5, "eval": {"loss": 2.75, "runtime": 9}}
    run_log = read(json.dumps(summary))
    assert (run_log.steps.iteration.tolist(), run_log.steps.loss.tolist()) == ([40], [2.5])
    assert (run_log.evals[0].val_loss, run_log.evals[0].ms) == (2.75, None)
    assert run_log.is_excerpt
    assert run_log.setup.wall_s == 90.5


def test_lists_beside_each_other() -> None:
    run_log = read(history())
    assert run_log.steps.loss.tolist() == [loss_at(at) for at in range(0, 200, EVERY)]
    assert len(run_log.evals) == 20
    assert not run_log.has_iteration_numbers


def test_lists_with_steps_of_their_own() -> None:
    train = {"step": STEPS, "loss": [loss_at(at) for at in STEPS]}
    document = {"config": {"lr": 1}, "train": train, "val": {"step": [100, 200], "loss": [4.0, 3.0]}}
    run_log = read(json.dumps(document))
    assert_losses(run_log, STEPS)
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(100, 4.0), (200, 3.0)]


def test_a_shorter_list_has_no_steps() -> None:
    document = {"step": STEPS, "loss": [loss_at(at) for at in STEPS], "val_loss": [4.0, 3.0]}
    run_log = read(json.dumps(document))
    assert_losses(run_log, STEPS)
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(None, 4.0), (None, 3.0)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("key", ["", "history"])
def test_a_list_of_objects(indent: int | None, key: str) -> None:
    rows = [{"step": at, "metrics": {"train": {"loss": loss_at(at)}}} for at in STEPS]
    assert_losses(read(json.dumps({key: rows, "name": "x"} if key else rows, indent=indent)), STEPS)


@pytest.mark.parametrize("state", ["x" * 3_000_000, "a\n" * 1_000_000])
def test_a_row_of_json_that_is_too_long_is_left_out(state: str) -> None:
    rows = trainer_log(closes=False).splitlines(keepends=True)
    whole = json.dumps({"state": state, "loss": None}) + "\n"
    for text in ("".join(rows) + whole, "".join([*rows[:10], whole, *rows[10:]])):
        run_log = read(text)
        assert_losses(run_log, STEPS)
        assert not run_log.notes
    assert run_log.last_step_line == len(rows) + 1


def test_json_lines_with_damage() -> None:
    lines = [json.dumps({"step": at, "loss": loss_at(at)}) for at in STEPS]
    lines[12] = lines[12][:9]
    run_log = read("\n".join(lines) + "\n" + '{"step": 210, "lo')
    assert_losses(run_log, [at for at in STEPS if at != 130])
    assert [(note.key, note.values["count"]) for note in run_log.notes] == [("table.damaged_rows", 2)]


def test_nan_and_infinity() -> None:
    text = "".join(
        f'{{"step": {at}, "loss": {loss}}}\n' for at, loss in enumerate(("3.5", "Infinity", "NaN"))
    )
    assert Analysis(read(text)).facts.nan_step == 2


# --- folders ---


def test_folders_that_trainers_leave(tmp_path: Path) -> None:
    for at, name in ((100, "checkpoint-100"), (90, "checkpoint-90")):
        (tmp_path / "hf" / name).mkdir(parents=True)
        (tmp_path / "hf" / name / "trainer_state.json").write_text(trainer_state(steps=at))
    assert read_run_log(str(tmp_path / "hf")).steps.iteration[-1] == 100
    for name, text in (("metrics.csv", lightning_csv()), ("trainer_log.jsonl", trainer_log())):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(text)
        assert len(read_run_log(str(tmp_path / name)).steps) == 20


# --- what is no table ---


@pytest.mark.parametrize(
    "text",
    [
        "iter 0: loss 4.2, time 33.00ms\niter 1: loss 4.1, time 33.00ms\n",
        '{"message": "step 10 loss 3.2"}\n{"message": "step 20 loss 3.1"}\n',
        "{'loss': 2.9, 'epoch': 0.03}\n",
        '{"loss": 2.9, "epoch": 0.03}\n{"loss": 2.8, "epoch": 0.06}\nTraining is over\nGood bye\n',
        "step, loss and everything\nis explained here\nat length\n",
        "name,age\nsomebody,12\n",
        "", "\n", "[", "{", "[[[[", '{"log_history": 3}', '{"log_history": []}', "[1, 2, 3]", '{"a": [{}]}',
    ],
)  # fmt: skip
def test_other_texts_are_left_to_the_reader_of_logs(text: str) -> None:
    run_logs, rest = read_tables(iter([text]), "x")
    assert run_logs == ()
    assert "".join(rest) == text


def test_a_table_without_a_loss_in_any_row() -> None:
    with pytest.raises(UserError, match="no row of it has a step and a loss"):
        read("step,loss\n1,\n2,\n")


# --- what is said about them ---


def test_the_columns_are_in_the_json_and_in_the_verdict() -> None:
    explanation = explain(read(lightning_csv()))
    assert explanation.as_dict()["columns"] == dict(explanation.log.columns)
    assert any("train_loss_step" in sentence for sentence in explanation.verdict)


def test_every_table_is_explained() -> None:
    for name, text in TABLES.items():
        for run_log in read_all(text):
            assert len(run_log.steps) >= 10, name
            assert np.isfinite(run_log.steps.loss).all()
            json.dumps(explain(run_log).as_dict(), default=str)


# --- counts, series and events ---


def test_steps_that_are_counted_in_each_epoch() -> None:
    rows = [(epoch, step, 3 - epoch - step / 1000) for epoch in (1, 2, 3) for step in range(25, 101, 25)]
    text = "epoch,step,loss,lr\n" + "".join(f"{e},{s},{loss},1e-4\n" for e, s, loss in rows)
    run_log = read(text)
    assert run_log.steps.iteration.tolist() == list(range(25, 301, 25))
    assert [(note.key, note.values) for note in run_log.notes] == [("rounds.joined", {"rounds": 3})]
    from_zero = "epoch,step,loss\n" + "".join(f"{e},{s},{3 - e}\n" for e in (0, 1) for s in (0, 10, 20))
    assert read(from_zero).steps.iteration.tolist() == [0, 10, 20, 30, 40, 50]
    again = text + "".join(f"{e},{s},{loss},1e-4\n" for e, s, loss in rows)  # epoch 1 again: another run
    assert [len(one.steps) for one in read_all(again)] == [12, 12]


def test_series_of_pairs_are_joined_on_their_step() -> None:
    document = {
        "train_loss": [[at, loss_at(at)] for at in STEPS],
        "lr": [[at, 1e-4] for at in STEPS],
        "val_loss": [[100, 2.5], [200, 2.25]],
        "val_checkpoints": [{"iter": 100, "val_loss": 2.5}, {"iter": 200, "val_loss": 2.25}],
    }
    run_log = read(json.dumps(document))
    assert_losses(run_log, STEPS)
    assert run_log.steps.lr.tolist() == [1e-4] * len(STEPS)
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(100, 2.5), (200, 2.25)]


def test_objects_in_rows() -> None:
    extras = {"mfu(%)": 31.5, "throughput(tps)": 4000.0, "time_metrics/end_to_end(s)": 0.5, "lr/AdamW": 1e-4}
    rows = [{"step": at, "loss": loss_at(at), "extras": extras} for at in STEPS]
    run_log = read("\n".join(map(json.dumps, rows)) + "\n")
    assert_losses(run_log, STEPS)
    for column, value in (("mfu", 31.5), ("tokens_per_s", 4000.0), ("ms", 500.0), ("lr", 1e-4)):
        assert getattr(run_log.steps, column).tolist() == [value] * len(STEPS)


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ({"event": "done", "num_steps": 20}, "finished"),
        ({"status": "finished"}, "finished"),
        ({"event": "training_complete"}, "finished"),
        ({"status": "interrupted"}, "interrupted"),
        ({"state": "failed"}, "crashed"),
        ({"event": "eval_start"}, "cut"),
    ],
)
def test_rows_without_a_step_are_events(last: dict[str, object], ended: str) -> None:
    rows: list[dict[str, object]] = [{"event": "config", "num_steps": 30, "seed": 1}]
    rows += [{"event": "step", "step": at, "train/loss": 3 - at / 50} for at in range(20)]
    run_log = read("\n".join(map(json.dumps, [*rows, last])) + "\n")
    assert Analysis(run_log).facts.ended == ended
    assert run_log.setup.planned_iterations == (19 if "num_steps" in last else 29)


def test_columns_of_numbers_that_are_not_read_are_named() -> None:
    text = "epoch,note,loss,beta,accuracy,val_loss,val_accuracy\n"
    text += "".join(f"{at},x,{3 - at / 9},{at / 5},0.5,{3 - at / 10},0.4\n" for at in range(30))
    notes = {note.key: note.values for note in read(text).notes}
    assert notes["table.columns_left_out"] == {"columns": "beta"}, "accuracies are read"
    wide = "step,loss," + ",".join(f"c{at}" for at in range(9)) + "\n"
    wide += "".join(f"{at},{3 - at / 9}," + ",".join("123456789") + "\n" for at in range(1, 5))
    notes = {note.key: note.values for note in read(wide).notes}
    assert notes["table.columns_left_out_more"] == {"columns": "c0, c1, c2, c3, c4", "more": 4}


def test_training_losses_of_an_overfitted_run_are_those_of_its_rows() -> None:
    """Medians of the rows around them decide, and are not shown as if they were of these rows."""
    rows = [(at, 3 - at / 20 + (at % 3) / 50, 3 + abs(at - 15) / 20) for at in range(31)]
    run_log = read("step,loss,val_loss\n" + "".join(f"{at},{loss},{val}\n" for at, loss, val in rows))
    past = Analysis(run_log).past_best
    assert past is not None
    assert (past.best_iteration, past.end_iteration) == (15, 30)
    assert past.train_losses == pytest.approx((rows[15][1], rows[30][1]))


def test_a_row_for_each_value_of_each_metric() -> None:
    rows = [f'"one","abc","{metric}","{at}","{1761884192934 + 5000 * at}","{loss_at(at) + more}"'
            for metric, more in (("loss", 0), ("eval_loss", 1), ("gpu", 9)) for at in STEPS]  # fmt: skip
    run_log = read("\n".join(['"Run","Run ID","metric","step","timestamp","value"', *rows]) + "\n")
    assert_losses(run_log, STEPS)
    assert [one.val_loss for one in run_log.evals] == pytest.approx([loss_at(at) + 1 for at in STEPS])
    alone = read("\n".join(["Run,Run ID,metric,step,timestamp,value", *rows[: len(STEPS)]]) + "\n")
    assert alone.steps.ms[1:].tolist() == pytest.approx([5000] * (len(STEPS) - 1))
    two = [row.replace("one", "two") for row in rows]
    runs = read_all("\n".join(["Run,Run ID,metric,step,timestamp,value", *rows, *two]) + "\n")
    assert [(one.run_name, len(one.steps)) for one in runs] == [("one", 20), ("two", 20)]


def test_a_growing_export_of_two_runs() -> None:
    lines = [
        "Step,one - train/loss,two - train/loss",
        *(f"{at},{loss_at(at)},{loss_at(at) + 1}" for at in STEPS),
    ]
    table = growing_table("\n".join(lines[:5]))
    assert table is not None
    for line in lines[:11]:
        table.feed(line)
    runs = table.build("wandb.csv", final=False)
    assert [(one.run_name, one.steps.iteration.tolist()) for one in runs] == [
        ("one", STEPS[:10]),
        ("two", STEPS[:10]),
    ]
    for line in lines[11:]:
        table.feed(line)
    assert [len(one.steps) for one in table.build("wandb.csv")] == [len(STEPS), len(STEPS)]


def test_metrics_of_a_long_table() -> None:
    """Of all its rows, not of the first ones that are read whole."""
    rows = [f"{at},{3 - at / 100},{3.1 - at / 100},{at / 100:.2f},{90 - at}" for at in range(60)]
    run_log = read("\n".join(["epoch,train_loss,val_loss,val_wacc,val_wer", *rows, ""]))
    assert {one.name: len(one.value) for one in run_log.own_metrics} == {"val_wacc": 60, "val_wer": 60}


def test_results_of_experiments_are_a_run_each() -> None:
    rows = ["commit\tval_bpb\tmemory_gb\tstatus\tdescription"]
    rows += [f"a{at}b\t{1.5 - at / 10}\t5.5\tkeep\tmore heads" for at in range(4)]
    rows += ["a9c\t0.000000\t0.0\tcrash\ttoo large"]
    runs = read_all("\n".join(rows), "results.tsv")
    assert [one.run_name for one in runs] == ["a0b", "a1b", "a2b", "a3b"]
    assert [one.evals[0].val_loss for one in runs] == [1.5, 1.4, 1.3, 1.2]
    assert {note.key: note.values for one in runs for note in one.notes}["table.failed_rows"] == {"count": 1}
