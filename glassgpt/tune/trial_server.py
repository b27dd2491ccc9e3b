"""The worker process that runs the trials (see isolate.py). Its requests:

{"kind": "device", "requested": "auto"}
{"kind": "inspect", "config": {…}, "vocab_size": null}
{"kind": "trial", "config": {…}, "vocab_size": null, "setting": {…}, "sequences": 480, …}
{"kind": "probe", "config": {…}, "seconds": 3.0}
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, error_type_and_message, is_out_of_memory
from glassgpt.isolate import JsonObject, serve

if TYPE_CHECKING:
    from glassgpt.tune.trial_run import TrialSetup


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
        if request["kind"] == "probe":
            from glassgpt.tune.probe_updates import probe_run

            return dataclasses.asdict(probe_run(TrainConfig(**request["config"]), request["seconds"]))
        setup = self._prepare({name: request[name] for name in ("config", "vocab_size")})
        if request["kind"] == "inspect":
            from glassgpt.tune.trial_run import inspect_machine

            return dataclasses.asdict(inspect_machine(setup))
        from glassgpt.tune.speed_settings import SpeedSettings
        from glassgpt.tune.trial_run import run_trial

        arguments = {name: request[name] for name in ("sequences", "micro_steps", "seconds")}
        return dataclasses.asdict(run_trial(setup, SpeedSettings(**request["setting"]), **arguments))

    def _prepare(self, request: JsonObject) -> TrialSetup:
        from glassgpt.tune.trial_run import prepare_trial_setup

        if self._trial_setup is None or self._trial_setup[0] != request:
            self._trial_setup = (
                request,
                prepare_trial_setup(TrainConfig(**request["config"]), request["vocab_size"]),
            )
        return self._trial_setup[1]


if __name__ == "__main__":
    serve(TrialServer().answer)
