"""Which rank is lost, from the last heartbeats and a fake clock; and how ranks share their time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from glassgpt.record.ledger import RankTimes
from glassgpt.training.distributed.rank_watchdog import (
    NO_RANK,
    Heartbeat,
    LastHeartbeat,
    RankWatchdog,
    find_lost_rank,
    is_alive,
    pid_namespace,
)

OWN = Heartbeat(number=9, phase="train", iter=5, is_waiting=True, machine="here", pid=1)
OTHER = replace(OWN, pid=2)


def message_about_other(
    waiting_s: float = 0.0, since: float = 100.0, alive: bool = True, **changes: object
) -> str | None:
    """At 100 s, about one other rank, whose last heartbeat came at `since`."""
    others = {1: LastHeartbeat(replace(OTHER, **changes), since)}  # type: ignore[arg-type]
    lost = find_lost_rank(others, OWN, waiting_s, 100.0, 10.0, lambda pid: alive)
    assert lost is None or lost[0] == (NO_RANK if "each other" in lost[1] else 1)
    return lost and lost[1]


def test_no_rank_is_lost_while_all_work() -> None:
    assert message_about_other() is None
    assert message_about_other(waiting_s=9.9, is_waiting=False) is None  # not for long enough
    assert message_about_other(since=50.0) is None  # silent, but no rank waits
    assert message_about_other(waiting_s=24.0) is None  # all wait, as they may for a moment
    assert message_about_other(exit_error="") is None
    assert message_about_other(exit_error="", alive=False) is None


def test_the_dead_are_noticed_at_once_on_their_own_machine() -> None:
    assert re.match(
        r"rank 1 .*died \(pid 2 on here, .*`train` after 5 ", str(message_about_other(alive=False))
    )
    # On another machine its pid means nothing here.
    assert message_about_other(alive=False, machine="there") is None
    lost = message_about_other(alive=False, machine="there", since=89.0, waiting_s=11.0, phase="eval")
    assert re.match(
        r"rank 1 .*heartbeat.* \(pid 2 on there, .*`eval` after 5 .* 11 s .*\(--rank_timeout=10\)$", str(lost)
    )


def test_a_process_of_another_container_is_not_taken_for_dead() -> None:
    """Containers on one machine may share its name, and each has its own list of processes."""
    assert message_about_other(alive=False, pid_namespace="another list") is None
    if shutil.which("unshare") is None:
        pytest.skip("no process can be put into a container here: there is no unshare")
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    code = "from glassgpt.training.distributed.rank_watchdog import *; print(pid_namespace())"
    program = [sys.executable, "-c", code]
    assert subprocess.run(program, capture_output=True, text=True).stdout.strip() == pid_namespace()
    apart = subprocess.run([*unshare, *program], capture_output=True, text=True)
    if apart.returncode:
        pytest.skip(f"no process can be put into a container here: {apart.stderr.strip()}")
    assert apart.stdout.strip() not in ("", pid_namespace())


def test_a_rank_that_the_others_wait_for_is_stuck() -> None:
    message = message_about_other(waiting_s=10.0, is_waiting=False, phase="data", iter=4)
    assert re.match(r"rank 1 is stuck \(pid 2 on here, .*`data` after 4 ", str(message))


def test_if_all_ranks_wait_it_is_the_network() -> None:
    assert re.search("25 s .*`train` after 5 .*network", str(message_about_other(waiting_s=25.0)))


def test_a_rank_that_ended_with_an_error_is_named_before_one_that_is_only_gone() -> None:
    others = {
        1: LastHeartbeat(OTHER, 100.0),
        2: LastHeartbeat(replace(OTHER, pid=3, exit_error="ValueError: odd"), 100.0),
    }
    lost = find_lost_rank(others, OWN, 0.0, 100.0, 10.0, lambda pid: False)
    assert lost is not None
    assert lost[0] == 2


def test_the_error_of_a_rank_that_ended_is_named() -> None:
    assert str(message_about_other(exit_error="ValueError: odd")).startswith(
        "rank 1 has ended: ValueError: odd (pid 2"
    )


def test_a_process_is_alive_until_it_is_gone() -> None:
    assert is_alive(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    while is_alive(child.pid):  # also while it is a zombie
        time.sleep(0.01)
    child.wait()
    assert not is_alive(child.pid)


class FakeStore(dict[str, bytes]):
    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        assert expected == ""
        return self.setdefault(key, value.encode())


def test_a_watchdog_sees_the_other_rank_end() -> None:
    store = FakeStore()
    one, other = (RankWatchdog(store, rank, 2, 60.0) for rank in range(2))
    other.set_callbacks(lambda: ("eval", 3), lambda text: None)
    other.close("OSError: gone")
    assert one.wait_for_loss(10.0) is not None
    assert "rank 1 has ended: OSError: gone" in str(one.lost_message)
    assert "in phase `eval` after 3 updates" in str(one.lost_message)
    assert one.claim_report()
    assert not one.claim_report()  # once
    one.close("")


def test_the_first_verdict_holds_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 hangs. Rank 1 finds that and ends; rank 0, which checks later, must not name rank 1."""
    monkeypatch.setattr(RankWatchdog, "_run", lambda watchdog: None)  # no thread: the test checks
    store = FakeStore()
    zero, one, two = watchdogs = [RankWatchdog(store, rank, 3, 10.0) for rank in range(3)]
    for watchdog in watchdogs:
        watchdog._waiting_since = None if watchdog is two else time.monotonic() - 11.0
        watchdog._send_heartbeat()
    verdict = one._check_ranks()
    assert verdict is not None
    reporter, one.lost_message = verdict
    assert one.lost_message.startswith("rank 2 is stuck")
    assert reporter == 0  # the lowest rank that was heard of
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    one._end_process(one._send_last_heartbeat)
    assert codes == [1]
    assert Heartbeat.read(store["beat/1"]).exit_error == ""  # it ended without an error of its own
    monkeypatch.setattr("glassgpt.training.distributed.rank_watchdog.is_alive", lambda pid: False)
    assert zero._check_ranks() == verdict


def test_a_store_that_fails_without_a_word_is_the_launcher_gone() -> None:
    class Gone(FakeStore):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError

    watchdog = RankWatchdog(Gone(), 0, 2, 60.0)
    assert watchdog.wait_for_loss(10.0) == "the launcher is gone: its store does not answer (RuntimeError)"
    watchdog.close("")


# --- time by rank ---


def test_all_reduce_and_waiting_are_separate() -> None:
    """Two equal ranks with 1 s of 10 in all-reduce; then one is 3 s late, and the other waits for it."""
    equal = RankTimes((9.0, 9.0), (1.0, 1.0))
    assert (equal.scaling_efficiency, equal.communication_share, equal.waiting_share) == pytest.approx(
        (0.9, 0.1, 0.0)
    )
    late = RankTimes((6.0, 9.0), (4.0, 1.0))
    assert late.slowest_rank == 1
    assert (late.scaling_efficiency, late.communication_share, late.waiting_share) == pytest.approx(
        (0.75, 0.1, 0.15)
    )
    both = equal + late
    assert both == RankTimes((15.0, 18.0), (5.0, 2.0))
    for sharing in (equal, late, both):
        assert (
            sharing.scaling_efficiency + sharing.communication_share + sharing.waiting_share
            == pytest.approx(1.0)
        )
