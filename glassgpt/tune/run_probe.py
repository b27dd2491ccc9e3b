"""`glass plan --probe`: measures a few updates of a run here, in a separate process. Does not import torch.

    probe = probe_plan(config)
    probe.outcome, probe.describe()        # "ran", "measured here: 24 micro-batches in 3.0 s"

Whatever goes wrong there is an answer too: a run that is out of memory here will be so when it is started.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import closing

from glassgpt.config import TrainConfig
from glassgpt.estimate.measured_speed import ProbeResult
from glassgpt.isolate import SIGKILL, IsolatedProcess, ProcessDied, ProcessHung
from glassgpt.tune.trial_runner import start_worker

TIMED_S = 3.0  # of updates; with start-up, warm-up and evaluation some ten seconds in all
_LIMIT_S = 180.0  # compiling a large model takes a minute and more


def probe_plan(
    config: TrainConfig, start: Callable[[], IsolatedProcess] = start_worker, limit_s: float = _LIMIT_S
) -> ProbeResult:
    begin = time.monotonic()
    request = {"kind": "probe", "config": dataclasses.asdict(config), "seconds": TIMED_S}
    with closing(start()) as worker:
        try:
            answer = worker.ask(request, limit_s)
        except ProcessHung:
            result = ProbeResult("hung", f"did not finish within {limit_s:.0f} s")
        except ProcessDied as error:
            if error.exit_code == -SIGKILL:  # by the kernel, which does that when memory runs out
                result = ProbeResult("out of memory", "was killed, as Linux does when memory runs out")
            else:
                result = ProbeResult("crashed", f"crashed: {error}")
        else:
            if "problems" in answer:
                result = ProbeResult("not here", f"was refused: {'; '.join(answer['problems'])}")
            elif answer.get("outcome") == "crashed" and "took_s" not in answer:
                result = ProbeResult("crashed", f"crashed: {answer['why']}")
            else:
                result = ProbeResult(**answer | {"update_s": tuple(answer.get("update_s", ()))})
    return dataclasses.replace(result, took_s=time.monotonic() - begin)
