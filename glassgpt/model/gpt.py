"""The GPT, in two architectures that share everything they can.

    model = GPT(GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768))
    loss = model(tokens, targets)

`arch="gpt2"` has GPT-2's layers and parameter names (with nanoGPT's weight layout: `Linear`, not `Conv1D`).
`arch="modern"` has rotary position embeddings (RoPE) instead of learned ones, RMSNorm instead of LayerNorm,
relu squared instead of GELU, QK-norm, and no biases.

Shapes: B sequences, T tokens each, C channels, H heads of D channels, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from glassgpt.config import TrainConfig, effective_activation
from glassgpt.model import loss, ops
from glassgpt.model.kv_cache import KVCache, LayerKVCache

# --attention: `sdpa` leaves the choice to PyTorch, `manual` is the formula.
ATTENTION_BACKENDS = {
    "sdpa": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "manual": None,
}
ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class GPTConfig:
    """What the model computes, and the shapes of its parameters. Stored with every checkpoint."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.0
    bias: bool = False
    arch: str = "gpt2"
    activation: str = "gelu"
    tie_embeddings: bool = True


def make_gpt_config(config: TrainConfig, vocab_size: int) -> GPTConfig:
    """The model that a run's settings describe; `vocab_size` with padding."""
    return GPTConfig(
        vocab_size=vocab_size,
        block_size=config.block_size,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        dropout=config.dropout,
        bias=config.bias,
        arch=config.arch,
        activation=effective_activation(config),
        tie_embeddings=config.tie_embeddings,
    )


@dataclass
class Backend:
    """How the model is computed on a machine, which changes speed and rounding. All its modules share one."""

    attention: str = "sdpa"  # one of ATTENTION_BACKENDS
    kernels: bool = False  # fused Triton kernels: kernels.py
    float8: bool = False  # matmuls of training: float8.py, which needs these kernels


class Linear(nn.Linear):
    """nn.Linear without PyTorch's own initialisation, which takes seconds and which GPT overwrites."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """nn.Embedding without PyTorch's own initialisation."""

    def reset_parameters(self) -> None:
        pass


class ResidualNorm(nn.Module):
    """LayerNorm with an optional bias; for `modern`, RMSNorm with a gain.

    Also does the residual addition before it: a fused kernel needs one pass over memory for both.
    """

    def __init__(self, config: GPTConfig, backend: Backend) -> None:
        super().__init__()
        self.rms, self.backend = config.arch == "modern", backend
        self.weight = nn.Parameter(torch.empty(config.n_embd))
        self.bias = nn.Parameter(torch.empty(config.n_embd)) if config.bias and not self.rms else None

    def forward(self, residual: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """residual + branch, and the norm of that sum. Without a branch: residual, and its norm."""
        return ops.add_norm(residual, branch, self.weight, self.bias, self.rms, self.backend.kernels)


class CausalSelfAttention(nn.Module):
    """Queries, keys and values come from one matmul, as in GPT-2."""

    def __init__(self, config: GPTConfig, backend: Backend) -> None:
        super().__init__()
        bias = config.bias and config.arch == "gpt2"
        self.n_head, self.dropout, self.backend = config.n_head, config.dropout, backend
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=bias)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor] | None, cache: LayerKVCache | None = None
    ) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.project(x, rope)
        dropout = self.dropout if self.training else 0.0
        if cache is not None:
            y = cache.attend(q, k, v)
        else:
            y = attend(q, k, v, dropout, self.backend.attention)
        y = ops.linear(self.c_proj, y.transpose(1, 2).reshape(B, T, C), self.backend.float8)
        return F.dropout(y, dropout, self.training)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, T, D); with `rope`, q and k are rotated and normed."""
        B, T, C = x.shape
        H, D = self.n_head, C // self.n_head
        qkv: tuple[Tensor, ...]
        if rope is not None:
            stacked = ops.linear(self.c_attn, x, self.backend.float8).view(B, T, 3, H, D)
            qkv = ops.rotary_qk_norm(stacked, rope, self.backend.kernels)
        else:
            qkv = ops.linear_chunked(self.c_attn, x, 3, self.backend.float8)
        q, k, v = (tensor.view(B, T, H, D).transpose(1, 2) for tensor in qkv)
        return q, k, v


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """How much each token attends to itself and to each one before it: (B, H, T, T), rows sum to 1.

    In float32 under autocast, as in PyTorch's fused kernels."""
    T, dtype = q.shape[-2], torch.promote_types(q.dtype, torch.float32)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    with torch.autocast(q.device.type, enabled=False):
        scores = q.to(dtype) / math.sqrt(q.shape[-1]) @ k.to(dtype).transpose(-2, -1)
        return F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float, backend: str) -> Tensor:
    """Causal attention; `backend` is one of ATTENTION_BACKENDS."""
    if backend == "manual":
        weights = attention_weights(q, k)
        with torch.autocast(q.device.type, enabled=False):
            return F.dropout(weights, dropout).to(v.dtype) @ v
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        # PyTorch's CPU kernel is much faster in float32 than in bfloat16, in the backward pass.
        with torch.autocast("cpu", enabled=False):
            return attend(q.float(), k.float(), v.float(), dropout, backend).to(q.dtype)
    sdpa_backend = ATTENTION_BACKENDS[backend]
    with nullcontext() if sdpa_backend is None else sdpa_kernel(sdpa_backend):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


class MLP(nn.Module):
    def __init__(self, config: GPTConfig, backend: Backend) -> None:
        super().__init__()
        bias = config.bias and config.arch == "gpt2"
        self.dropout, self.activation, self.backend = config.dropout, config.activation, backend
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, bias=bias)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        backend = self.backend
        x = ops.mlp(self.c_fc, self.c_proj, x, self.activation, backend.kernels, backend.float8)
        return F.dropout(x, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, config: GPTConfig, backend: Backend) -> None:
        super().__init__()
        self.ln_1 = ResidualNorm(config, backend)
        self.attn = CausalSelfAttention(config, backend)
        self.ln_2 = ResidualNorm(config, backend)
        self.mlp = MLP(config, backend)

    def forward(
        self,
        residual: Tensor,
        branch: Tensor | None,
        rope: tuple[Tensor, Tensor] | None,
        cache: LayerKVCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The textbook's pre-norm block, with each addition done by the norm that follows it:

            x = x + attn(ln_1(x))
            x = x + mlp(ln_2(x))

        So a block takes and returns x in two parts: the residual stream, and the output of the last branch
        (the MLP of the block before; None for the first block), which is still to be added to it.
        """
        residual, normed = self.ln_1(residual, branch)
        residual, normed = self.ln_2(residual, self.attn(normed, rope, cache))
        return residual, self.mlp(normed)


class Transformer(nn.Module):
    """Embeddings, blocks and the last norm. The attribute names are GPT-2's parameter names."""

    def __init__(self, config: GPTConfig, backend: Backend) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.block_size, config.n_embd) if config.arch == "gpt2" else None
        self.h = nn.ModuleList(Block(config, backend) for _ in range(config.n_layer))
        self.ln_f = ResidualNorm(config, backend)


def _rope_tables(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """RoPE: cosines and sines (length, head_dim / 2) of the angle of each position and channel pair."""
    frequencies = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


class GPT(nn.Module):
    """Tokens (B, T) in, logits (B, T, V) out; with targets, the loss instead."""

    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(
        self, config: GPTConfig, empty: bool = False, generator: torch.Generator | None = None
    ) -> None:
        """`empty`: do not initialise the weights, because they will be loaded. `generator`: what they are
        drawn from, if not PyTorch's default."""
        super().__init__()
        self.config, self.backend = config, Backend()
        self.activation_checkpointing = False
        self._compiled_forward_hidden: Callable[[Tensor], Tensor] | None = None
        self.transformer = Transformer(config, self.backend)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.transformer.wte.weight
        if config.arch == "modern":
            cos, sin = _rope_tables(config.block_size, config.n_embd // config.n_head)
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)
        if not empty:
            self._init_weights(partial(nn.init.normal_, generator=generator))

    def _init_weights(self, normal_: Callable[..., Tensor]) -> None:
        """GPT-2's: N(0, 0.02), smaller for the projections into the residual stream.

        `modern`: those projections are 0, and so is a head that is not tied to the embedding.
        """
        config = self.config
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                normal_(parameter, std=0.02 / math.sqrt(2 * config.n_layer))
            elif parameter.dim() == 2:
                normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.ones_(parameter)  # a norm's gain
        if config.arch != "modern":
            return
        for name, parameter in self.transformer.h.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                normal_(parameter, std=0.7 / math.sqrt(config.n_embd))
        if not config.tie_embeddings:
            normal_(self.transformer.wte.weight, std=0.5)
            nn.init.zeros_(self.lm_head.weight)

    def set_compiled(self, on: bool) -> None:
        """Whether to run torch.compile on everything before the loss.

        The loss stays eager: compiled, it might hold all chunks of the logits at once.
        """
        # dynamic=False: evaluation has other shapes than training, and each gets its own specialised code.
        self._compiled_forward_hidden = torch.compile(self.forward_hidden, dynamic=False) if on else None

    @property
    def is_compiled(self) -> bool:
        return self._compiled_forward_hidden is not None

    def forward_hidden(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """The last block's output (B, T, C) after the last norm: the input of the head.

        With a cache, `tokens` follow the cached ones, and are added to the cache.
        """
        T = tokens.shape[1]
        positions = slice(T) if cache is None else cache.next_positions(T)
        residual: Tensor = self.transformer.wte(tokens)  # the residual stream (B, T, C)
        rope = None
        if self.transformer.wpe is not None:
            residual = residual + self.transformer.wpe.weight[positions]
        else:
            residual = F.rms_norm(residual, residual.shape[-1:], eps=ops.NORM_EPSILON["rms"])
            cos, sin = (
                (self.rotary_cos, self.rotary_sin) if cache is None or cache.rope is None else cache.rope
            )
            rope = (cos[positions], sin[positions])
        residual = F.dropout(residual, self.config.dropout, self.training)
        if self.training and residual.is_cuda and torch.is_autocast_enabled("cuda"):
            # A residual stream in 16 bits takes half the memory traffic. Evaluation keeps it in float32.
            residual = residual.to(torch.get_autocast_dtype("cuda"))
        branch: Tensor | None = None  # added to the residual stream by the next norm: see Block
        for layer, block in enumerate(self.transformer.h):
            if self.activation_checkpointing and self.training:
                residual, branch = checkpoint(
                    block,
                    residual,
                    branch,
                    rope,
                    use_reentrant=False,
                    preserve_rng_state=self.config.dropout > 0,
                )
            else:
                layer_cache = None if cache is None else cache.layers[layer]
                residual, branch = block(residual, branch, rope, layer_cache)
        _, normed = self.transformer.ln_f(residual, branch)
        return normed  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, targets: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """Logits (B, T, V); with targets the cross-entropy: the mean, or per token (B, T) if "none"."""
        hidden = (self._compiled_forward_hidden or self.forward_hidden)(tokens)
        if targets is None:
            return self.lm_head(hidden)  # type: ignore[no-any-return]
        flat, flat_targets = hidden.view(-1, hidden.shape[-1]), targets.reshape(-1)
        if reduction == "mean":
            kernels, float8 = self.backend.kernels, self.backend.float8
            return loss.cross_entropy(flat, self.lm_head.weight, flat_targets, kernels, float8)
        return loss.token_losses(flat, self.lm_head.weight, flat_targets).view(targets.shape)

    def new_cache(self, tokens: int) -> KVCache:
        """A KV cache for a text of so many tokens, which keeps the last `block_size`."""
        rope, block_size = None, self.config.block_size
        if self.config.arch == "modern":
            rope = (self.rotary_cos, self.rotary_sin)
            if tokens > block_size:
                cos, sin = _rope_tables(tokens, self.config.n_embd // self.config.n_head)
                rope = (cos.to(rope[0]), sin.to(rope[1]))
        return KVCache(self.config.n_layer, min(tokens, block_size), rope)

    def next_logits(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits (B, V) of the next token; the head is computed for the last position only."""
        return self.lm_head(self.forward_hidden(tokens, cache)[:, -1])  # type: ignore[no-any-return]

    def parameter_count(self, positions: bool = True) -> int:
        """Each parameter once (the tied matrix too). nanoGPT counts without positions."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if not positions and self.transformer.wpe is not None:
            total -= self.transformer.wpe.weight.numel()
        return total
