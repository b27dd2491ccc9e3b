"""The model that sizes are given for: GPT-2 124M, as `glass train gpt2_124m` has it."""

from __future__ import annotations

from glassgpt.estimate.flops import count_parameters

MODEL_NAME = "GPT-2 124M"
PARAMETERS = count_parameters(
    vocab_size=50_304, block_size=1024, n_layer=12, n_embd=768, arch="gpt2", bias=False
)
CHECKPOINT_BYTES = 12 * PARAMETERS  # weights and AdamW's two moments, in float32
TRAINING_STATE_BYTES = 16 * PARAMETERS  # gradients too
