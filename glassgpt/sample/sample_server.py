"""The process that samples for the page (see isolate.py). Its requests:

{"kind": "start", "run": "runs/quickstart@2000", "prompt": "Once", "options": {"temperature": 0.8, …}}
{"kind": "more", "seconds": 0.2}

`start` answers with the likeliest next tokens; then each `more` with text, until `done`.
It runs on the CPU unless the options name another device, and with one thread, to leave the run its cores.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.errors import UserError, error_type_and_message
from glassgpt.isolate import JsonObject, serve

if TYPE_CHECKING:
    from glassgpt.sample.sampler import Sampler

LIKELIEST_TOKENS = 12
_MAX_LOADED_MODELS = 3  # the slider goes to and fro between checkpoints


class SampleServer:
    """Answers requests. Keeps the last models, and the sample that is being generated."""

    def __init__(self) -> None:
        self._samplers: dict[tuple[str, str], Sampler] = {}
        self._pieces: Iterator[list[str]] = iter(())

    def answer(self, request: JsonObject) -> JsonObject:
        try:
            return self._start(request) if request["kind"] == "start" else self._more(request["seconds"])
        except UserError as error:
            return {"error": "; ".join(error.problems)}
        except Exception as error:  # noqa: BLE001 - shown in the page
            return {"error": error_type_and_message(error)}

    def _start(self, request: JsonObject) -> JsonObject:
        import torch

        from glassgpt.model.generate import TokenSampler
        from glassgpt.sample.sample_options import SampleOptions, find_problems
        from glassgpt.sample.sampler import load_sampler

        options = SampleOptions(**request["options"])
        if problems := find_problems(options):
            raise UserError(problems)
        torch.set_num_threads(1)
        key = (request["run"], options.device)
        if key not in self._samplers:
            while len(self._samplers) >= _MAX_LOADED_MODELS:
                del self._samplers[next(iter(self._samplers))]
            self._samplers[key] = load_sampler(request["run"], options)
        sampler = self._samplers[key]
        prompt = sampler.encode(request["prompt"])
        token_sampler = TokenSampler(
            sampler.tokenizer.vocab_size, options.temperature, options.top_k, options.top_p, options.seed
        )
        context = torch.tensor([prompt[-sampler.model.config.block_size :]], device=sampler.execution.device)
        with torch.no_grad(), sampler.execution.autocast():
            logits = sampler.model.next_logits(context)[0]
        likeliest = token_sampler.likeliest(logits, LIKELIEST_TOKENS)
        self._pieces = sampler.sample(prompt, options)
        return {
            "checkpoint": sampler.checkpoint.iter,
            "prompt": sampler.visible_prompt(prompt, request["prompt"]),
            "next": [{"token": sampler.tokenizer.decode([token]), "p": p} for token, p in likeliest],
        }

    def _more(self, seconds: float) -> JsonObject:
        deadline, text = time.monotonic() + seconds, ""
        for pieces in self._pieces:
            text += "".join(pieces)
            if time.monotonic() >= deadline:
                return {"text": text, "done": False}
        return {"text": text, "done": True}


if __name__ == "__main__":
    # If Linux runs out of memory, it should kill this process rather than the run.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    serve(SampleServer().answer)
