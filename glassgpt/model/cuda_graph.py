"""Work for a CUDA card that is told to it once and then repeated on a word (CUDA graphs).

A small model's update is hundreds of kernels of some microseconds each. Python takes longer to ask for them
than the card takes to do them. Recorded, the whole is one request.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class CudaGraphRunner:
    """Calls `work` with tensors: `warm_up` times as usual, for libraries to set themselves up and optimizers
    to make their state; from then on by replaying a recorded call.

    `work` must always do the same, to tensors that stay where they are. What it returns is overwritten by the
    next call.
    """

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], warm_up: int = 3) -> None:
        self._work, self._warm_up = work, warm_up
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: tuple[Tensor, ...] = ()
        self.capture_error: Exception | None = (
            None  # why there is no recording; the work is then done as usual
        )
        # What comes before a recording must not be on the default stream either.
        self._stream = torch.cuda.Stream()

    @property
    def will_capture_next(self) -> bool:
        """Whether the next call would record."""
        return self._calls >= self._warm_up and self._graph is None and self.capture_error is None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.will_capture_next:
            self.capture(*inputs)
        if self._graph is None:
            self._calls += 1
            return self._on_side_stream(inputs)
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._outputs

    def capture(self, *inputs: Tensor) -> None:
        """Notes the kernels down; none of them is run. It takes as much memory as a call, for good."""
        self._inputs = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        random = torch.cuda.get_rng_state()
        try:
            # Other threads, which save checkpoints, may use the card meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._outputs = self._work(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.capture_error = error
            _reset_cuda_generator(random)
        else:
            self._graph = graph

    def _on_side_stream(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            outputs = self._work(*inputs)
        torch.cuda.current_stream().wait_stream(self._stream)
        return outputs


def _reset_cuda_generator(state: Tensor) -> None:
    """A recording that failed leaves the card's random generator believing that it is still recorded."""
    fresh = torch.Generator(device="cuda")
    fresh.set_state(state)
    now = torch.cuda.default_generators[torch.cuda.current_device()]
    now.graphsafe_set_state(fresh.graphsafe_get_state())
