"""Samples for the page: a prompt in, text and the likeliest next tokens out, as they are generated.

    with closing(PageSampler()) as sampler:
        for message in sampler.stream(run_dir, parse_sample_request({"prompt": "Once", "checkpoint": 2000})):
            message  # {"next": [{"token": " upon", "p": 0.9}, …]}, {"text": " upon a"}, …, {"done": True}

The model runs in a process of its own (sample/sample_server.py), so that a page can neither block the server
nor break the run. One sample is generated at a time: a newer request ends the one before.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassgpt.errors import UserError
from glassgpt.isolate import IsolatedProcess, ProcessDied, ProcessHung

MAX_PROMPT_CHARS = 8000
MAX_NEW_TOKENS = 1000
_MAX_TEMPERATURE = 100.0
_START_LIMIT_S = 120.0  # importing torch and loading a model on a busy machine
_MORE_LIMIT_S = 60.0
_WAIT_S = 10.0  # for the sample before, whose reader may be slow, to end
_PIECE_S = 0.15  # between two pieces of text
_IDLE_S = 300.0  # then the process ends, and its memory is free
_BUSY = {"error": "a sample is being generated; one at a time", "busy": True}


@dataclass(frozen=True)
class SampleRequest:
    prompt: str = ""
    checkpoint: int | None = None  # its updates; None: the best
    temperature: float = 0.8
    top_k: int | None = 200
    seed: int = 1337
    max_new_tokens: int = 200


def parse_sample_request(values: Mapping[str, Any]) -> SampleRequest:
    """Validated; raises a UserError with all problems at once."""
    request = asdict(SampleRequest()) | {
        name: value for name, value in values.items() if name in SampleRequest.__dataclass_fields__
    }
    bounds: dict[str, tuple[type, float, float]] = {
        "checkpoint": (int, 0, 2**53),
        "temperature": (float, 0, _MAX_TEMPERATURE),
        "top_k": (int, 1, 2**31),
        "seed": (int, 0, 2**53),
        "max_new_tokens": (int, 1, MAX_NEW_TOKENS),
    }
    problems = []
    if not isinstance(request["prompt"], str) or len(request["prompt"]) > MAX_PROMPT_CHARS:
        problems.append(f"prompt must be a text of at most {MAX_PROMPT_CHARS:,} characters")
    for name, (kind, low, high) in bounds.items():
        value = request[name]
        if value is None and name in ("checkpoint", "top_k"):
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or (kind is int and value != int(value)) or not low <= value <= high:
            problems.append(f"{name} must be a number from {low:,.0f} to {high:,.0f}")
        else:
            request[name] = kind(value)
    if problems:
        raise UserError(problems)
    return SampleRequest(**request)


@dataclass(frozen=True)
class LookRequest:
    checkpoint: int  # its updates
    layer: int | None = None  # with `head`, from 0: the attention of that head
    head: int | None = None


def parse_look_request(values: Mapping[str, Any]) -> LookRequest:
    numbers = [values.get(name) for name in ("checkpoint", "layer", "head")]
    is_valid = all(type(one) is int and 0 <= one < 2**53 for one in numbers if one is not None)
    if not is_valid or numbers[0] is None or (numbers[1] is None) != (numbers[2] is None):
        raise UserError("a look needs a checkpoint; for the attention of a head, layer and head as well")
    return LookRequest(*numbers)  # type: ignore[arg-type]


class PageSampler:
    """Starts its process with the first request; `close` ends it."""

    def __init__(self) -> None:
        self._process: IsolatedProcess | None = None
        self._busy = threading.Lock()
        self._requests = 0  # so far; a stream ends when there is a later one
        self._idle_timer: threading.Timer | None = None

    def stream(self, run_dir: Path, request: SampleRequest) -> Generator[dict[str, Any]]:
        """Messages for the page; the last one has `done` or `error`."""
        self._requests += 1
        number = self._requests
        which = "best" if request.checkpoint is None else str(request.checkpoint)
        options = asdict(request) | {"num_samples": 1, "device": "cpu"}
        del options["prompt"], options["checkpoint"]
        start = {"kind": "start", "run": f"{run_dir}@{which}", "prompt": request.prompt, "options": options}
        try:
            with self._turn() as process:
                answer = _BUSY if process is None else process.ask(start, _START_LIMIT_S)
                yield answer
                while process is not None and "error" not in answer and not answer.get("done"):
                    if number != self._requests:
                        yield {"error": "a newer request took its place", "busy": True}
                        return
                    answer = process.ask({"kind": "more", "seconds": _PIECE_S}, _MORE_LIMIT_S)
                    yield answer
        except (ProcessDied, ProcessHung) as error:
            yield {"error": f"the process that samples has ended: {error}"}

    def look(self, run_dir: Path, request: LookRequest) -> dict[str, Any]:
        """The answer of the process; {"error": …} where there is none."""
        question: dict[str, Any] = {"run": f"{run_dir}@{request.checkpoint}", "device": "cpu"}
        if request.layer is None:
            question |= {"kind": "look"}
        else:
            question |= {"kind": "attention", "layer": request.layer, "head": request.head}
        try:
            with self._turn() as process:
                return _BUSY if process is None else process.ask(question, _START_LIMIT_S)
        except (ProcessDied, ProcessHung) as error:
            return {"error": f"the process that looks has ended: {error}"}

    @contextmanager
    def _turn(self) -> Iterator[IsolatedProcess | None]:
        """The process, started if need be; None: another request has it."""
        if not self._busy.acquire(timeout=_WAIT_S):
            yield None
            return
        try:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._process = self._process or IsolatedProcess("glassgpt.sample.sample_server")
            yield self._process
        except (ProcessDied, ProcessHung):
            self._end_process()
            raise
        finally:
            self._idle_timer = threading.Timer(_IDLE_S, self._end_if_idle)
            self._idle_timer.daemon = True
            self._idle_timer.start()
            self._busy.release()

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._end_process()

    def _end_if_idle(self) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._end_process()
            finally:
                self._busy.release()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
