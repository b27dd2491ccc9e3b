"""`python -m glassgpt` is `glass`."""

import os
import signal
import sys
from types import FrameType


def run() -> None:
    """Runs `glass`. Ctrl-C during the imports ends without a traceback.

    KeyboardInterrupt would not do during the imports: libraries catch it, or print it.
    """

    def exit_at_once(number: int, frame: FrameType | None) -> None:
        try:
            os.write(2, b"\nstopped at once\n")
        finally:
            os._exit(128 + number)

    # A process in the background ignores SIGINT; then it keeps doing so.
    handles_sigint = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_sigint:
        signal.signal(signal.SIGINT, exit_at_once)
    if sys.argv[1:2] == ["train"] and hasattr(signal, "pthread_sigmask"):
        # SIGUSR1 would end the program during the imports. It is blocked until training installs its handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    # Child processes of us or of our libraries must not import from the current folder: `python -c` and `-m`
    # would search it first, and somebody's random.py there would be run. (The command that `glass watch` runs
    # is the user's: nanoGPT's train.py imports its model.py.)
    if sys.argv[1:2] != ["watch"]:
        os.environ["PYTHONSAFEPATH"] = "1"
    from glassgpt.cli import COMMAND_MODULES, load_command
    from glassgpt.cli import run as run_command

    if sys.argv[1:2] and sys.argv[1] in COMMAND_MODULES:
        load_command(sys.argv[1])
    if handles_sigint:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


if __name__ == "__main__":
    run()
