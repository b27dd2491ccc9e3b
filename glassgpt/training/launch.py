"""`glass train --nproc N`: torchrun's own launcher, in this very process, for one machine.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 reach every process it has started, and its exit code is theirs. For
several machines, or to have processes restarted, there is torchrun itself.
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

# A hangup is none of them: it ends nothing. Older versions of torch do not ask, and say 129 after one.
_STOP_SIGNAL_NAMES = "SIGTERM,SIGINT,SIGQUIT"
_SHUTDOWN_TIMEOUT_S = (
    7 * 24 * 3600
)  # torch's own 30 s would kill processes that still finish an update and save
_POLL_S = 0.1


def launch(processes: int, words: Sequence[str]) -> int:
    """Runs `glass WORDS` so many times at once; returns when all have ended."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What there is to say the processes say themselves. Each of torch's loggers has a level of its own.
    for name in ("torch.distributed.elastic", *logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    if processes > 1:  # or each would take all cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(usable_cores()) // processes)))
    os.environ.setdefault(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_TIMEOUT_S)
    )  # older versions know none
    os.environ["PYTHONPATH"] = child_pythonpath()
    passes_on = "signals_to_handle" in LaunchConfig.__dataclass_fields__
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    if passes_on:
        config.signals_to_handle = _STOP_SIGNAL_NAMES
    try:
        with _forward_signals(with_hangup=passes_on):
            # -P: a glassgpt.py or numpy.py in the current folder is not what shall run.
            elastic_launch(config, sys.executable)("-P", "-m", "glassgpt", *words)
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        return _exit_code({rank: failure.exitcode for rank, failure in error.failures.items()})
    return 0


@contextlib.contextmanager
def _forward_signals(with_hangup: bool) -> Iterator[None]:
    """SIGUSR1 and SIGHUP reach the processes, which have sessions of their own, and end nothing here.

    They are blocked in this thread, and so in the processes that it starts: one that is still loading gets
    them when it can act on them (see Stop), instead of being ended by them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows has none of this
        yield
        return
    numbers = {signal.SIGUSR1}
    if with_hangup and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
        numbers.add(signal.SIGHUP)
    over = threading.Event()

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
                child.send_signal(number)

    def watch() -> None:
        while not over.wait(_POLL_S):
            pending = signal.sigpending() & numbers
            if pending and psutil.Process().children():  # else they will be started soon
                pass_on(signal.sigwait(pending))

    # A signal that arrives in a thread of a library, which does not block it, comes by the handler.
    handlers = {number: signal.signal(number, pass_on) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exit_code(codes: dict[int, int]) -> int:
    """The first process's, as a shell has it; else that of whoever failed, and who that was."""
    told_to_end = (-signal.SIGTERM, 128 + signal.SIGTERM)  # by the launcher, because another one failed
    own = {rank: code for rank, code in codes.items() if code not in told_to_end} or codes
    code = own.get(0, -1)
    if code < 0:
        code = next((code for code in own.values() if code > 0), own[min(own)])
        code = code if code > 0 else 128 - code
        killed = {rank: -code for rank, code in own.items() if code < 0 and -code != signal.SIGTERM}
        for rank, number in killed.items():
            print(f"error: rank {rank} was ended by {signal.Signals(number).name}", file=sys.stderr)
    return code
