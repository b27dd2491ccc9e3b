"""Preparing in bulk, stopped and gone on with: the dataset is as if nothing had been."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from corpora import folder_contents, make_documents, prepare_dataset, use_small_batches, write_json_lines

from glassgpt import files
from glassgpt.data import manifest, prepare_bulk
from glassgpt.data.dataset import open_dataset, verify
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError

TEXTS = make_documents(200)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_batches(monkeypatch)


PREPARE = """
import sys
from glassgpt.data import document_readers as readers
from glassgpt.data.prepare import PrepareOptions, prepare
if __name__ == "__main__":
    readers.TARGET_BATCH_BYTES, readers.BLOCK_BYTES, readers._MAX_ROWS_PER_READ = 1000, 1500, 7
    options = PrepareOptions(sys.argv[1], out_dir=sys.argv[2], tokenizer="bpe:300", val_fraction=0.2,
                             shard_tokens=10_000, workers=int(sys.argv[3]), dedup=True)
    prepare(options, progress=False)
"""


def start(script: Path, source: Path, out: Path, workers: int) -> subprocess.Popen[str]:
    script.write_text(PREPARE)
    command = [sys.executable, str(script), str(source), str(out), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


MANY = 3000


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A source of many documents, and the files of the dataset that it becomes."""
    folder = tmp_path_factory.mktemp("whole")
    source, many = folder / "a.jsonl.gz", make_documents(MANY)
    write_json_lines(source, many[: MANY // 2] + many)
    start(folder / "go.py", source, folder / "whole", 1).communicate()
    return source, folder_contents(folder / "whole")


@pytest.mark.parametrize(("workers", "kill"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGINT)])
def test_killed_and_gone_on_is_as_if_never_stopped(
    tmp_path: Path, never_stopped: tuple[Path, dict[str, bytes]], workers: int, kill: signal.Signals
) -> None:
    (source, theirs), out = never_stopped, tmp_path / "out"
    process = start(tmp_path / "go.py", source, out, workers)
    work = tmp_path / ".out.unfinished"
    deadline = time.monotonic() + 60
    while not (work / "train-00003.bin").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, kill)
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert not out.exists()
    mark = json.loads((work / "unfinished.json").read_bytes())
    assert 0 < mark["document"] < MANY  # in the middle of it
    (work / ".unfinished.json.0123abcd.tmp").touch()  # as if killed while it wrote its mark
    # The other number of workers goes on, which must not matter either.
    said, _ = start(tmp_path / "go.py", source, out, 3 - workers).communicate()
    assert "resuming where it was stopped" in said
    assert not work.exists()
    verify(open_dataset(out))
    ours = folder_contents(out)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert ours[name] == theirs[name], name


def test_a_worker_that_is_killed_is_told(tmp_path: Path) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    write_json_lines(source, make_documents(4000))
    process = start(tmp_path / "go.py", source, out, 2)
    while not (tmp_path / ".out.unfinished" / "train-00001.bin").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    workers = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "spawn_main" in " ".join(child.cmdline())
    ]
    workers[0].kill()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "UserError: a worker process was killed, as a rule because memory ran out" in said
    assert "resuming where it was stopped" in start(tmp_path / "go.py", source, out, 1).communicate()[0]
    verify(open_dataset(out))


def test_killed_at_the_very_end_it_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    for step in ("write_manifest", "mark_prepare_complete", "copy_nanogpt_scripts", "commit_folder"):
        with monkeypatch.context() as patch:

            def stop(*arguments: Any) -> None:
                raise _Stopped

            patch.setattr(prepare_bulk, step, stop)
            with pytest.raises(_Stopped):
                prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "whole", shard_tokens=400)
    assert folder_contents(tmp_path / "out") == folder_contents(tmp_path / "whole")


def test_killed_before_the_renaming_only_that_is_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    with monkeypatch.context() as patch:

        def stop(*arguments: Any) -> None:
            raise _Stopped

        patch.setattr(prepare_bulk, "commit_folder", stop)
        with pytest.raises(_Stopped):
            prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, dedup=True)
        patch.undo()
        patch.setattr(prepare_bulk, "_encode_corpus", stop)
        prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, dedup=True)
        patch.undo()
        # Killed right after it: a mark is left in the dataset, and is in nobody's way.
        patch.setattr(prepare_bulk, "remove_prepare_state", stop)
        with pytest.raises(_Stopped):
            prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, overwrite=True)
    assert (tmp_path / "out" / "unfinished.json").exists()
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, overwrite=True)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "whole", shard_tokens=400)
    assert folder_contents(tmp_path / "out") == folder_contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out", "whole"]


class _Stopped(Exception):
    pass


def stop_after_shards(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    save = prepare_bulk._save_state

    def save_and_stop(work: Path, state: Any, *rest: Any) -> None:
        save(work, state, *rest)
        if state.full_shard_count() >= shards:
            raise _Stopped

    monkeypatch.setattr(prepare_bulk, "_save_state", save_and_stop)


def test_other_settings_do_not_drop_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    with monkeypatch.context() as patch:
        stop_after_shards(patch, 2)
        with pytest.raises(_Stopped):
            prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)
    with pytest.raises(UserError, match=r"was stopped, of other files or with other settings.*--overwrite"):
        prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, dedup=True)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=300, overwrite=True)
    assert not (tmp_path / ".out.unfinished").exists()


def test_a_file_that_is_gone_or_cut_off_means_beginning_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "whole", shard_tokens=400, dedup=True)
    with monkeypatch.context() as patch:
        stop_after_shards(patch, 3)
        with pytest.raises(_Stopped):
            prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, dedup=True)
    work = tmp_path / ".out.unfinished"
    stopped = work.rename(tmp_path / "stopped")
    begun = max(path.name for path in stopped.glob("train-*.bin"))
    options = PrepareOptions(
        str(tmp_path / "a.jsonl"),
        out_dir=str(tmp_path / "out"),
        tokenizer="bpe:300",
        val_fraction=0.2,
        shard_tokens=400,
        dedup=True,
    )
    whole = folder_contents(tmp_path / "whole")
    for name, gone in product(("train-00001.bin", "val-00000.bin", begun, "seen.bin"), (True, False)):
        path = shutil.copytree(stopped, work) / name
        assert path.stat().st_size > 2
        if gone:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-2])
        said: list[str] = []
        prepare(options, said.append, progress=False)
        assert f"{work} lost a part of its files since it was stopped: starting again" in said, (name, gone)
        assert folder_contents(tmp_path / "out") == whole, (name, gone)
        shutil.rmtree(tmp_path / "out")


def test_two_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    save = prepare_bulk._save_state

    def another(*arguments: Any) -> None:
        save(*arguments)
        with pytest.raises(UserError, match="another process is preparing"):
            prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)

    monkeypatch.setattr(prepare_bulk, "_save_state", another)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)


def test_nobody_comes_in_at_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    move = files.commit_folder

    def another(work: Path, out: Path) -> None:
        with pytest.raises(UserError, match="another process is preparing"):
            prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)
        move(work, out)

    monkeypatch.setattr(prepare_bulk, "commit_folder", another)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)


def test_a_dataset_that_appeared_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines(tmp_path / "a.jsonl", TEXTS)
    prepare_dataset(tmp_path / "a.jsonl", tmp_path / "other", tokenizer="byte")
    write = manifest.write_manifest

    def meanwhile(work: Path, content: Any) -> None:
        write(work, content)
        (tmp_path / "other").rename(tmp_path / "out")

    monkeypatch.setattr(prepare_bulk, "write_manifest", meanwhile)
    with pytest.raises(UserError, match="holds a dataset already: add --overwrite"):
        prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400)
    assert open_dataset(tmp_path / "out").manifest.tokenizer == "byte"
    # What was done is not lost.
    monkeypatch.setattr(prepare_bulk, "_encode_corpus", None)
    dataset = prepare_dataset(tmp_path / "a.jsonl", tmp_path / "out", shard_tokens=400, overwrite=True)
    assert dataset.manifest.tokenizer == "bpe:300"
