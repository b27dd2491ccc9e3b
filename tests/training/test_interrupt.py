"""Stop signals: the first signal sets a flag, the second one quits, and handlers go back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rank_processes import train_command
from tiny import MakeConfig, assert_same_tensors, last_tensors, records, resume, run_evals, run_losses

from glassgpt.record.run_requests import Action, write_request
from glassgpt.training.interrupt import ImmediateStop, StopSignals
from glassgpt.training.learner import Learner
from glassgpt.training.session import Run, train


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_a_request(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopSignals() as signals:
        signals.is_graceful = True
        assert not signals.stop_requested
        os.kill(os.getpid(), number)
        assert signals.stop_requested
        assert signals.exit_code == code
    assert "Ctrl-C again quits at once" in capfd.readouterr().err


def test_the_second_signal_quits() -> None:
    with StopSignals() as signals:
        signals.is_graceful = True
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_while_there_is_nothing_to_save_the_first_one_quits(number: signal.Signals, code: int) -> None:
    with StopSignals(), pytest.raises(ImmediateStop) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == code


def test_a_hangup_stops_nothing() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.sighup_received
        assert not signals.stop_requested


def test_a_request_to_save_stops_nothing() -> None:
    """Also one that came before, while the program was loading."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    with StopSignals() as signals:
        assert signals.save_requested
        assert not signals.stop_requested
        assert not signals.sighup_received
        assert signals.take_local_requests() == (0, 0, 1, 0)
        assert signals.take_local_requests() == (0, 0, 0, 0)
    with StopSignals() as signals:
        signals.is_distributed = True
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not signals.save_requested
        signals.apply_requests(*signals.take_local_requests())
        assert signals.save_requested
    # Blocked again, as before: one that comes in the last moments must not end a finished run.
    assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def test_under_nohup_a_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.sighup_received
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_go_back_to_what_they_were() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_run_in_another_thread_goes_without(tiny: MakeConfig) -> None:
    done: list[Run] = []
    thread = threading.Thread(target=lambda: done.append(train(tiny(max_iters=3))))
    thread.start()
    thread.join()
    assert done[0].exit_code == 0


def signal_at(patch: pytest.MonkeyPatch, update: int, *numbers: signal.Signals) -> None:
    """The signals arrive while update `update` is under way."""
    original = Learner.update

    def interrupted(learner: Learner, at: int, first_sequence: int) -> None:
        original(learner, at, first_sequence)
        if at == update:
            time.sleep(0.2)  # what is being saved shall be saved: a second signal does not wait for it
            for number in numbers:
                os.kill(os.getpid(), number)

    patch.setattr(Learner, "update", interrupted)


@pytest.mark.parametrize("update", [0, 8, 9, 12])
def test_an_interrupted_run_saves_and_goes_on_exactly(tiny: MakeConfig, update: int) -> None:
    plain = tiny("plain", dropout=0.1, log_interval=2)
    config = tiny(dropout=0.1, log_interval=2)
    train(plain)
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, update, signal.SIGINT)
        run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("interrupted", 130, update + 1)
    end = records(config.out_dir)[-1]
    assert (end["kind"], end["reason"], end["exit_code"]) == ("end", "interrupted", 130)
    resume(config)
    assert records(config.out_dir, "resume")[-1]["from_iter"] == update + 1
    # An interval cut by the stop was logged in two parts; all others are the same.
    assert run_losses(plain.out_dir).items() <= run_losses(config.out_dir).items()
    assert run_evals(config.out_dir) == run_evals(plain.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(plain.out_dir))


def test_stopped_during_the_first_evaluation_it_can_go_on(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=12)
    original = Learner.token_losses

    def interrupted(learner: Learner, *batch: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(learner, *batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "token_losses", interrupted)
        patch.setattr("glassgpt.estimate.batching._EVAL_BATCH_TOKENS", {"cpu": 64})
        run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("interrupted", 143, 0)
    assert records(config.out_dir, "eval") == []
    assert resume(config).reason == "finished"
    assert len([r for r in records(config.out_dir, "eval") if r["iter"] == 0]) == 2


def test_the_second_ctrl_c_leaves_the_last_checkpoint(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=20)
    with monkeypatch.context() as patch:
        signal_at(patch, 14, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    end = records(config.out_dir, "end")[-1]
    assert (end["reason"], end["exit_code"]) == ("interrupted", 130)
    assert resume(config).iter == 20
    assert records(config.out_dir, "resume")[-1]["from_iter"] == 10


def test_a_run_whose_terminal_is_gone_saves_and_goes_on(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=20)
    with monkeypatch.context() as patch:
        signal_at(patch, 13, signal.SIGHUP)
        run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("finished", 0, 20)
    assert [record["iter"] for record in records(config.out_dir, "checkpoint")] == [10, 14, 20]
    (finding,) = records(config.out_dir, "finding")
    assert (finding["id"], finding["iter"]) == ("hangup", 14)
    assert f"kill {os.getpid()}" in finding["advice"]


def test_a_run_that_is_asked_to_save_saves_and_goes_on(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=20)
    with monkeypatch.context() as patch:
        signal_at(patch, 13, signal.SIGUSR1)
        run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("finished", 0, 20)
    assert [record["iter"] for record in records(config.out_dir, "checkpoint")] == [10, 14, 20]
    (finding,) = records(config.out_dir, "finding")
    assert (finding["id"], finding["iter"], finding["evidence"]) == ("save-requested", 14, "SIGUSR1")
    assert "--init_from=resume" in finding["advice"]


def request_at(patch: pytest.MonkeyPatch, run_dir: str, update: int, action: Action) -> None:
    """A file in the run's folder asks for it while update `update` is under way."""
    original = Learner.update

    def requested(learner: Learner, at: int, first_sequence: int) -> None:
        original(learner, at, first_sequence)
        if at == update:
            write_request(Path(run_dir), action, "page")

    patch.setattr(Learner, "update", requested)
    patch.setattr("glassgpt.record.run_requests._LOOK_INTERVAL_S", 0.0)


def test_a_request_in_the_folder_saves_and_goes_on(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20)
    with pytest.MonkeyPatch.context() as patch:
        request_at(patch, config.out_dir, 13, "save")
        run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("finished", 0, 20)
    assert [record["iter"] for record in records(config.out_dir, "checkpoint")] == [10, 14, 20]
    (request,) = records(config.out_dir, "request")
    assert (request["action"], request["by"], request["iter"]) == ("save", "page", 14)
    (finding,) = records(config.out_dir, "finding")
    assert (finding["id"], finding["iter"], finding["values"]["by"]) == ("save-requested", 14, "page")
    assert finding["advice"] == ""  # nothing is to be done


def test_a_request_in_the_folder_stops_and_the_run_resumes_exactly(tiny: MakeConfig) -> None:
    plain, config = tiny("plain", dropout=0.1), tiny(dropout=0.1)
    train(plain)
    with pytest.MonkeyPatch.context() as patch:
        request_at(patch, config.out_dir, 8, "stop")
        run = train(config)
    assert (run.reason, run.exit_code, run.iter) == ("interrupted", 130, 9)
    assert [record["action"] for record in records(config.out_dir, "request")] == ["stop"]
    resume(config)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(plain.out_dir))


def test_a_request_to_save_at_start_up_ends_nothing(tiny: MakeConfig) -> None:
    """As soon as the program is there, long before there is anything to save."""
    config = tiny(max_iters=12)
    script = (
        "import os, signal, sys\n"
        "kill = lambda: os.kill(os.getpid(), signal.SIGUSR1)\n"
        "class Finder:\n"
        "    def find_spec(self, name, *more):\n"
        "        name == 'glassgpt.cli' and kill()\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from glassgpt.__main__ import run\n"
        "run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *train_command(config)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [record["iter"] for record in records(config.out_dir, "checkpoint")] == [0, 10, 12]
