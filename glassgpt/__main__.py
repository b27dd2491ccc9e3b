"""`python -m glassgpt` is `glass`."""

import os
import signal
import sys
from types import FrameType


def run() -> None:
    """Ctrl-C may come while the program is still loading; that too ends without a traceback. An exception
    would not do: libraries that are being loaded catch it, or print it."""
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it is ignored
    if waits:
        signal.signal(signal.SIGINT, _stop_at_once)
    if sys.argv[1:2] == ["train"] and hasattr(signal, "pthread_sigmask"):
        # It would end the program while that is loading. It waits until training/interrupt.py can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    # Python processes that we or our libraries start import nothing from the current folder, either:
    # `python -c` and `-m` would look there first, and a random.py there may be anybody's.
    os.environ["PYTHONSAFEPATH"] = "1"
    from glassgpt.cli import run as run_command

    if waits:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"\nstopped at once\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    run()
