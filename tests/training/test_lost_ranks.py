"""Ranks that die, hang, crash or are stopped: they are named, the others do not wait for ever, and the run
resumes from its last checkpoint as if nothing had happened."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import rank_processes
from tiny import MakeConfig, assert_same_tensors, last_tensors, records, run_losses

from glassgpt.config import TrainConfig
from glassgpt.training.checkpoint.checkpoints import committed_paths

SHARED: dict[str, Any] = {
    "batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_iters": 12,
    "eval_interval": 100,
    "checkpoint_interval": 5,
}


def start(config: TrainConfig, tmp_path: Path, **more: Any) -> list[rank_processes.RankProcess]:
    return rank_processes.start_ranks(2, tmp_path, rank_processes.train_command(config), **more)


def resume_and_compare(config: TrainConfig, whole: TrainConfig, tmp_path: Path) -> None:
    rank_processes.run_ranks(2, tmp_path, rank_processes.resume_command(config.out_dir))
    assert run_losses(config.out_dir) == run_losses(whole.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(whole.out_dir))


@pytest.mark.parametrize("shard", [False, True])
def test_a_rank_that_is_killed_is_named_and_nothing_is_lost(
    tiny: MakeConfig, tmp_path: Path, shard: bool
) -> None:
    """In the middle of an update, and in the middle of a save: by kill -9."""
    settings = SHARED | {"shard": shard}
    whole = tiny("whole", **settings)
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(whole))
    saving_rank = 1 if shard else 0
    for how, lost, done in (("die_in_update_7", 1, 5), ("die_in_second_save", saving_rank, 5)):
        config = tiny(how, **settings)
        ranks = start(config, tmp_path, sabotage={lost: how})
        codes = [process.wait() for process in ranks]
        assert codes[lost] == -signal.SIGKILL
        assert codes[1 - lost] == 1
        survivor = ranks[1 - lost]
        (message,) = re.findall("^error: (.*)$", survivor.output_text, re.M)
        assert message.startswith(f"rank {lost} has died (pid {ranks[lost].process.pid} on ")
        assert "last heard of in phase `" in message
        assert [path.name for path in committed_paths(Path(config.out_dir))] == [f"{done:08d}"]
        if lost == 1:
            end = records(config.out_dir)[-1]
            assert (end["kind"], end["reason"], end["exit_code"]) == ("end", "crashed", 1)
            assert "rank 1 has died" in end["error"]
        resume_and_compare(config, whole, tmp_path)


def test_a_rank_that_hangs_is_named_with_what_it_was_doing(tiny: MakeConfig, tmp_path: Path) -> None:
    """Of three: the first survivor that ends must not be named by the other."""
    config = tiny(**SHARED | {"gradient_accumulation_steps": 6}, rank_timeout=2)
    first, second, third = rank_processes.start_ranks(
        3, tmp_path, rank_processes.train_command(config), sabotage={1: "hang_in_data"}
    )
    began = time.monotonic()
    assert (first.wait(), third.wait()) == (1, 1)
    assert time.monotonic() - began < 30
    assert third.output_text == ""
    (message,) = re.findall("^error: (.*)$", first.output_text, re.M)
    assert message.startswith("rank 1 is stuck (pid ")
    assert "in phase `data` after 4 updates); the others have waited " in message
    assert message.endswith("s for it (--rank_timeout=2)")
    assert second.process.is_alive()
    second.send(signal.SIGKILL)
    assert records(config.out_dir)[-1]["error"] == message


@pytest.mark.parametrize(("rank", "how"), [(0, "read_slowly"), (1, "read_slowly"), (0, "write_slowly")])
def test_before_and_after_training_a_rank_may_take_its_time(
    tiny: MakeConfig, tmp_path: Path, rank: int, how: str
) -> None:
    """Reading the dataset and writing the last checkpoint may be slow; rank_timeout is for updates."""
    config = tiny(**SHARED | {"max_iters": 2, "checkpoint_interval": None}, rank_timeout=2)
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(config), sabotage={rank: how})
    assert records(config.out_dir)[-1]["reason"] == "finished"


def test_a_rank_that_crashes_prints_why_and_the_others_print_which(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(**SHARED)
    first, second = start(config, tmp_path, sabotage={1: "crash_in_update_5"})
    assert (first.wait(), second.wait()) == (1, 1)
    assert "ZeroDivisionError: a bug" in second.output_text
    assert "error: rank 1 has ended: ZeroDivisionError: a bug (pid " in first.output_text


def test_a_disk_that_fails_one_rank_fails_the_save_of_all(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(**SHARED, shard=True)
    first, second = start(config, tmp_path, sabotage={1: "fail_to_write"})
    assert {first.wait(), second.wait()} <= {1, 2}  # depending on which notices first
    assert "the checkpoint could not be written (" in first.output_text
    assert "[Errno 28] No space left on device" in first.output_text
    assert committed_paths(Path(config.out_dir)) == []
    assert not list((Path(config.out_dir) / "checkpoints").iterdir())


def test_a_nan_on_one_rank_ends_all_at_the_same_update(tiny: MakeConfig, tmp_path: Path) -> None:
    for shard in (False, True):
        config = tiny(f"bad-{shard}", **SHARED | {"shard": shard})
        ranks = start(config, tmp_path, sabotage={1: "lose_a_gradient"})
        assert [process.wait() for process in ranks] == [3, 3]
        end = records(config.out_dir)[-1]
        assert (end["reason"], end["bad_iter"], end["iter"]) == ("not finite", 4, 3)


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_signal_to_one_rank_stops_all_at_the_same_update_with_a_checkpoint(
    tiny: MakeConfig, tmp_path: Path, rank: int, number: signal.Signals
) -> None:
    whole = tiny("whole", **SHARED | {"max_iters": 40, "gradient_accumulation_steps": 2})
    config = tiny(**SHARED | {"max_iters": 40, "gradient_accumulation_steps": 2})
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(whole))
    ranks = start(config, tmp_path, sabotage={0: "be_slow"})
    while not Path(config.out_dir, "journal.jsonl").exists() or not run_losses(config.out_dir):
        time.sleep(0.01)
    ranks[rank].send(number)
    assert [process.wait() for process in ranks] == [128 + number] * 2
    end = records(config.out_dir)[-1]
    assert (end["reason"], end["exit_code"]) == ("interrupted", 128 + number)
    assert 0 < end["iter"] < 40
    assert end["last_checkpoint"].endswith(f"{end['iter']:08d}")
    assert ranks[1].output_text == ""
    assert ("stopping after this update" in ranks[0].output_text) == (rank == 0)
    resume_and_compare(config, whole, tmp_path)


def test_a_launcher_that_restarts_a_group_resumes_its_run(tiny: MakeConfig, tmp_path: Path) -> None:
    """The same command, again, by `torchrun --max-restarts`: neither another run nor an error."""
    whole, config = tiny("whole", **SHARED), tiny("again", **SHARED)
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(whole))
    launch = {"TORCHELASTIC_RUN_ID": "a-launch"}
    ranks = start(config, tmp_path, sabotage={1: "die_in_update_7"}, environment=launch)
    assert [process.wait() for process in ranks] == [1, -signal.SIGKILL]
    again = launch | {"TORCHELASTIC_RESTART_COUNT": "1"}
    rank_processes.run_ranks(2, tmp_path, rank_processes.train_command(config), environment=again)
    assert run_losses(config.out_dir) == run_losses(whole.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(whole.out_dir))
    assert records(config.out_dir, "run")[-1]["team"]["attempt"] == 1
    shutil.rmtree(config.out_dir)  # without a run to resume it starts one
    rank_processes.run_ranks(
        2, tmp_path, rank_processes.train_command(config, max_iters=3), environment=again
    )
    assert records(config.out_dir, "run")[-1]["iter"] == 0


_STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""
_RANK = """
import sys
from glassgpt.training.distributed import join
from glassgpt.training.distributed.process_group import RankLost
group = join()
print("joined", flush=True)
sys.stdin.readline()
try:
    if sys.argv[1] == "startup":
        with group.share_errors():
            group.all_gather_object("here")
    else:
        group.shut_down()
except RankLost as lost:
    print(lost)
"""


@pytest.mark.parametrize("when", ["startup", "end"])
def test_a_launcher_that_is_gone_is_named_before_and_after_training_too(when: str) -> None:
    """The host of the store is killed while a rank waits for the others."""
    launcher = subprocess.Popen([sys.executable, "-c", _STORE], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": launcher.stdout.readline().strip()}
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    process = subprocess.Popen(
        [sys.executable, "-c", _RANK, when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | place | rank,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    launcher.kill()
    launcher.wait()
    output, errors = process.communicate("\n", timeout=60)
    assert output.startswith("the launcher is gone"), errors
    assert "Traceback" not in errors


def test_a_folder_that_the_first_rank_loses_is_rescued_by_all(tiny: MakeConfig, tmp_path: Path) -> None:
    """Each rank has a shard of the weights to save."""
    ranks = start(tiny(**SHARED, shard=True), tmp_path, sabotage={0: "move_the_folder"})
    assert [process.wait() for process in ranks] == [2, 2], ranks[0].output_text
    assert [path.name for path in committed_paths(tmp_path / "elsewhere")] == ["00000005"]
    rescued = tmp_path / "run-rescued"
    assert str(rescued) in ranks[0].output_text
    (last,) = committed_paths(rescued)
    assert 7 < int(last.name) < 12
    assert last_tensors(rescued)["model"]
