"""The worker process that runs the trials: one line of JSON in, one line of JSON out.

    {"kind": "device", "requested": "auto"}
    {"kind": "inspect", "config": {…}, "vocab_size": null}
    {"kind": "trial", "config": {…}, "vocab_size": null, "setting": {…}, "sequences": 480, …}

It ends, with all its children, when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, error_type_and_message, is_out_of_memory

if TYPE_CHECKING:
    from glassgpt.tune.trial_setup import TrialSetup

JsonObject = dict[str, Any]


def main() -> None:
    # Only answers go to stdout. What libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    prefer_oom_kill()
    requests: queue.Queue[JsonObject] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    server = TrialServer()
    while True:
        answers.write(json.dumps(server.answer(requests.get())) + "\n")
        answers.flush()


def _listen(requests: queue.Queue[JsonObject]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():  # worker_process.py makes us a group leader
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def prefer_oom_kill() -> None:
    """If Linux runs out of memory, it should kill this process rather than others."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class TrialServer:
    """Answers requests. Keeps the trial setup for the next one."""

    def __init__(self) -> None:
        self._trial_setup: tuple[JsonObject, TrialSetup] | None = None

    def answer(self, request: JsonObject) -> JsonObject:
        try:
            return self._answer(request)
        except UserError as error:
            return {"problems": error.problems}
        except Exception as error:  # noqa: BLE001 - the parent decides what an error means
            outcome = "out of memory" if is_out_of_memory(error) else "crashed"
            return {"outcome": outcome, "why": error_type_and_message(error)}

    def _answer(self, request: JsonObject) -> JsonObject:
        if request["kind"] == "device":
            from glassgpt.training.device import choose_device

            return {"type": choose_device(request["requested"])[0].type}
        setup = self._prepare({name: request[name] for name in ("config", "vocab_size")})
        if request["kind"] == "inspect":
            from glassgpt.tune.trial_setup import inspect_machine

            return dataclasses.asdict(inspect_machine(setup))
        from glassgpt.tune.speed_settings import SpeedSettings
        from glassgpt.tune.trial_run import run_trial

        arguments = {name: request[name] for name in ("sequences", "micro_steps", "seconds")}
        return dataclasses.asdict(run_trial(setup, SpeedSettings(**request["setting"]), **arguments))

    def _prepare(self, request: JsonObject) -> TrialSetup:
        from glassgpt.tune.trial_setup import prepare_trial_setup

        if self._trial_setup is None or self._trial_setup[0] != request:
            self._trial_setup = (
                request,
                prepare_trial_setup(TrainConfig(**request["config"]), request["vocab_size"]),
            )
        return self._trial_setup[1]


if __name__ == "__main__":
    main()
