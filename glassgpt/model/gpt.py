"""One GPT, in two architectures that share everything they can.

`arch="gpt2"` has GPT-2's layers and parameter names (with nanoGPT's weight layout: `Linear`, not `Conv1D`).
`arch="modern"` swaps learned positions for rotary ones, LayerNorm for RMSNorm, GELU for relu squared, adds
QK-norm, and has no biases.

Shapes: B sequences, T tokens each, C channels, H heads of D channels, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from glassgpt.config import TrainConfig, activation
from glassgpt.model import fused, loss
from glassgpt.model.kv_cache import KVCache, LayerKVCache

# Ways to compute attention. `sdpa`: PyTorch takes the first of its own that can; `manual`: the formula.
ATTENTION_BACKENDS = {
    "sdpa": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "manual": None,
}
ROPE_THETA = 10_000.0  # RoPE's theta


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
    tie_embeddings: bool = True


def make_gpt_config(config: TrainConfig, vocab_size: int) -> GPTConfig:
    """The model that settings ask for, with so many rows in the matrix that predicts."""
    return GPTConfig(
        vocab_size=vocab_size,
        block_size=config.block_size,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        dropout=config.dropout,
        bias=config.bias,
        arch=config.arch,
        activation=activation(config),
        tie_embeddings=config.tie_embeddings,
    )


class Linear(nn.Linear):
    """PyTorch's, but for weights that it would draw, for seconds, before GPT draws its own."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """The same."""

    def reset_parameters(self) -> None:
        pass


class Norm(nn.Module):
    """LayerNorm whose bias can be left out; for `modern`, RMSNorm with a gain.

    Takes what is to be added to the residual stream along, since whatever is added is normed next: one pass
    over memory for both.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.rms = config.arch == "modern"
        self.kernels = False  # see GPT.set_kernels
        self.weight = nn.Parameter(torch.empty(config.n_embd))
        self.bias = nn.Parameter(torch.empty(config.n_embd)) if config.bias and not self.rms else None

    def forward(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The stream with `added`, and that normed."""
        return fused.add_norm(x, added, self.weight, self.bias, self.rms, self.kernels)


class Attention(nn.Module):
    """Causal self-attention. Queries, keys and values come from one matmul, as in GPT-2."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        bias = config.bias and config.arch == "gpt2"
        self.n_head, self.dropout = config.n_head, config.dropout
        self.kernels = self.float8 = False
        self.attention = "sdpa"  # see GPT.set_attention
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=bias)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor] | None, cache: LayerKVCache | None = None
    ) -> Tensor:
        B, T, C = x.shape
        heads = (self.n_head, C // self.n_head)
        parts: tuple[Tensor, ...]
        if rotation is not None:
            qkv = fused.linear(self.c_attn, x, self.float8).view(B, T, 3, *heads)
            parts = fused.rotary_qk_norm(qkv, rotation, self.kernels)
        else:
            parts = fused.linear_chunked(self.c_attn, x, 3, self.float8)
        q, k, v = (part.view(B, T, *heads).transpose(1, 2) for part in parts)  # each (B, H, T, D)
        dropout = self.dropout if self.training else 0.0
        if cache is not None:
            y = cache.attend(q, k, v)
        else:
            y = attend(q, k, v, dropout, self.attention)
        y = fused.linear(self.c_proj, y.transpose(1, 2).reshape(B, T, C), self.float8)
        return F.dropout(y, dropout, self.training)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float, how: str) -> Tensor:
    """What the values at or before each query give it; `how` is one of ATTENTION."""
    if how == "manual":
        return _textbook_attention(q, k, v, dropout)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return _attention_on_a_cpu(q, k, v, dropout, how)
    backend = ATTENTION_BACKENDS[how]
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


def _attention_on_a_cpu(q: Tensor, k: Tensor, v: Tensor, dropout: float, how: str) -> Tensor:
    """In float32: backwards, PyTorch's kernel takes a third of the time that it takes in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return attend(q.float(), k.float(), v.float(), dropout, how).to(q.dtype)


def _textbook_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Scores are not rounded to a low precision, as little as PyTorch's own kernels do that."""
    T, precise = q.shape[-2], torch.promote_types(q.dtype, torch.float32)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    with torch.autocast(q.device.type, enabled=False):
        scores = q.to(precise) / math.sqrt(q.shape[-1]) @ k.to(precise).transpose(-2, -1)
        weights = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return F.dropout(weights, dropout).to(v.dtype) @ v


def _rope_tables(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angle by which pair i of a head at position t is turned."""
    speeds = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), speeds)
    return angles.cos(), angles.sin()


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        bias = config.bias and config.arch == "gpt2"
        self.dropout = config.dropout
        self.activation = config.activation
        self.kernels = self.float8 = False
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, bias=bias)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = fused.mlp(self.c_fc, self.c_proj, x, self.activation, self.kernels, self.float8)
        return F.dropout(x, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = Norm(config)
        self.attn = Attention(config)
        self.ln_2 = Norm(config)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        added: Tensor | None,
        rotation: tuple[Tensor, Tensor] | None,
        cache: LayerKVCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream, and what this block's MLP will add to it."""
        x, normed = self.ln_1(x, added)
        x, normed = self.ln_2(x, self.attn(normed, rotation, cache))
        return x, self.mlp(normed)


class Transformer(nn.Module):
    """Embeddings, blocks and the last norm; its attribute names are GPT-2's parameter names."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.block_size, config.n_embd) if config.arch == "gpt2" else None
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = Norm(config)


class GPT(nn.Module):
    """Tokens (B, T) in, logits (B, T, V) out; with targets, the loss instead."""

    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(self, config: GPTConfig, empty: bool = False) -> None:
        """`empty`: the weights come from elsewhere, and need not be drawn."""
        super().__init__()
        self.config = config
        self.activation_checkpointing = False
        self.kernels = self.float8 = False
        self._compiled_hidden: Callable[[Tensor], Tensor] | None = None
        self.transformer = Transformer(config)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.transformer.wte.weight  # one matrix reads and writes tokens
        if config.arch == "modern":
            cos, sin = _rope_tables(config.block_size, config.n_embd // config.n_head)
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)
        if not empty:
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
            else:
                nn.init.ones_(parameter)  # a norm's gain
        if self.config.arch == "modern":
            self._init_modern()

    def _init_modern(self) -> None:
        """Blocks add nothing at first, and a head of its own predicts nothing: all is there to be learned."""
        for name, parameter in self.transformer.h.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.7 / math.sqrt(self.config.n_embd))
        if not self.config.tie_embeddings:
            nn.init.normal_(self.transformer.wte.weight, std=0.5)
            nn.init.zeros_(self.lm_head.weight)

    def set_attention(self, how: str) -> None:
        """One of ATTENTION."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.attention = how

    def set_kernels(self, on: bool) -> None:
        """Whether kernels of our own (kernels.py) do what they can do."""
        self.kernels = on
        for module in self.modules():
            if isinstance(module, Norm | Attention | MLP):
                module.kernels = on

    def set_compiled(self, on: bool) -> None:
        """Whether PyTorch's compiler builds what comes before the loss; of that it might hold all pieces."""
        # Evaluation comes in other shapes than training: each gets code of its own, none for any shape.
        self._compiled_hidden = torch.compile(self.hidden, dynamic=False) if on else None

    @property
    def is_compiled(self) -> bool:
        return self._compiled_hidden is not None

    def set_float8(self, on: bool) -> None:
        """Whether training multiplies in 8-bit floats (float8.py); it needs the kernels."""
        self.float8 = on
        for module in self.modules():
            if isinstance(module, Attention | MLP):
                module.float8 = on

    def hidden(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """The last layer's output (B, T, C), normed: what the head reads.

        With a cache, `tokens` are those after the ones it has read; it takes them in.
        """
        T = tokens.shape[1]
        places = slice(T) if cache is None else cache.next_positions(T)
        x: Tensor = self.transformer.wte(tokens)
        rotation = None
        if self.transformer.wpe is not None:
            x = x + self.transformer.wpe.weight[places]
        else:
            x = F.rms_norm(x, x.shape[-1:], eps=fused.NORM_EPSILON["rms"])
            rotation = (self.rotary_cos[places], self.rotary_sin[places])
        x = F.dropout(x, self.config.dropout, self.training)
        if self.training and x.is_cuda and torch.is_autocast_enabled("cuda"):
            # The residual stream: half the memory, half the time to fetch it. Evaluation is exact instead.
            x = x.to(torch.get_autocast_dtype("cuda"))
        added: Tensor | None = None
        for number, block in enumerate(self.transformer.h):
            if self.activation_checkpointing and self.training:
                x, added = checkpoint(
                    block,
                    x,
                    added,
                    rotation,
                    use_reentrant=False,
                    preserve_rng_state=self.config.dropout > 0,
                )
            else:
                x, added = block(x, added, rotation, None if cache is None else cache.layers[number])
        _, normed = self.transformer.ln_f(x, added)
        return normed  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, targets: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """Logits; or with targets the cross-entropy, averaged or (`reduction="none"`) per token (B, T)."""
        hidden = (self._compiled_hidden or self.hidden)(tokens)
        if targets is None:
            return self.lm_head(hidden)  # type: ignore[no-any-return]
        flat, wanted = hidden.view(-1, hidden.shape[-1]), targets.reshape(-1)
        if reduction == "mean":
            return loss.cross_entropy(flat, self.lm_head.weight, wanted, self.kernels, self.float8)
        return loss.token_losses(flat, self.lm_head.weight, wanted).view(targets.shape)

    def new_cache(self, tokens: int) -> KVCache:
        """With room for so many tokens, as far as the context goes."""
        return KVCache(self.config.n_layer, min(tokens, self.config.block_size))

    def next_logits(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits (B, V) of the one token that follows; the head is not computed for the others."""
        return self.lm_head(self.hidden(tokens, cache)[:, -1])  # type: ignore[no-any-return]

    def parameter_count(self, positions: bool = True) -> int:
        """Every parameter once (the tied matrix too); without positions is how nanoGPT counts."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if not positions and self.transformer.wpe is not None:
            total -= self.transformer.wpe.weight.numel()
        return total
