"""Gradients averaged over the ranks, while the backward pass still computes the others.

    all_reduce = GradientAllReduce(list(model.parameters()), world_size)
    all_reduce.start_in_backward()     # before the last micro-batch of an update
    loss.backward()                    # all-reduces each bucket of gradients as soon as they are complete
    all_reduce.finish(loss)            # waits for the rest

DistributedDataParallel does the same, at the same speed (bench/LOG.md, "Several processes"). It is not used,
for these reasons:

- It rebuilds its buckets after the first update, so that a resumed run sums in another order than an
  uninterrupted one; unless it is told to search every update for unused parameters.
- Some updates must not overlap, and have to sum in the same buckets: those of a CUDA graph, whose backward
  pass calls no hooks, and the first one, which a rank repeats if it cannot compile or build kernels.
- It waits inside the backward pass. The exposed time would be counted as compute, and no rank could say that
  it waits for one that hangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from glassgpt.estimate.memory import ALL_REDUCE_BUCKET_BYTES


class GradientAllReduce:
    """All-reduces gradients in buckets, always of the same layout and in the same order: so sums are the same
    to the last bit, whether they overlap with a backward pass or not."""

    def __init__(
        self, parameters: Sequence[Parameter], world_size: int, fixed_addresses: bool = False
    ) -> None:
        """`fixed_addresses`: a CUDA graph needs the gradients where they are. Otherwise they become views
        into their bucket, which saves memory."""
        self._world_size, self._fixed_addresses = world_size, fixed_addresses
        # A backward pass computes gradients roughly in the reverse order of the parameters.
        self._buckets = list(make_buckets(parameters[::-1], ALL_REDUCE_BUCKET_BYTES))
        self._missing: list[int] = []  # gradients by bucket that this backward pass has yet to complete
        self._in_flight: list[tuple[Tensor, dist.Work]] = []  # the first buckets
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                hook = partial(self._on_gradient, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def start_in_backward(self) -> None:
        """The next backward pass completes the gradients."""
        self._missing = [len(bucket) for bucket in self._buckets]

    def _on_gradient(self, index: int, _: Tensor) -> None:
        """Autograd calls this, maybe in another thread, when it has added to a parameter's gradient."""
        if not self._missing:
            return
        self._missing[index] -= 1
        # In order of the buckets: all ranks have to start the same all-reduces one after the other.
        while len(self._in_flight) < len(self._buckets) and not self._missing[len(self._in_flight)]:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self._buckets[len(self._in_flight)]
        gradients = [_gradient(parameter).reshape(-1) for parameter in bucket]
        flat = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        self._in_flight.append((flat, dist.all_reduce(flat, async_op=True)))
        if not self._fixed_addresses:
            for parameter, part in self._parts(bucket, flat):
                parameter.grad = part

    def _parts(self, bucket: list[Parameter], flat: Tensor) -> Iterator[tuple[Parameter, Tensor]]:
        parts = torch.split(flat, [parameter.numel() for parameter in bucket])
        return ((parameter, part.view_as(parameter)) for parameter, part in zip(bucket, parts, strict=True))

    def finish(self, loss: Tensor) -> None:
        """Starts what no backward pass did, and waits. Gradients and loss are then means over the ranks."""
        self._missing = []
        while len(self._in_flight) < len(self._buckets):
            self._start_next()
        self._in_flight.append((loss, dist.all_reduce(loss, async_op=True)))
        for flat, work in self._in_flight:
            work.wait()
            flat /= self._world_size
        if self._fixed_addresses:
            for bucket, (flat, _) in zip(self._buckets, self._in_flight, strict=False):
                for parameter, part in self._parts(bucket, flat):
                    _gradient(parameter).copy_(part)
        self._in_flight = []


def _gradient(parameter: Parameter) -> Tensor:
    assert parameter.grad is not None, "every parameter of a GPT takes part in every loss"
    return parameter.grad


def make_buckets(tensors: Sequence[Parameter], max_bytes: int) -> Iterator[list[Parameter]]:
    """In order; each bucket has one dtype and at most `max_bytes`, unless it is a single tensor."""
    bucket: list[Parameter] = []
    bucket_bytes = 0
    for tensor in tensors:
        tensor_bytes = tensor.numel() * tensor.element_size()
        if bucket and (bucket_bytes + tensor_bytes > max_bytes or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, bucket_bytes = [], 0
        bucket.append(tensor)
        bucket_bytes += tensor_bytes
    if bucket:
        yield bucket
