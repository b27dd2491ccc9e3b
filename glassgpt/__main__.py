"""`python -m glassgpt` is `glass`."""

import os
import signal
import sys


def run() -> None:
    """Ctrl-C may come while the program is still loading; that too ends without a traceback."""
    if sys.argv[1:2] == ["train"] and hasattr(signal, "pthread_sigmask"):
        # It would end the program while that is loading. It waits until train/interrupt.py can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    # Python processes that we or our libraries start import nothing from the current folder, either:
    # `python -c` and `-m` would look there first, and a random.py there may be anybody's.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from glassgpt.cli import run as run_command
    except KeyboardInterrupt:
        print("\nstopped at once", file=sys.stderr, flush=True)
        os._exit(130)
    run_command()


if __name__ == "__main__":
    run()
