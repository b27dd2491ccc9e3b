"""`glass train --nproc N`: torchrun's launcher inside this process, for one machine.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 are forwarded to all ranks, and the exit code is theirs. For several
machines, or to restart failed ranks, use torchrun itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from types import FrameType

import psutil  # type: ignore[import-untyped]

from glassgpt.cgroup import usable_cores
from glassgpt.files import child_pythonpath

# Without SIGHUP, which ends nothing. Older versions of torch lack the setting, and exit with 129 after one.
_STOP_SIGNAL_NAMES = "SIGTERM,SIGINT,SIGQUIT"
_SHUTDOWN_TIMEOUT_S = 7 * 24 * 3600  # torch's 30 s would kill ranks that still finish an update and save
_POLL_S = 0.1


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Runs `glass ARGUMENTS` in this many processes; returns the exit code when all have ended."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The ranks print their own messages. Each of torch's loggers has its own level.
    for name in ("torch.distributed.elastic", *logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    if processes > 1:  # else each would use all cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(usable_cores()) // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_TIMEOUT_S))
    os.environ["PYTHONPATH"] = child_pythonpath()
    can_choose_signals = "signals_to_handle" in LaunchConfig.__dataclass_fields__
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    if can_choose_signals:
        config.signals_to_handle = _STOP_SIGNAL_NAMES
    try:
        with _forward_signals(with_hangup=can_choose_signals):
            # -P: do not import a glassgpt.py or numpy.py from the current folder.
            elastic_launch(config, sys.executable)("-P", "-m", "glassgpt", *arguments)
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        return _exit_code({rank: failure.exitcode for rank, failure in error.failures.items()})
    return 0


@contextlib.contextmanager
def _forward_signals(with_hangup: bool) -> Iterator[None]:
    """Forwards SIGUSR1 and SIGHUP to the ranks, which have their own sessions, and ends nothing here.

    The signals are blocked in this thread, and so in the processes that it starts: a rank that is still
    loading gets them when it can act on them (see StopSignals), and is not ended by them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    numbers = {signal.SIGUSR1}
    if with_hangup and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
        numbers.add(signal.SIGHUP)
    is_over = threading.Event()

    def forward(number: int, frame: FrameType | None = None) -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
                child.send_signal(number)

    def watch() -> None:
        while not is_over.wait(_POLL_S):
            pending = signal.sigpending() & numbers
            if pending and psutil.Process().children():  # without children: they will be started soon
                forward(signal.sigwait(pending))

    # A library's thread does not block these signals: one that arrives there calls the handler.
    handlers = {number: signal.signal(number, forward) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exit_code(codes: dict[int, int]) -> int:
    """Rank 0's, as a shell reports it; else that of a rank that failed. Names ranks that were killed."""
    by_launcher = (-signal.SIGTERM, 128 + signal.SIGTERM)  # which ends the others when one has failed
    failed = {rank: code for rank, code in codes.items() if code not in by_launcher} or codes
    code = failed.get(0, -1)
    if code < 0:
        code = next((code for code in failed.values() if code > 0), failed[min(failed)])
        code = code if code > 0 else 128 - code
        killed = {rank: -code for rank, code in failed.items() if code < 0 and -code != signal.SIGTERM}
        for rank, number in killed.items():
            print(f"error: rank {rank} was ended by {signal.Signals(number).name}", file=sys.stderr)
    return code
