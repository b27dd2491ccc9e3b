"""Builds the Triton kernels of a model in threads, all at once, while the run is still being set up.

    build = KernelBuild(model_config, device, torch.bfloat16, batch_tokens, fp8=False)    # returns at once
    build.wait()                                                                          # before an update

Triton builds a kernel at its first launch, one after the other, which takes seconds. Here a small model of
the same width runs forward and backward once. Its launches are only recorded: they say which kernels there
are, and for which types and sizes. Each is then built in a thread, into Triton's caches. Most of the work is
the compiler's and ptxas's, which do not hold Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from glassgpt.model import loss, loss_chunks
from glassgpt.model.gpt import GPT, GPTConfig

_RECORDED_TOKENS = 64  # of the small model; Triton specialises on multiples of 16
_MAX_THREADS = 16


class KernelBuild:
    """Kernels that are being built."""

    def __init__(
        self, config: GPTConfig, device: torch.device, dtype: torch.dtype, batch_tokens: int, fp8: bool
    ) -> None:
        """`batch_tokens`: of a micro-batch, whose loss is computed at once or in chunks."""
        self._pool = ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "kernels")
        self._recording = self._pool.submit(self._record, config, device, dtype, batch_tokens, fp8)

    def _record(
        self, config: GPTConfig, device: torch.device, dtype: torch.dtype, batch_tokens: int, fp8: bool
    ) -> list[Future[object]]:
        from glassgpt.model import kernels

        launches: dict[str, Callable[[], object]] = {}
        with _recorded_launches(launches, kernels):
            _run_small_model(config, device, dtype, batch_tokens, fp8)
        return [self._pool.submit(_build_on, device, build) for build in launches.values()]

    def wait_until_recorded(self) -> None:
        """Until then no kernel can be launched, and the small model takes memory on the card."""
        self._recording.exception()

    def wait(self) -> None:
        """What failed fails again at the kernel's first launch, where the run continues without kernels."""
        if self._recording.exception() is None:
            for build in self._recording.result():
                build.exception()
        self._pool.shutdown()


def build_launched_kernels(run: Callable[[], object], kernels: ModuleType, device: torch.device) -> None:
    """Builds, all at once, the kernels of a module that `run` launches; this time it launches none."""
    launches: dict[str, Callable[[], object]] = {}
    with _recorded_launches(launches, kernels):
        run()
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "kernels") as pool:
        for build in [pool.submit(_build_on, device, launch) for launch in launches.values()]:
            build.exception()  # fails again when it is launched


def _build_on(device: torch.device, build: Callable[[], object]) -> None:
    with torch.cuda.device(device):
        build()


@contextmanager
def _recorded_launches(launches: dict[str, Callable[[], object]], kernels: ModuleType) -> Iterator[None]:
    """Kernels of the module called meanwhile are not launched. Collects what builds each."""
    from triton.runtime.jit import JITFunction

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __getitem__(self, grid: object) -> Callable[..., None]:
            def record(*arguments: Any, **options: Any) -> None:
                types = [arg.dtype if isinstance(arg, torch.Tensor) else arg for arg in arguments]
                build = partial(self._kernel.warmup, *types, grid=(1,), **options)
                launches.setdefault(f"{self._kernel.__name__} {types} {options}", build)

            return record

    originals = {name: value for name, value in vars(kernels).items() if isinstance(value, JITFunction)}
    vars(kernels).update({name: Recorder(kernel) for name, kernel in originals.items()})
    try:
        yield
    finally:
        vars(kernels).update(originals)


def _run_small_model(
    config: GPTConfig, device: torch.device, dtype: torch.dtype, batch_tokens: int, fp8: bool
) -> None:
    """An update without its optimizer step, and an evaluation; the numbers are arbitrary."""
    length = min(_RECORDED_TOKENS, config.block_size) if config.block_size % 16 == 0 else config.block_size
    small = GPT(replace(config, n_layer=2, dropout=0.0, block_size=length), empty=True).to(device)
    small.backend.kernels = True
    small.backend.float8 = fp8
    ids = torch.zeros(-(-_RECORDED_TOKENS // length), length, dtype=torch.long, device=device)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    with torch.cuda.device(device), autocast:
        small.train()
        hidden = small.forward_hidden(ids).view(-1, config.n_embd)
        if loss_chunks.fits_unchunked(batch_tokens, config.vocab_size):  # by PyTorch's operations
            total = hidden.sum()
        else:
            total = loss.chunked_cross_entropy(hidden, small.lm_head.weight, ids.flatten(), True, fp8)
        total.backward()  # type: ignore[no-untyped-call]
        small.eval()
        with torch.no_grad():
            small.forward_hidden(ids)
