"""Parameters and FLOPs of a model, counted from its shape. No torch: planning uses it too.

The convention is nanoGPT's, so that figures compare: 6 FLOPs per parameter and token (2 forward, 4 backward)
for every parameter in a matmul, which position and untied input embeddings are not, plus
attention's two T x T products, 12 x layers x heads x head_dim x context, the causal half not taken off.
GPT-2 124M at 1024 tokens and 50304 ids comes to 854.8 MFLOP/token.
"""

from __future__ import annotations

from typing import Protocol

FLOPS_PER_PARAMETER = 6  # in a matmul, per token
FLOPS_CONVENTION = (
    "6 x (matmul parameters: no position embedding, no untied input embedding) "
    "+ 12 x layers x heads x head_dim x context, causal not halved"
)


def count_parameters(
    *,
    vocab_size: int,
    block_size: int,
    n_layer: int,
    n_embd: int,
    arch: str,
    bias: bool,
    positions: bool = True,
    tied: bool = True,
    matmul_only: bool = False,
) -> int:
    """Parameters of a GPT of this shape; `tied`: embedding and head are one matrix.

    `matmul_only`: without embeddings that are only looked up: positions, and an untied input embedding.
    """
    biased = bias and arch == "gpt2"
    norm = n_embd * (2 if biased else 1)
    # 12 C^2 a block: 3 for queries, keys, values; 1 for attention's output; 4 + 4 for the MLP.
    block = 2 * norm + 12 * n_embd**2 + (9 * n_embd if biased else 0)
    matrices = 1 if tied or matmul_only else 2
    total = matrices * vocab_size * n_embd + n_layer * block + norm
    return total + (block_size * n_embd if positions and not matmul_only and arch == "gpt2" else 0)


class ModelShape(Protocol):
    """A GPTConfig or a TrainConfig."""

    @property
    def block_size(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def arch(self) -> str: ...
    @property
    def bias(self) -> bool: ...
    @property
    def tie_embeddings(self) -> bool: ...


def model_parameters(
    shape: ModelShape, vocab_size: int, positions: bool = True, matmul_only: bool = False
) -> int:
    return count_parameters(
        vocab_size=vocab_size,
        block_size=shape.block_size,
        n_layer=shape.n_layer,
        n_embd=shape.n_embd,
        arch=shape.arch,
        bias=shape.bias,
        positions=positions,
        tied=shape.tie_embeddings,
        matmul_only=matmul_only,
    )


def model_flops_per_token(shape: ModelShape, vocab_size: int) -> int:
    """Forward and backward, per trained token."""
    matmul_parameters = model_parameters(shape, vocab_size, matmul_only=True)
    return flops_per_token(matmul_parameters, shape.n_layer, shape.n_embd, shape.block_size)


def flops_per_token(matmul_parameters: int, n_layer: int, n_embd: int, context: int) -> int:
    """Forward and backward, per trained token."""
    return six_n_flops_per_token(matmul_parameters) + attention_flops_per_token(n_layer, n_embd, context)


def attention_flops_per_token(n_layer: int, n_embd: int, context: int) -> int:
    """heads x head_dim is n_embd."""
    return 12 * n_layer * n_embd * context


def six_n_flops_per_token(matmul_parameters: int) -> int:
    """The often quoted 6N rule, without attention."""
    return FLOPS_PER_PARAMETER * matmul_parameters


def muon_flops_per_update(n_layer: int, n_embd: int, steps: int = 5) -> int:
    """A Newton-Schulz iteration on a matrix m x n (m <= n) takes 4 m^2 n + 2 m^3 FLOPs. A block has four
    matrices of C x C and two of C x 4C."""
    return steps * n_layer * (4 * 6 + 2 * 18) * n_embd**3
