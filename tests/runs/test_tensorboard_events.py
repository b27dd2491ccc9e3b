"""TensorBoard's event files: against those that the tensorboard package writes, whole and damaged."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tables import loss_at
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

from glassgpt.errors import UserError
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.tensorboard_events import is_event_file, masked_crcs, parse_event, read_events

START = 1.7e9
VERSION = Event(wall_time=START, file_version="brain.Event:2")


def scalar(step: int, tag: str, value: float, seconds: float = 0.0) -> Event:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return Event(wall_time=START + seconds, step=step, summary=summary)


def encode(events: Iterable[Event]) -> bytes:
    file = io.BytesIO()
    file.close = lambda: None  # type: ignore[method-assign]
    writer = RecordWriter(file)
    for event in (VERSION, *events):
        writer.write(event.SerializeToString())
    return file.getvalue()


def losses(count: int = 50, tag: str = "train/loss") -> list[Event]:
    return [scalar(at * 10, tag, loss_at(at * 10), at * 2.5) for at in range(count)]


def read(data: bytes) -> RunLog:
    (run_log,) = read_events(io.BytesIO(data), "events")
    return run_log


def damaged(run_log: RunLog) -> object:
    return sum(note.values["count"] for note in run_log.notes if note.key == "table.damaged_records")  # type: ignore[misc]


def test_checksums_are_those_of_the_package() -> None:
    dice = random.Random(1)
    for length in (0, 1, 8, 57):
        rows = [dice.randbytes(length) for _ in range(5)]
        array = np.array([list(row) for row in rows], dtype=np.uint8).reshape(5, length)
        assert masked_crcs(array).tolist() == [masked_crc32c(row) for row in rows]


def test_scalars_of_every_form() -> None:
    def parsed(value: Summary.Value) -> object:
        event = parse_event(Event(step=3, summary=Summary(value=[value])).SerializeToString())
        return event and event.values

    def tensor(**fields: object) -> Summary.Value:
        return Summary.Value(tag="x", tensor=TensorProto(**fields))

    assert parsed(Summary.Value(tag="x", simple_value=1.5)) == (("x", 1.5),)
    assert parsed(Summary.Value(tag="x", simple_value=0.0)) == (("x", 0.0),)
    assert parsed(tensor(dtype=DT_FLOAT, float_val=[2.5])) == (("x", 2.5),)
    assert parsed(tensor(dtype=DT_DOUBLE, double_val=[2.5])) == (("x", 2.5),)
    assert parsed(tensor(dtype=DT_FLOAT, tensor_content=np.float32(4.25).tobytes())) == (("x", 4.25),)
    assert parsed(tensor(dtype=DT_FLOAT, float_val=[2.5, 3.5])) is None
    assert parsed(tensor(dtype=DT_STRING, string_val=[b"text"])) is None
    assert parsed(Summary.Value(tag="x", histo=HistogramProto(min=1.0))) is None


def test_one_file() -> None:
    run_log = read(encode([*losses(), scalar(490, "eval/loss", 2.5, 200)]))
    assert run_log.steps.iteration.tolist() == list(range(0, 500, 10))
    assert run_log.steps.loss.tolist() == pytest.approx([loss_at(at) for at in range(0, 500, 10)])
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(490, 2.5)]
    assert Analysis(run_log).facts.steady_ms == pytest.approx(250)
    assert damaged(run_log) == 0


def test_tags_of_one_step_are_one_row() -> None:
    events = []
    for at in range(20):
        tags = {
            "train/loss": 3.0,
            "train/learning_rate": 1e-3,
            "train/grad_norm": 1.5,
            "train/epoch": at / 10,
        }
        events += [scalar(at, tag, value, at) for tag, value in tags.items()]
        if at % 5 == 0:
            events += [scalar(at, "eval/loss", 4.0 - at / 20, at), scalar(at, "eval/runtime", 0.25, at)]
    run_log = read(encode(events))
    assert run_log.trainer.id == "hf-trainer"
    assert (len(run_log.steps), len(run_log.evals)) == (20, 4)
    assert run_log.steps.grad_norm.tolist() == [1.5] * 20
    assert [one.ms for one in run_log.evals] == [250.0] * 4


def test_metrics_are_read_and_other_tags_named() -> None:
    """`kl` and the accuracy count something else than iterations."""
    events = losses()
    for at in range(0, 500, 100):
        tags = {"valid/bleu_score": at / 50, "valid/loss": loss_at(at) + 0.1}
        events += [scalar(at, tag, value, at / 4 + 0.1) for tag, value in tags.items()]
        events += [scalar(at // 100, tag, 0.5, at / 4 + 0.2) for tag in ("val_acc_epoch", "kl")]
    events = [*sorted(events, key=lambda one: one.wall_time), scalar(490, "layer/0/std", 0.1, 490)]
    run_log = read(encode(events))
    courses = {one.name: (one.values, one.last, one.highest_iteration) for one in run_log.metric_courses}
    assert courses["valid/bleu_score"] == (5, 8.0, 400)
    assert courses["val_acc_epoch"] == (5, 0.5, 0)
    assert (len(run_log.steps), len(run_log.segments), len(run_log.evals)) == (50, 1, 5)
    (note,) = run_log.notes
    assert (note.key, note.values["columns"]) == ("table.columns_left_out", "layer/0/std")


def test_a_run_too_short_for_a_line() -> None:
    """Of the Trainer's: its closing values are all that there is."""
    closing = {
        "train/train_runtime": 41.5,
        "train/total_flos": 1e15,
        "train/train_loss": 2.5,
        "train/epoch": 1.0,
    }
    run_log = read(encode([scalar(1, tag, value, 41) for tag, value in closing.items()]))
    facts = Analysis(run_log).facts
    assert (facts.ended, facts.loss_last, facts.total_s) == ("finished", 2.5, 41.5)


def test_the_total_at_the_end_of_a_run() -> None:
    """Every 100 iterations of 2 s a loss, every 125 an evaluation of 50 s; 530 iterations in all."""
    events, evaluations = [], 0
    for at in range(1, 531):
        if at % 100 == 0:
            tags = {"train/loss": loss_at(at), "train/learning_rate": 1e-3, "train/epoch": at / 265}
            events += [scalar(at, tag, value, 2 * at + 50 * evaluations) for tag, value in tags.items()]
        if at % 125 == 0:
            evaluations += 1
            tags = {"eval/loss": loss_at(at) + 0.1, "eval/runtime": 50.0}
            events += [scalar(at, tag, value, 2 * at + 50 * evaluations) for tag, value in tags.items()]
    closing = {"train/train_runtime": 1270.0, "train/total_flos": 1e15, "train/train_loss": 2.4}
    events += [scalar(530, tag, value, 1270) for tag, value in closing.items()]
    run_log = read(encode(events))
    analysis = Analysis(run_log)
    facts = analysis.facts
    assert (facts.ended, facts.last_iteration, run_log.iterations_done) == ("finished", 500, 530)
    assert run_log.setup.wall_s == 1270
    assert facts.steady_ms == pytest.approx(2000)
    # The iterations before the first line and after the last one count.
    assert analysis.stepped_s == pytest.approx(2 * 530 + 4 * 50)
    assert analysis.total_s == 1270
    assert facts.pause_share == pytest.approx(200 / 1270)
    # A loss after it: the run went on.
    went_on = read(encode([*events, scalar(600, "train/loss", 2.0, 1400)]))
    assert (Analysis(went_on).facts.ended, went_on.iterations_done) == ("cut", None)


def test_the_tags_of_torchtitan() -> None:
    tags = {"loss_metrics/global_avg_loss": 3.0, "loss_metrics/global_max_loss": 4.0,
            "time_metrics/end_to_end(s)": 0.5, "mfu(%)": 0.4, "throughput(tps)": 100.0}  # fmt: skip
    events = [
        scalar(at, tag, value, at)
        for at in range(1, 31)
        for tag, value in [*tags.items(), ("n_tokens_seen", 4096.0 * at)]
    ]
    run_log = read(encode(events))
    facts = Analysis(run_log).facts
    assert run_log.trainer.id == "torchtitan"
    assert (facts.steady_ms, facts.tokens_per_iteration, facts.tokens_per_s) == (500, 4096, 8192)
    assert facts.mfu_reported_steady == pytest.approx(0.4)
    assert (facts.loss_last, facts.iterations_logged) == (3.0, 30)


def test_a_resumed_run() -> None:
    start = Event(step=300, session_log=SessionLog(status=SessionLog.START), wall_time=START + 200)
    again = [scalar(at * 10, "loss", loss_at(at * 10), 200 + at) for at in range(30, 60)]
    run_log = read(encode([*losses(tag="loss"), start, *again]))
    assert [one.first_iteration for one in run_log.segments] == [0, 300]


def test_large_records_are_skipped() -> None:
    big = Event(
        step=5,
        summary=Summary(
            value=[Summary.Value(tag="image", tensor=TensorProto(tensor_content=bytes(3 << 20)))]
        ),
    )
    events = losses()
    run_log = read(encode([*events[:10], big, *events[10:]]))
    assert (len(run_log.steps), damaged(run_log)) == (50, 0)


def test_a_wrong_byte_costs_one_record() -> None:
    data = encode(losses())
    at = data.index(b"train/loss", len(data) // 2)
    run_log = read(data[:at] + b"X" + data[at + 1 :])
    assert (len(run_log.steps), damaged(run_log)) == (49, 1)


def test_a_wrong_length_costs_one_record() -> None:
    data, start = encode(losses()), len(encode(losses(25)))
    for wrong in (b"\xff" * 8, b"\x00" * 8, b"\x20\x00\x00\x00\x00\x00\x00\x00"):
        run_log = read(data[:start] + wrong + data[start + 8 :])
        assert (len(run_log.steps), damaged(run_log)) == (49, 1), wrong


def test_a_file_that_is_cut_off() -> None:
    data = encode(losses())
    run_log = read(data[: len(data) // 2])
    assert 20 <= len(run_log.steps) <= 26
    assert damaged(run_log) == 1


def test_no_loss_names_the_tags() -> None:
    with pytest.raises(UserError, match="accuracy"):
        read(encode([scalar(1, "accuracy", 0.5)]))


# --- folders ---


def write(path: Path, events: Iterable[Event]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "events.out.tfevents.1700000000.host").write_bytes(encode(events))


def test_a_logdir_of_several_runs(tmp_path: Path) -> None:
    write(tmp_path / "short", losses(20))
    write(tmp_path / "deep" / "long", losses(50))
    write(tmp_path / "other", [scalar(1, "accuracy", 0.5)])
    run_log = read_run_log(str(tmp_path))
    assert (run_log.name, len(run_log.steps)) == (f"{tmp_path}/deep/long", 50)


def test_a_folder_for_each_split(tmp_path: Path) -> None:
    write(tmp_path / "train", losses(tag="epoch_loss"))
    write(
        tmp_path / "validation",
        [scalar(at * 10, "epoch_loss", 4.0 - at / 50, at * 2.5 + 1) for at in range(50)],
    )
    run_log = read_run_log(str(tmp_path))
    assert (len(run_log.steps), len(run_log.evals), len(run_log.segments)) == (50, 50, 1)
    assert run_log.trainer.iterations_are_epochs


def test_files_of_one_folder_are_one_run(tmp_path: Path) -> None:
    events = losses()
    write(tmp_path, events[:30])
    (tmp_path / "events.out.tfevents.1700000099.host").write_bytes(encode(events[30:]))
    run_log = read_run_log(str(tmp_path))
    assert (len(run_log.steps), len(run_log.segments)) == (50, 1)


def test_a_file_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(encode(losses()))
    assert len(read_run_log(str(tmp_path / "x.log")).steps) == 50


def test_random_damage() -> None:
    data = encode(losses())
    for seed in range(300):
        dice = random.Random(seed)
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 20)):
            at = dice.randrange(len(broken))
            match dice.randrange(3):
                case 0:
                    broken[at] = dice.randrange(256)
                case 1:
                    del broken[at : at + dice.randrange(40)]
                case _:
                    broken[at:at] = dice.randbytes(dice.randrange(40))
        try:
            run_log = read(bytes(broken))
        except UserError:
            continue
        assert len(run_log.steps) <= 50
        assert set(run_log.steps.loss.tolist()) <= {
            float(np.float32(loss_at(at))) for at in range(0, 500, 10)
        }


def test_no_event_raises_anything_unexpected() -> None:
    dice = random.Random(7)
    for _ in range(3000):
        data = bytearray(scalar(3, "train/loss", 1.5).SerializeToString())
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            parse_event(bytes(data))
        except (ValueError, IndexError):
            continue


def test_a_file_without_its_version_is_known_by_its_frames() -> None:
    data = b"\x09" + b"\0" * 7
    header = data + masked_crcs(np.frombuffer(data, dtype=np.uint8)[None, :]).astype("<u4").tobytes()
    assert is_event_file(header + b"anything")
    assert not is_event_file(header[:-1] + b"?" + b"anything")
    assert not is_event_file(b"iter 0: loss 2")


def test_losses_of_batches_and_of_epochs_which_count_their_own_steps() -> None:
    batches = losses(40, tag="Loss/train_batch")
    ends = [scalar(0, "Loss/train_epoch", 4.0, 60), scalar(0, "Loss/val_epoch", 3.5, 61)]
    run_log = read(encode([*batches[:20], *ends, *batches[20:]]))
    assert run_log.steps.iteration.tolist() == list(range(0, 400, 10))
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(190, 3.5)]
    assert run_log.columns["loss"] == "Loss/train_batch"


def test_the_arguments_of_the_trainer_are_settings() -> None:
    def text(content: str, tag: str = "args/text_summary") -> Event:
        tensor = TensorProto(dtype=DT_STRING, string_val=[content.encode()])
        return Event(wall_time=START, summary=Summary(value=[Summary.Value(tag=tag, tensor=tensor)]))

    arguments = (
        '{"max_steps": 16000, "warmup_steps": 10, "learning_rate": 2e-05, "lr_scheduler_type": "cosine",'
        ' "per_device_train_batch_size": 16, "gradient_accumulation_steps": 8, "num_train_epochs": 3.0,'
        ' "output_dir": "x", "seed": [1]}'
    )
    setup = read(encode([text(arguments), *losses()])).setup
    assert (setup.planned_iterations, setup.settings) == (16000, {
        "max_iters": 16000, "warmup_iters": 10, "learning_rate": 2e-05, "batch_size": 16,
        "gradient_accumulation_steps": 8, "num_train_epochs": 3.0, "lr_scheduler_type": "cosine",
    })  # fmt: skip
    for broken in ("[" * 60_000, "{", "[1]", '{"max_steps": true, "learning_rate": 1e999}', "\udcff"[:0]):
        assert read(encode([text(broken), *losses()])).setup.planned_iterations is None
    assert read(encode([text(arguments, "other"), *losses()])).setup.settings == {}
