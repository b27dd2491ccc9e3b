"""Being asked to stop: Ctrl-C and SIGTERM set a flag that the loop looks at between pieces of work.

The first signal lets the loop finish its update, save and say how to go on. The second one quits as soon as a
checkpoint that is just being written is on disk; the last committed one is whole in any case.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """`with Stop() as stop:` … `if stop.requested: …`"""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """As a shell reports it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    def __enter__(self) -> Stop:
        # Python delivers signals to the main thread only; in a notebook's worker thread we go without.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
