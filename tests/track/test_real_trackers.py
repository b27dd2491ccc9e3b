"""TensorBoard, wandb and trackio themselves have each iteration of a run once."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import (
    FakeTracker,
    findings,
    journal_losses,
    resume,
    run_until_crash,
    with_delay,
)
from tiny import MakeConfig, records

from glassgpt.api import train
from glassgpt.errors import UserError
from glassgpt.record import sink
from glassgpt.track import trackers
from glassgpt.track.tracker_feed import TrackedRun, TrackerFeed
from glassgpt.track.trackers import TRACKER_CLASSES


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only this machine may be spoken to: wandb has a process of its own here."""
    connect = socket.socket.connect

    def only_here(self: socket.socket, address: Any) -> None:
        away = isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost")
        assert not away, f"a tracker wants to reach {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_here)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


@needs("tensorboard")
def test_tensorboard_shows_each_iteration_once(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, eval_interval=4, track="tensorboard")
    run_until_crash(config, 11)
    resume(config)
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    folder = Path(config.out_dir) / "tensorboard"
    assert len(list(folder.iterdir())) == 2
    seen = events.EventAccumulator(str(folder)).Reload()
    expected = {record["iter"]: record["loss"] for record in records(config.out_dir, "step")}
    shown = [(event.step, event.value) for event in seen.Scalars("train/loss")]
    assert [at for at, _ in shown] == list(expected) == list(range(1, 21))
    assert [value for _, value in shown] == pytest.approx(list(expected.values()), rel=1e-6)
    assert [event.step for event in seen.Scalars("val/loss")] == [0, 4, 8, 12, 16, 20]


@needs("tensorboard")
def test_replaying_into_tensorboard_twice_shows_it_once(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=5))
    for _ in range(2):
        assert TrackerFeed("tensorboard", TRACKER_CLASSES["tensorboard"], run.out_dir).replay() == 5 + 4
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    seen = events.EventAccumulator(str(run.out_dir / "tensorboard")).Reload()
    assert [event.step for event in seen.Scalars("train/loss")] == [1, 2, 3, 4, 5]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """What a file of wandb's holds: a header of 7 bytes, then LevelDB's log of blocks of 32 KiB."""
    at, whole = 7, b""
    while at < len(data):
        if (left := -at % 32768) and left < 7:  # too little for a header: the rest of the block is empty
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""


def wandb_rows(run_dir: Path) -> list[dict[str, float]]:
    """What wandb would send when it is online again."""
    protocol = import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        for data in wandb_records(path.read_bytes()):
            record = protocol.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                named = {"/".join(item.nested_key) or item.key: item.value_json for item in items}
                rows.append({name: json.loads(value) for name, value in named.items()})
    return rows


@needs("wandb")
def test_wandb_has_each_iteration_once(tiny: MakeConfig, capfd: pytest.CaptureFixture[str]) -> None:
    config = tiny(max_iters=8, eval_interval=4, wandb_log=True, wandb_project="owt")
    run_until_crash(config, 7)
    assert findings(config.out_dir).keys() & {"wandb-failed", "wandb-behind"} == set()
    resume(config)
    expected = [(record["iter"], record["loss"]) for record in records(config.out_dir, "step")]
    deadline = time.monotonic() + 30  # wandb writes its file in a process of its own, also after finish()
    while True:
        rows = wandb_rows(Path(config.out_dir))
        losses = [(row["_step"], row["train/loss"]) for row in rows if "train/loss" in row]
        if losses == expected or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert losses == expected
    assert [row["_step"] for row in rows if "val/loss" in row] == [0, 4, 8]
    files = list(Path(config.out_dir).glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # which is the run's id
    assert "wandb" not in capfd.readouterr().out


@needs("wandb")
def test_wandb_without_a_key_asks_nobody(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where a key might be
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    run = TrackedRun(tmp_path, "a", "b", "c", {})
    with pytest.raises(UserError, match="wandb has no key here: `wandb login`"):
        TRACKER_CLASSES["wandb"]().begin(run)


@needs("trackio")
def test_trackio_has_each_iteration_once(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = import_module("trackio.sqlite_storage")
    for module in ("trackio.utils", "trackio.sqlite_storage"):  # which read the environment when imported
        monkeypatch.setattr(import_module(module), "TRACKIO_DIR", tmp_path / "trackio")
    config = tiny(max_iters=8, eval_interval=4, track="trackio", wandb_project="of-tests")
    run_until_crash(config, 7)
    resume(config)
    assert findings(config.out_dir).keys() & {"trackio-failed", "trackio-behind"} == set()
    rows = storage.SQLiteStorage.get_logs("of-tests", "run")
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(record["iter"], record["loss"]) for record in records(config.out_dir, "step")]
    assert "rackio" not in capfd.readouterr().out


@needs("trackio")
@pytest.mark.parametrize("already_logged", [False, True])
def test_trackio_that_could_not_be_opened_can_be_sent_the_run_later(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, already_logged: bool
) -> None:
    """Also if the journal says that it was logged: its folder may be gone."""
    trackio, storage = import_module("trackio"), import_module("trackio.sqlite_storage")
    for module in ("trackio.utils", "trackio.sqlite_storage"):
        monkeypatch.setattr(import_module(module), "TRACKIO_DIR", tmp_path / "trackio")

    def closed(**settings: Any) -> Any:
        raise ConnectionError("gone")

    config = tiny(max_iters=3, eval_interval=4, track="trackio", wandb_project="of-tests")
    with monkeypatch.context() as patch:
        patch.setattr(trackio, "init", closed)
        if not already_logged:
            patch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
        else:
            patch.setattr(trackers, "TRACKER_CLASSES", {"trackio": FakeTracker})
        run = train(config)
    assert ("trackio-failed" in findings(run.out_dir)) != already_logged
    count = TrackerFeed("trackio", TRACKER_CLASSES["trackio"], run.out_dir).replay()
    rows = storage.SQLiteStorage.get_logs("of-tests", "run")
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    expected = [(record["iter"], record["loss"]) for record in records(run.out_dir, "step")]
    assert losses == ([] if already_logged else expected)
    assert count == (0 if already_logged else len(journal_losses(run.out_dir)))
