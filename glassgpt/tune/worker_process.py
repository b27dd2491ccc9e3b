"""Trials run in a separate process, so that one that runs out of memory, crashes or hangs ends alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.files import child_pythonpath
from glassgpt.tune.search import budget_too_short_message
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext, context_from_document
from glassgpt.tune.trial import Trial

JsonObject = dict[str, Any]
_SIGKILL = 9  # the signal module of Windows does not define it
_KILLED = "killed"


class WorkerDied(Exception):
    """The process is gone; the message is its last output."""


class WorkerHung(Exception):
    """It did not answer in time."""


class TrialWorker:
    """A worker process, which answers one request at a time."""

    # -P: do not import torch from a torch.py in the current folder.
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "glassgpt.tune.worker")

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads
        environment = {**os.environ, "PYTHONPATH": child_pythonpath()}
        if threads is not None:  # OpenMP reads the count at start-up
            environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr_file,
            env=environment,
            encoding="utf-8",
            start_new_session=os.name != "nt",  # Ctrl-C reaches us alone, and a group is killed whole
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def send_request(self, request: JsonObject, limit_s: float) -> JsonObject:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            raise WorkerHung from None
        except OSError:
            line = None
        if line is None:
            raise WorkerDied(self._exit_reason())
        answer: JsonObject = json.loads(line)
        if "problems" in answer:
            raise UserError(answer["problems"])
        return answer

    def _exit_reason(self) -> str:
        """Why it died: the signal, or the last line of what it printed."""
        code = self._process.wait()
        if code == -_SIGKILL:
            return _KILLED
        self._stderr_file.seek(0)
        lines = self._stderr_file.read().decode(errors="replace").strip().splitlines()
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{lines[-1][:200]} ({ended})" if lines else ended

    def close(self) -> None:
        """Kills it with all its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._listener.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout, self._stderr_file):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


class TrialRunner:
    """Keeps one worker ready, and replaces it after a failure.

    `with TrialRunner() as runner:` starts it: importing torch takes seconds, which the caller can use.
    """

    def __init__(self, make_worker: type[TrialWorker] = TrialWorker) -> None:
        self._make_worker = make_worker
        self._worker: TrialWorker | None = make_worker()
        self._base_request: JsonObject = {}
        self._context: TuneContext | None = None
        self.timed_s = 1.0  # of timed updates in a trial

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard_worker()

    def device_type(self, requested: str, limit_s: float) -> str:
        """The device type here, which selects the tables of a preset."""
        return str(
            self._request_or_fail({"kind": "device", "requested": requested}, limit_s, limit_s)["type"]
        )

    def inspect_machine(
        self, config: TrainConfig, vocab_size: int | None, limit_s: float, budget_s: float
    ) -> TuneContext:
        """`limit_s`: what is left of the budget."""
        self._base_request = {"config": dataclasses.asdict(config), "vocab_size": vocab_size}
        document = self._request_or_fail({"kind": "inspect", **self._base_request}, limit_s, budget_s)
        self._context = context_from_document(document)
        return self._context

    def _request_or_fail(self, request: JsonObject, limit_s: float, budget_s: float) -> JsonObject:
        """A request without which there is nothing to tune."""
        try:
            answer = self._worker_with_threads(None).send_request(request, limit_s)
        except WorkerHung:
            raise UserError(budget_too_short_message(budget_s)) from None
        except WorkerDied as error:
            raise UserError(f"the trial process cannot be started: {error}") from None
        if answer.get("outcome"):
            raise UserError(f"no trial can run: {answer['why']}")
        return answer

    def measure(self, setting: SpeedSettings, limit_s: float) -> Trial:
        """Runs one trial and returns its outcome, whatever that is."""
        begin = time.monotonic()
        assert self._context is not None, "inspect_machine comes first"
        request = {
            "kind": "trial",
            **self._base_request,
            "setting": dataclasses.asdict(setting),
            "sequences": self._context.sequences,
            "micro_steps": self._context.trial_micro_steps(setting),
            "seconds": self.timed_s,
        }
        trial = self._request_trial(request, setting.threads, limit_s)
        # The compiler stays in memory, and would count in the peak of later trials.
        if trial.outcome not in ("ran", "impossible") or setting.compile:
            self._discard_worker()
        return dataclasses.replace(trial, wall_s=time.monotonic() - begin)

    def _request_trial(self, request: JsonObject, threads: int | None, limit_s: float) -> Trial:
        try:
            answer = self._worker_with_threads(threads).send_request(request, limit_s)
        except UserError as error:
            return Trial(outcome="impossible", why=error.problems[0])
        except WorkerHung:
            return Trial(outcome="hung", why=f"no answer after {limit_s:.0f} s")
        except WorkerDied as error:
            killed = str(error) == _KILLED  # by the kernel, which does that when memory runs out
            return Trial(outcome="out of memory" if killed else "crashed", why=str(error))
        return Trial(**answer | {"update_s": tuple(answer.get("update_s", ()))})

    def _worker_with_threads(self, threads: int | None) -> TrialWorker:
        if self._worker is not None and self._worker.threads != threads:
            self._discard_worker()
        if self._worker is None:
            self._worker = self._make_worker(threads)
        return self._worker

    def _discard_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
