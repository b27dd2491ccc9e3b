"""The process that samples for the page, and looks into checkpoints (see isolate.py). Its requests:

{"kind": "start", "run": "runs/quickstart@2000", "prompt": "Once", "options": {"temperature": 0.8, …}}
{"kind": "more", "seconds": 0.2}
{"kind": "look", "run": "runs/quickstart@2000", "device": "cpu"}
{"kind": "attention", "run": "runs/quickstart@2000", "device": "cpu", "layer": 0, "head": 3}

`start` answers with the likeliest next tokens; then each `more` with text, until `done`. `look` keeps what it
sees in the run's folder (runs/checkpoint_looks.py), and `attention` is one head's on the passage.
It runs on the CPU unless the options name another device, and with one thread, to leave the run its cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glassgpt.errors import UserError, error_type_and_message
from glassgpt.isolate import JsonObject, serve

if TYPE_CHECKING:
    from torch import Tensor

    from glassgpt.sample.sample_options import SampleOptions
    from glassgpt.sample.sampler import Sampler

LIKELIEST_TOKENS = 12
_MAX_LOADED_MODELS = 3  # the page's slider moves between checkpoints


def _look_options(device: str) -> SampleOptions:
    from glassgpt.sample.sample_options import SampleOptions

    return SampleOptions(device=device, dtype="float32")  # a token's loss should not depend on the card


class SampleServer:
    """Answers requests. Keeps the last models, and the sample that is being generated."""

    def __init__(self) -> None:
        self._samplers: dict[tuple[str, str, str], Sampler] = {}
        self._attention_of: tuple[tuple[str, str] | None, Tensor | None] = (None, None)  # run and device
        self._pieces: Iterator[list[str]] = iter(())

    def answer(self, request: JsonObject) -> JsonObject:
        try:
            match request["kind"]:
                case "start":
                    return self._start(request)
                case "look":
                    return self._look(request["run"], request["device"])
                case "attention":
                    return self._attention(request)
                case _:
                    return self._more(request["seconds"])
        except UserError as error:
            return {"error": "; ".join(error.problems)}
        except Exception as error:  # noqa: BLE001 - shown in the page
            return {"error": error_type_and_message(error)}

    def _start(self, request: JsonObject) -> JsonObject:
        import torch

        from glassgpt.sample.sample_options import SampleOptions, find_problems

        options = SampleOptions(**request["options"])
        if problems := find_problems(options):
            raise UserError(problems)
        sampler = self._sampler(request["run"], options)
        prompt = sampler.encode(request["prompt"])
        context = torch.tensor([prompt[-sampler.model.config.block_size :]], device=sampler.execution.device)
        with torch.no_grad(), sampler.execution.autocast():
            logits = sampler.model.next_logits(context)[0]
        likeliest = sampler.token_sampler(options).likeliest(logits, LIKELIEST_TOKENS)
        self._pieces = sampler.sample(prompt, options)
        return {
            "checkpoint": sampler.checkpoint.iter,
            "prompt": sampler.visible_prompt(prompt, request["prompt"]),
            "next": [{"token": sampler.tokenizer.decode([token]), "p": p} for token, p in likeliest],
        }

    def _sampler(self, run: str, options: SampleOptions) -> Sampler:
        import torch

        from glassgpt.sample.sampler import load_sampler

        torch.set_num_threads(1)
        key = (run, options.device, options.dtype)
        if key not in self._samplers:
            while len(self._samplers) >= _MAX_LOADED_MODELS:
                del self._samplers[next(iter(self._samplers))]
            self._samplers[key] = load_sampler(run, options)
        return self._samplers[key]

    def _look(self, run: str, device: str) -> JsonObject:
        from glassgpt.sample.look_document import look_and_keep

        look_and_keep(self._sampler(run, _look_options(device)))
        return {"done": True}

    def _attention(self, request: JsonObject) -> JsonObject:
        """Of one head on the passage, in thousandths: a row for each token, over those before it."""
        from glassgpt.sample.look import choose_passage, look_at_passage, training_dataset
        from glassgpt.sample.look_document import kept_passage_start

        sampler = self._sampler(request["run"], _look_options(request["device"]))
        key = (request["run"], request["device"])
        if self._attention_of[0] != key:
            start = kept_passage_start(sampler.checkpoint)
            passage = choose_passage(sampler, training_dataset(sampler), "", start)
            self._attention_of = (key, look_at_passage(sampler, passage).attention)
        weights = self._attention_of[1]
        assert weights is not None
        layer, head = request["layer"], request["head"]
        if not (layer < weights.shape[0] and head < weights.shape[1]):
            raise UserError(f"the model has {weights.shape[0]} layers and {weights.shape[1]} heads")
        rows = (1000 * weights[layer, head]).round().int().tolist()
        return {"rows": [row[: index + 1] for index, row in enumerate(rows)]}

    def _more(self, seconds: float) -> JsonObject:
        deadline, text = time.monotonic() + seconds, ""
        for pieces in self._pieces:
            text += "".join(pieces)
            if time.monotonic() >= deadline:
                return {"text": text, "done": False}
        return {"text": text, "done": True}


if __name__ == "__main__":
    serve(SampleServer().answer)
