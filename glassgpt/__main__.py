"""`python -m glassgpt` is `glass`."""

import os
import signal
from types import FrameType


def run() -> None:
    """Ctrl-C may come while the program is still loading; that too ends without a traceback. An exception
    would not do: libraries that are being loaded catch it, or print it."""
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # in the background it is ignored
    if waits:
        signal.signal(signal.SIGINT, _stop_at_once)
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
