"""One GPT, in two architectures that share everything they can.

`arch="gpt2"` has GPT-2's layers and parameter names (with nanoGPT's weight layout: `Linear`, not `Conv1D`).
`arch="modern"` swaps learned positions for rotary ones, LayerNorm for RMSNorm, GELU for relu squared, adds
QK-norm, and has no biases.

Shapes: B sequences, T tokens each, C channels, H heads of D channels, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model.cache import Cache, LayerCache


@dataclass(frozen=True)
class GPTConfig:
    """What decides the model's function and its parameters' shapes. Stored with every checkpoint."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.0
    bias: bool = False
    arch: str = "gpt2"
    activation: str = "gelu"


# Vocabularies above this are rounded up to a multiple of 64, which matmuls like; below it nobody notices.
_PAD_VOCABULARY_ABOVE = 4096


def padded_vocabulary(vocab_size: int) -> int:
    return -(-vocab_size // 64) * 64 if vocab_size > _PAD_VOCABULARY_ABOVE else vocab_size


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu_new(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "gelu_new": _gelu_new, "relu2": _relu2}


class LayerNorm(nn.Module):
    """LayerNorm whose bias can be left out; for `modern`, RMSNorm with a gain."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.rms = config.arch == "modern"
        self.weight = nn.Parameter(torch.ones(config.n_embd))
        self.bias = nn.Parameter(torch.zeros(config.n_embd)) if config.bias and not self.rms else None

    def forward(self, x: Tensor) -> Tensor:
        if self.rms:
            return F.rms_norm(x, self.weight.shape, self.weight)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    """Causal self-attention. Queries, keys and values come from one matmul, as in GPT-2."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        bias = config.bias and config.arch == "gpt2"
        self.n_head, self.dropout = config.n_head, config.dropout
        self.qk_norm = config.arch == "modern"
        self.fused = True  # False: the textbook formula, see GPT.set_attention
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=bias)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor] | None, cache: LayerCache | None = None
    ) -> Tensor:
        B, T, C = x.shape
        qkv = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        if rotation is not None:
            q, k = _rotate(q, rotation), _rotate(k, rotation)
        if self.qk_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        if cache is not None:
            k, v = cache.extend(k, v)
        dropout = self.dropout if self.training else 0.0
        attention = _fused_attention if self.fused else _textbook_attention
        y = attention(q, k, v, dropout)
        return F.dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)), dropout, self.training)


def _fused_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    T, S = q.shape[-2], k.shape[-2]
    if T == S:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    # With a cache. `is_causal` would take the first query for the first of all tokens.
    past = None if T == 1 else ~_future(q, k)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=past, dropout_p=dropout)


def _textbook_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    future = _future(q, k)
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(future, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), dropout) @ v


def _future(q: Tensor, k: Tensor) -> Tensor:
    """True where a key comes after a query; the queries are those of the last tokens."""
    T, S = q.shape[-2], k.shape[-2]
    return torch.ones(T, S, dtype=torch.bool, device=q.device).triu(1 + S - T)


def _rotary(length: int, head_dim: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angle by which pair i of a head at position t is turned."""
    speeds = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), speeds)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.to(x.dtype) for table in rotation)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        bias = config.bias and config.arch == "gpt2"
        self.dropout = config.dropout
        self.activation = ACTIVATIONS[config.activation]
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.c_proj(self.activation(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor] | None, cache: LayerCache | None = None
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), rotation, cache)
        x = x + self.mlp(self.ln_2(x))
        return x


class Transformer(nn.Module):
    """Embeddings, blocks and the last norm; its attribute names are GPT-2's parameter names."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd) if config.arch == "gpt2" else None
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(config)


class GPT(nn.Module):
    """Tokens (B, T) in, logits (B, T, V) out; with targets, the loss instead."""

    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = False
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight  # tied: one matrix reads and writes tokens
        if config.arch == "modern":
            cos, sin = _rotary(config.block_size, config.n_embd // config.n_head)
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)
        self._init_weights()

    def _init_weights(self) -> None:
        """GPT-2's: N(0, 0.02), and smaller where a layer adds to the residual stream."""
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def set_attention(self, fused: bool) -> None:
        for module in self.modules():
            if isinstance(module, Attention):
                module.fused = fused

    def hidden(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """The last layer's output (B, T, C), normed: what the head reads.

        With a cache, `tokens` are those after the ones it has read; it takes them in.
        """
        start = 0 if cache is None else cache.length
        end = start + tokens.shape[1]
        x: Tensor = self.transformer.wte(tokens)
        rotation = None
        if self.transformer.wpe is not None:
            x = x + self.transformer.wpe.weight[start:end]
        else:
            x = F.rms_norm(x, x.shape[-1:])
            rotation = (self.rotary_cos[start:end], self.rotary_sin[start:end])
        x = F.dropout(x, self.config.dropout, self.training)
        for number, block in enumerate(self.transformer.h):
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, rotation, use_reentrant=False)
            else:
                x = block(x, rotation, None if cache is None else cache.layers[number])
        return self.transformer.ln_f(x)  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, targets: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """Logits; or with targets the cross-entropy, averaged or (`reduction="none"`) per token (B, T)."""
        logits: Tensor = self.lm_head(self.hidden(tokens))
        if targets is None:
            return logits
        flat = logits.view(-1, logits.shape[-1]).float()
        loss = F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED_TARGET, reduction=reduction)
        return loss.view(targets.shape) if reduction == "none" else loss

    def new_cache(self, tokens: int) -> Cache:
        """With room for so many tokens, as far as the context goes."""
        return Cache(self.config.n_layer, min(tokens, self.config.block_size))

    def next_logits(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits (B, V) of the one token that follows; the head is not computed for the others."""
        return self.lm_head(self.hidden(tokens, cache)[:, -1])  # type: ignore[no-any-return]

    def parameter_count(self, positions: bool = True) -> int:
        """Every parameter once (the tied matrix too); without positions is how nanoGPT counts."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if not positions and self.transformer.wpe is not None:
            total -= self.transformer.wpe.weight.numel()
        return total
