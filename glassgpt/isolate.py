"""A module in a separate Python process, which may hang or crash: one line of JSON in, one line of JSON out.

    with closing(IsolatedProcess("glassgpt.tune.trial_server")) as process:
        answer = process.ask({"kind": "device", "requested": "auto"}, limit_s=60)

The module calls `serve` with a function from requests to answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glassgpt.files import child_pythonpath

JsonObject = dict[str, Any]
SIGKILL = 9  # the signal module of Windows does not define it


class ProcessHung(Exception):
    """It did not answer in time, and was killed. The message: what it had printed."""


class ProcessDied(Exception):
    """It ended without an answer. The message: the last line that it printed, and how it ended."""

    def __init__(self, exit_code: int, stderr: str = "") -> None:
        self.exit_code = exit_code
        self.stderr = stderr
        self.last_line = (stderr.strip().splitlines() or [""])[-1]
        self.status = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
        with contextlib.suppress(ValueError):  # -11: SIGSEGV
            self.status = signal.Signals(-exit_code).name
        super().__init__(f"{self.last_line[:200]} ({self.status})" if self.last_line else self.status)

    @property
    def was_killed(self) -> bool:
        """By Linux, which does that when memory runs out."""
        return self.exit_code == -SIGKILL


class IsolatedProcess:
    """Answers one request at a time. `close` kills it with its children."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self._process = subprocess.Popen(
            # -P: do not import torch from a torch.py in the current folder.
            (sys.executable, "-P", "-m", module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr_file,
            env={**os.environ, "PYTHONPATH": child_pythonpath(), **(environment or {})},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches us alone, and the process group is killed as a whole
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def _wait_for_end(self) -> None:
        self._process.wait()
        self._reader.join(timeout=1)  # not for long: a forked child may hold the pipe open
        self._lines.put(None)

    def ask(self, request: JsonObject, limit_s: float) -> JsonObject:
        """The answer; lines that are none are skipped."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(OSError):  # it has died: reading the answer raises ProcessDied
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._kill()
                raise ProcessHung(self._stderr()) from None
            if line is None:
                self._lines.put(None)  # for the next request
                raise ProcessDied(self._process.wait(), self._stderr())
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer

    def _stderr(self) -> str:
        self._stderr_file.seek(0)
        return self._stderr_file.read().decode(errors="replace")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended already
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, SIGKILL)
            else:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a broken driver can hold it for ever
            self._process.wait(timeout=5)

    def close(self) -> None:
        if self._stderr_file.closed:
            return
        self._kill()
        self._reader.join(timeout=5)
        self._stderr_file.close()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


# --- in the separate process ---


def serve(answer: Callable[[JsonObject], JsonObject]) -> None:
    """Ends, with all children, when the other side closes the pipe or is gone."""
    # If Linux runs out of memory, it should kill this process rather than others.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # The pipes are for requests and answers. What libraries and compilers print goes to stderr.
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    received: queue.Queue[JsonObject] = queue.Queue()

    def listen() -> None:
        for line in requests:
            received.put(json.loads(line))
        if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
            os.killpg(0, SIGKILL)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    try:
        while True:
            answers.write(json.dumps(answer(received.get())) + "\n")
            answers.flush()
    except BaseException:  # noqa: BLE001 - the other side reports it
        traceback.print_exc()
        os._exit(1)  # not through Python's shutdown, which would meet the thread that listens
