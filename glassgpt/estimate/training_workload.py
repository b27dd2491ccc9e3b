"""What the memory and the speed of a run depend on, and the parameters of its model. No torch.

work = TrainingWorkload(config=config, vocab_size=50304, batch_size=64)
total_parameters(work), optimizer_bytes(work)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig
from glassgpt.estimate import flops
from glassgpt.model import loss_chunks

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of an activation
WEIGHT_BYTES = GRADIENT_BYTES = 4  # per parameter: float32
ADAMW_BYTES = 8  # per parameter: two moments in float32


@dataclass(frozen=True, kw_only=True)
class TrainingWorkload:
    """What the memory and the speed of a run depend on."""

    config: TrainConfig
    vocab_size: int  # with padding
    batch_size: int
    micro_steps: int = 1
    device_type: str = "cuda"
    dtype: str = "bfloat16"
    kernels: bool = True  # our Triton kernels
    compiled: bool = False
    attention: str = "sdpa"
    graph: bool = False
    data_bytes: int = 0  # of the dataset, if it is on the card
    eval_batch_tokens: int = 0
    has_checkpoint_copy: bool = False  # on the device, written while training continues
    chunked_loss: bool = True  # the logits of a chunk at a time (model/loss.py)
    stated_parameters: int | None = None  # by a log; None: counted from the shape
    ranks: int = 1  # cards that train together, one process each; all other fields are per rank

    @property
    def micro_batch_tokens(self) -> int:
        return self.batch_size * self.config.block_size

    @property
    def is_sharded(self) -> bool:
        return self.config.shard and self.ranks > 1

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients exist during the forward pass: of earlier micro-batches, or since a CUDA graph of
        micro-steps has them at fixed addresses. A graph of a whole update frees them within it."""
        return self.micro_steps > 1 or (self.graph and self.ranks > 1)

    @property
    def activation_itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def has_all_logits(self) -> bool:
        """Whether the logits of all tokens are in memory at once."""
        return not self.chunked_loss or loss_chunks.fits_unchunked(self.micro_batch_tokens, self.vocab_size)


# --- parameters ---


def total_parameters(work: TrainingWorkload) -> int:
    return work.stated_parameters or flops.model_parameters(work.config, work.vocab_size)


def block_matrix_parameters(work: TrainingWorkload) -> int:
    """In the matrices of the blocks, which Muon optimizes. Of a log without the shape: nearly all."""
    return 12 * work.config.n_layer * work.config.n_embd**2 or work.stated_parameters or 0


def parameters_per_block(work: TrainingWorkload) -> int:
    """Parameters of one block, with its norms and biases."""
    one = replace(work.config, n_layer=1)
    none = replace(work.config, n_layer=0)
    return flops.model_parameters(one, work.vocab_size) - flops.model_parameters(none, work.vocab_size)


def head_parameters(work: TrainingWorkload) -> int:
    """Parameters of lm_head."""
    return work.vocab_size * work.config.n_embd


def optimizer_bytes(work: TrainingWorkload) -> int:
    """AdamW has two numbers per parameter, Muon one, for the blocks' matrices."""
    by_muon = block_matrix_parameters(work) if work.config.optimizer == "muon" else 0
    return 4 * by_muon + ADAMW_BYTES * (total_parameters(work) - by_muon)


def checkpoint_bytes(work: TrainingWorkload) -> int:
    """On disk: weights and optimizer state."""
    return WEIGHT_BYTES * total_parameters(work) + optimizer_bytes(work)
