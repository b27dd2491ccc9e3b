"""The run of notes 000 and 002, rebuilt with their figures: iterations of 168 to 170 ms, three long ones."""

from __future__ import annotations

STEADY_MS = (168, 170, 168, 169, 168, 168, 170, 169, 168)
SPIKES_MS = {0: 12543, 500: 5985, 1000: 5726}


def console_log() -> str:
    """As nanoGPT printed it, a line every 100 iterations. The losses are invented: the notes have none."""
    lines = []
    for iteration in range(0, 1001, 100):
        loss = 10.9 - iteration / 200
        if iteration % 500 == 0:
            lines.append(f"step {iteration}: train loss {loss:.4f}, val loss {loss + 0.01:.4f}")
        if iteration in (500, 1000):
            lines.append("saving checkpoint to out")
        ms = SPIKES_MS.get(iteration, STEADY_MS[iteration // 100 % len(STEADY_MS)])
        lines.append(f"iter {iteration}: loss {loss:.4f}, time {ms:.2f}ms, mfu 30.00%")
    return "\n".join(lines) + "\n"


def quoted() -> str:
    """As a note quotes it: pieces in code blocks, out of order, without losses, one of them twice."""
    return """\
---
title: slow iterations
---

### Usual iterations

```
iter 100: time 168ms
iter 200: time 170ms
...
iter 900: time 168ms
```

### Slow ones

```
iter 0: time 12543ms
iter 500: time 5985ms
iter 1000: time 5726ms
```

They come after the "**step X**" blocks:

```
step 500: train loss..., val loss...
saving checkpoint
iter 500: loss..., time 5985ms
```

```
step 1000: train loss..., val loss...
saving checkpoint
iter 1000: loss..., time 5726ms
```
"""
