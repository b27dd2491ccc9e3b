"""The two runs of note 004, rebuilt with its figures. Their logs have no settings: those come from flags."""

from __future__ import annotations

SMALL_FLAGS = [
    "--a.n_layer=12", "--a.n_embd=384", "--a.block_size=1024", "--a.batch_size=16",
    "--a.gradient_accumulation_steps=32", "--a.learning_rate=1e-3", "--a.parameters=33M",
]  # fmt: skip
LARGE_FLAGS = [
    "--b.n_layer=12", "--b.n_embd=768", "--b.block_size=1024", "--b.batch_size=8",
    "--b.gradient_accumulation_steps=64", "--b.learning_rate=3e-4", "--b.parameters=125M",
]  # fmt: skip


def small_log() -> str:
    return _log(1000, 3900.0, 12.9, {500: (5.5401, 5.5328), 1000: (4.4702, 4.4593)})


def large_log() -> str:
    return _log(990, 9340.0, 15.4, {500: (5.5260, 5.5194)})


def _log(last: int, ms: float, mfu: float, losses: dict[int, tuple[float, float]]) -> str:
    lines = []
    for at in range(10, last + 1, 10):
        if at in losses:
            train, val = losses[at]
            lines += [f"step {at}: train loss {train:.4f}, val loss {val:.4f}", "saving checkpoint to out"]
        wobble = (at // 10) % 3 - 1
        spent = ms + wobble * 10 + (60_000 if at in losses else 0)
        loss = 10.9 - 6.4 * (at / 1000) ** 0.3
        lines.append(f"iter {at}: loss {loss:.4f}, time {spent:.2f}ms, mfu {mfu:.2f}%")
    return "\n".join(lines) + "\n"
