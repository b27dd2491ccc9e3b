"""The two runs of note 003, rebuilt with its figures: a laptop's CPU against a GPU.

The values between the figures that the note gives are invented, near those of nanoGPT's real README runs.
"""

from __future__ import annotations

_SETTINGS = """\
Overriding config with config/train_shakespeare_char.py:
out_dir = 'out-shakespeare-char'
eval_interval = 250 # keep frequent because we'll overfit
eval_iters = 200
log_interval = 10 # don't print too too often
always_save_checkpoint = False
dataset = 'shakespeare_char'
gradient_accumulation_steps = 1
batch_size = 64
block_size = 256 # context of up to 256 previous characters
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2
learning_rate = 1e-3 # with baby networks can afford to go a bit higher
max_iters = 5000
lr_decay_iters = 5000 # make equal to max_iters usually
min_lr = 1e-4 # learning_rate / 10 usually
beta2 = 0.99
warmup_iters = 100
"""

_CPU_OVERRIDES = """\
Overriding: device = cpu
Overriding: compile = False
Overriding: eval_iters = 20
Overriding: log_interval = 1
Overriding: block_size = 64
Overriding: batch_size = 12
Overriding: n_layer = 4
Overriding: n_head = 4
Overriding: n_embd = 128
Overriding: max_iters = 2000
Overriding: lr_decay_iters = 2000
Overriding: dropout = 0.0
"""

# Validation and training loss at every 250th iteration.
_CPU_LOSSES = (
    (4.17, 4.16), (2.43, 2.45), (2.28, 2.31), (2.13, 2.19), (1.98, 2.05), (1.89, 1.99), (1.84, 1.93),
    (1.79, 1.90), (1.76, 1.89),
)  # fmt: skip
_GPU_LOSSES = (
    (4.28, 4.28), (1.98, 2.08), (1.52, 1.72), (1.36, 1.58), (1.27, 1.52), (1.20, 1.49), (1.15, 1.47),
    (1.10, 1.46), (1.05, 1.47), (1.01, 1.49), (0.96, 1.50), (0.91, 1.51), (0.87, 1.53), (0.82, 1.55),
    (0.78, 1.58), (0.74, 1.60), (0.71, 1.62), (0.68, 1.65), (0.65, 1.67), (0.63, 1.69), (0.62, 1.70),
)  # fmt: skip


def cpu_log() -> str:
    head = _SETTINGS + _CPU_OVERRIDES + "tokens per iteration will be: 768\n"
    head += "found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)\nnumber of parameters: 0.80M\n"
    return head + _lines(_CPU_LOSSES, step_ms=116.0, eval_ms=1389.0, mfu="0.01", every=50)


def gpu_log() -> str:
    head = _SETTINGS + "tokens per iteration will be: 16,384\n"
    head += "found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)\nnumber of parameters: 10.65M\n"
    return head + _lines(_GPU_LOSSES, step_ms=33.8, eval_ms=4413.0, mfu="11.03", every=50)


def _lines(
    losses: tuple[tuple[float, float], ...], step_ms: float, eval_ms: float, mfu: str, every: int
) -> str:
    lines = []
    best = float("inf")
    for index, (train, val) in enumerate(losses):
        at = index * 250
        lines.append(f"step {at}: train loss {train:.4f}, val loss {val:.4f}")
        if at > 0 and val < best:
            lines.append("saving checkpoint to out-shakespeare-char")
        best = min(best, val)
        lines.append(
            f"iter {at}: loss {train + 0.03:.4f}, time {step_ms + eval_ms:.2f}ms, mfu {_mfu(at, mfu)}%"
        )
        if index < len(losses) - 1:
            later = losses[index + 1][0]
            lines += [
                f"iter {step}: loss {train + (later - train) * (step - at) / 250:.4f}, "
                f"time {step_ms + (step // every) % 3 - 1:.2f}ms, mfu {_mfu(step, mfu)}%"
                for step in range(at + every, at + 250, every)
            ]
    return "\n".join(lines) + "\n"


def _mfu(iteration: int, usual: str) -> str:
    return "-100.00" if iteration < 5 else usual
