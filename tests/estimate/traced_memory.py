"""The memory that one update of the real model allocates on a CUDA card, traced without a card; or on a CPU.

    peaks = trace_memory(TrainingWorkload(config=config, vocab_size=50304, batch_size=16))
    max(peaks.values())

The model's own code runs on fake tensors, which have shapes and no data. A dispatch mode counts every storage
while it lives, in blocks of 512 bytes, as PyTorch's allocator does. What differs on a card is patched in:
autocast runs LayerNorm in float32, flash attention saves its inputs, output and logsumexp, Triton kernels are
launched (here: nothing is), and chunks of logits have the card's size.

Peaks on an H200 (MEASURED in test_memory.py) agree within 1%, except for evaluations (test_traced_memory.py).
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # before Triton's stand-in: it asks whether Triton is there
import torch._inductor.utils
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.model import float8, gpt, loss_chunks
from glassgpt.training.optimizers import make_optimizers

_BLOCK_BYTES = 512
_STREAMING_MULTIPROCESSORS = 132  # of an H200


class _Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are alive, and the most since `peak` was reset."""

    def __init__(self, on_card: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_card = on_card
        self.now = self.peak = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        # On a card it first multiplies gradient and output.
        has_product = self.on_card and func is torch.ops.aten._softmax_backward_data.default
        self.peak = max(self.peak, self.now + (result.untyped_storage().nbytes() if has_product else 0))
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._alive:
            size = -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES
            self._alive[storage._cdata] = size
            self.now += size
            weakref.finalize(storage, self._remove, storage._cdata)

    def _remove(self, key: int) -> None:
        self.now -= self._alive.pop(key)


class _FusedRMSNorm(torch.autograd.Function):
    """A card's, which autocast leaves in the dtype of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, torch.empty(*x.shape[:-1], 1))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


class _FlashAttention(torch.autograd.Function):
    """What flash attention allocates: heads padded to a multiple of 8, float32 sums in its backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, H, T, ctx.head_dim = q.shape
        padding = -ctx.head_dim % 8
        if padding:
            q, k, v = (F.pad(tensor, (0, padding)) for tensor in (q, k, v))
        out = q.new_empty(B, T, H, ctx.head_dim + padding).transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, torch.empty(B, H, T))
        return out[..., : ctx.head_dim]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q = ctx.saved_tensors[0]
        B, H, T, D = q.shape
        workspace = torch.empty(B, T, H, D), torch.empty(B, H, T)
        gradients = [q.new_empty(B, T, H, D).transpose(1, 2) for _ in range(3)]
        del workspace
        return tuple(gradient[..., : ctx.head_dim] for gradient in gradients)


class _Anything:
    """Stands for every name of Triton. A launched kernel does nothing."""

    def __getattr__(self, name: str) -> _Anything:
        return _Anything()

    def __call__(self, *args: Any, **kwargs: Any) -> _Anything:
        return _Anything()

    def __getitem__(self, grid: Any) -> _Anything:
        return _Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _triton_modules() -> dict[str, types.ModuleType]:
    """`import triton` finds these."""
    names = ("triton", "triton.language", "triton.language.extra")
    modules = {name: types.ModuleType(name) for name in names}
    for module in modules.values():
        module.__dict__["__getattr__"] = lambda name: _Anything()
    modules["triton"].__dict__.update(
        language=modules["triton.language"],
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
        cdiv=lambda a, b: -(-a // b),
        jit=lambda function=None, **options: _Anything(),
    )
    return modules


@contextlib.contextmanager
def _as_on_a_card() -> Iterator[None]:
    layer_norm, attend, mm = F.layer_norm, gpt.attend, torch.mm
    is_enabled, autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    rows, eval_rows = loss_chunks.rows_per_chunk, loss_chunks.eval_rows_per_chunk

    def layer_norm_in_float32(x: Tensor, *args: Any) -> Tensor:
        return layer_norm(x.float() if is_enabled("cpu") else x, *args)

    def rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        return _FusedRMSNorm.apply(x, weight)  # type: ignore[no-untyped-call,no-any-return]

    def flash(q: Tensor, k: Tensor, v: Tensor, dropout: float, backend: str) -> Tensor:
        if backend == "manual":
            return attend(q, k, v, dropout, backend)
        return _FlashAttention.apply(q, k, v)  # type: ignore[no-untyped-call,no-any-return]

    def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    def scaled_mm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype, **scales: Any) -> Tensor:
        return torch.empty(a.shape[0], b.shape[1], dtype=out_dtype)

    def matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        return mm(a, b) if out_dtype is None else torch.empty(len(a), b.shape[1], dtype=out_dtype)

    properties = types.SimpleNamespace(multi_processor_count=_STREAMING_MULTIPROCESSORS)
    patches: list[tuple[Any, str, Any]] = [
        (F, "layer_norm", layer_norm_in_float32),
        (F, "rms_norm", rms_norm),
        (F, "dropout", dropout),
        (gpt, "attend", flash),
        (FakeTensor, "is_cuda", property(lambda tensor: True)),
        (torch, "is_autocast_enabled", lambda device="cpu": is_enabled("cpu")),
        (torch, "get_autocast_dtype", lambda device="cpu": autocast_dtype("cpu")),
        (torch, "addmm", lambda total, a, b, out_dtype, out: out),  # into the total, as only a card can
        (torch, "mm", matmul),
        (torch, "_scaled_mm", scaled_mm),
        (torch.cuda, "get_device_properties", lambda device: properties),
        (loss_chunks, "rows_per_chunk", lambda tokens, V, device, kernel: rows(tokens, V, "cuda", kernel)),
        (loss_chunks, "eval_rows_per_chunk", lambda tokens, V, device: eval_rows(tokens, V, "cuda")),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, _triton_modules()))
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        sys.modules.pop("glassgpt.model.kernels", None)
        yield
    sys.modules.pop("glassgpt.model.kernels", None)  # it was imported with the stand-in for Triton


def trace_memory(work: TrainingWorkload) -> dict[str, int]:
    """The most bytes allocated in the second update: `micro_steps`, `step`, and in an evaluation after it."""
    config, peaks = work.config, {}
    float8._constant.cache_clear()
    on_card = work.device_type == "cuda"
    device = _as_on_a_card() if on_card else contextlib.nullcontext()
    with FakeTensorMode(allow_non_fake_inputs=True), _Tracker(on_card) as tracker, device:
        model = gpt.GPT(gpt.make_gpt_config(config, work.vocab_size))
        model.activation_checkpointing = config.activation_checkpointing
        model.backend.kernels = work.kernels
        model.backend.float8 = config.fp8
        model.backend.attention = work.attention
        optimizers = make_optimizers(model, config, getattr(torch, work.dtype))
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=work.dtype != "float32")
        tokens = torch.zeros(work.batch_size, config.block_size, dtype=torch.long)
        for micro_steps in (1, min(2, work.micro_steps)):  # the first update makes the optimizers' state
            model.train()
            tracker.peak = 0
            for _ in range(micro_steps):  # more need no more
                with autocast:
                    loss = model(tokens, tokens)
                loss.backward()
                del loss
            peaks["micro_steps"], tracker.peak = tracker.peak, 0
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            torch._foreach_mul_(gradients, torch.nn.utils.get_total_norm(gradients))
            del gradients
            for optimizer in optimizers:
                optimizer.found_inf = torch.zeros(())
                optimizer.step()
            model.zero_grad(set_to_none=not (work.graph and work.keeps_gradients))
            peaks["step"], tracker.peak = tracker.peak, 0
        model.eval()
        tokens = torch.zeros(work.eval_batch_tokens // config.block_size, config.block_size, dtype=torch.long)
        if len(tokens):
            with torch.no_grad(), autocast:
                model(tokens, tokens, "none")
        peaks["evaluation"] = tracker.peak
    float8._constant.cache_clear()  # holds fake tensors
    return peaks
