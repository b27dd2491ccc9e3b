"""Reading a text that grows: what follows it is asked again after every token.

The arithmetic of one token is little. Its time goes into fetching every weight once, and on a GPU into
starting hundreds of small kernels. So what was computed for earlier tokens is kept, weights are made ready
beforehand, and a CUDA card is told all kernels of a step at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.gpt import GPT
from glassgpt.model.kv_cache import StaticKVCache


def prepare_for_decoding(model: GPT) -> GPT:
    """The same model with its matrices made ready for reading by steps; it shares all else."""
    kind = model.lm_head.weight.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        # What autocast would do again at every step: it forgets what it cast when its context ends.
        return _map_linear_weights(model, lambda matrix: matrix.to(dtype))
    return _map_linear_weights(model, _by_columns) if kind == "cpu" else model


def _by_columns(matrix: Tensor) -> Tensor:
    """One or two rows are multiplied faster with a wide matrix that lies in memory column after column."""
    is_wide = matrix.dim() == 2 and matrix.shape[0] > matrix.shape[1]
    return matrix.t().contiguous().t() if is_wide else matrix


def _map_linear_weights(model: GPT, change: Callable[[Tensor], Tensor]) -> GPT:
    kept: dict[int, object] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    copied = copy.deepcopy(model, kept)
    for linear in copied.modules():
        if isinstance(linear, nn.Linear):
            for name, parameter in list(linear.named_parameters()):
                setattr(linear, name, nn.Parameter(change(parameter), requires_grad=False))
    return copied


class GraphedFunction:
    """A function of tokens, called again and again, in which Python decides nothing. A CUDA card records it
    once for each shape; elsewhere it is just called.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        self._shape: torch.Size | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """The result is good until the next call."""
        if not tokens.is_cuda:
            return self._function(tokens)
        if self._shape != tokens.shape:
            self._shape, self._recording = tokens.shape, CudaGraphRunner(self._call, warm_up=1)
        return self._recording(tokens)[0]

    def _call(self, tokens: Tensor) -> tuple[Tensor]:
        return (self._function(tokens),)


class WindowDecoder:
    """Reads the end of the texts, as much as the context holds, each time anew."""

    def __init__(self, model: GPT, graph: bool = False) -> None:
        self._context = model.config.block_size
        self._read = GraphedFunction(model.next_logits) if graph else model.next_logits

    def next_logits(self, texts: Tensor) -> Tensor:
        """Logits (B, V) of what follows texts (B, T); good until the next call."""
        return self._read(texts[:, -self._context :])


class CachedDecoder:
    """Reads a prompt of one row, and then the last token of each of `rows` texts that begin with it."""

    def __init__(self, model: GPT, room: int, rows: int, graph: bool = False) -> None:
        self._model, self._cache, self._rows, self._graph = model, model.new_cache(room), rows, graph
        self._step: Callable[[Tensor], Tensor] | None = None

    def next_logits(self, texts: Tensor) -> Tensor:
        """Logits (B, V) of what follows texts (B, T); good until the next call."""
        if self._step is not None:
            return self._step(texts[:, -1:])
        logits = self._model.next_logits(texts, self._cache)
        self._cache.repeat(self._rows)
        if self._graph:
            self._step = GraphedFunction(partial(self._model.next_logits, cache=StaticKVCache(self._cache)))
        else:
            self._step = partial(self._model.next_logits, cache=self._cache)
        return logits
