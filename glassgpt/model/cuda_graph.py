"""CUDA graphs: a function's kernels are captured once and replayed with a single launch.

    step = CudaGraphRunner(train_step)      # the first calls run as usual, then one is captured
    (loss,) = step(tokens, targets)

An update of a small model is hundreds of kernels of a few microseconds each. Python takes longer to launch
them than the GPU takes to run them. Replaying a graph removes that kernel-launch overhead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class CudaGraphRunner:
    """Calls `function`: `warm_up` times as usual, so that libraries and optimizers can allocate their state,
    and from then on by replaying a captured CUDA graph.

    `function` must launch the same kernels on the same memory in every call. Its outputs are overwritten by
    the next call.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], warm_up: int = 3) -> None:
        self._function, self._warm_up = function, warm_up
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static_inputs: list[Tensor] = []
        self._static_outputs: tuple[Tensor, ...] = ()
        self.capture_error: Exception | None = None  # if capture failed; every call then runs without a graph
        self._side_stream = torch.cuda.Stream()

    @property
    def will_capture_next(self) -> bool:
        """Whether the next call would capture the graph."""
        return self._calls >= self._warm_up and self._graph is None and self.capture_error is None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.will_capture_next:
            self.capture(*inputs)
        if self._graph is not None:
            for static_input, tensor in zip(self._static_inputs, inputs, strict=True):
                static_input.copy_(tensor)
            self._graph.replay()
            return self._static_outputs
        self._calls += 1
        # Warm-up must not run on the default stream: PyTorch requires a side stream before a capture.
        self._side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side_stream):
            outputs = self._function(*inputs)
        torch.cuda.current_stream().wait_stream(self._side_stream)
        return outputs

    def capture(self, *inputs: Tensor) -> None:
        """Captures the kernels without running them. The graph keeps the memory of one call for good."""
        free_cublas_workspaces()  # of the warm-up's stream
        self._static_inputs = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        rng_state = torch.cuda.get_rng_state()
        try:
            # "thread_local": the threads that save checkpoints may use the GPU during the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._static_outputs = self._function(*self._static_inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.capture_error = error
            # A failed capture leaves the default generator in capture mode. Give it a fresh state.
            generator = torch.Generator(device="cuda")
            generator.set_state(rng_state)
            default = torch.cuda.default_generators[torch.cuda.current_device()]
            default.graphsafe_set_state(generator.graphsafe_get_state())
        else:
            self._graph = graph
            free_cublas_workspaces()  # of the capture, in the graph's own memory pool


def free_cublas_workspaces() -> None:
    """cuBLAS keeps a workspace for every thread and stream that it was called on. The next call makes one."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
