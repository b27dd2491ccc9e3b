"""Feeds damaged logs to `explain`, to find one that crashes or hangs it.

    python -m bench.fuzz_logs --inputs 1000000 --jobs 2

Each input is made from a seed: lines of one to four trainers, tables or notes, some cut, repeated or with
extreme numbers, some bytes flipped. It is read and explained as `glass explain` does. Anything but an
explanation or a UserError is a crash; an input that takes longer than 5 s of CPU time is a hang.
The last line is one JSON document with the seeds of both, so that `--seed N --inputs 1` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import random
import sys
import time
import traceback

HANG_S = 5.0
_MAX_LINES = 40
_NUMBERS = (
    "nan",
    "inf",
    "-1",
    "0",
    "1e308",
    "-1e-308",
    "9" * 30,
    "1,234,567",
    "0x10",
    "1e999",
    "٣",
    "%s",
    "",
)
_LINES = (
    "step 250: train loss 1.9639, val loss 2.0676",
    "iter 250: loss 2.0307, time 26177.52ms, mfu 1.52%",
    "step   17 | loss: 6.952601 | lr 8.3916e-07 | norm: 14.8389 | dt: 40877.42ms | tok/sec: 801.62",
    "step    1/74 | loss 4.367631 (+nanz)| norm 15.3 (+nanz)| lr 1.00e-04 | 80.64 ms | 33.8% MFU | 508 tok/s",
    "step 00012/00100 (12.00%) | loss: 10.397162 | lrm: 0.01 | dt: 1677.49ms | tok/sec: 4,883",
    "step:125/1645 val_loss:4.9213 train_time:11531ms step_avg:92.25ms",
    "Epoch 1 | iter 16 step 4 | loss train: 10.939, val: n/a | iter time: 300.07 ms (step)",
    "{'loss': 2.9543, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.03}",
    "{'eval_loss': 2.8, 'eval_runtime': 3.2, 'epoch': 0.03}",
    " 3%|▎  | 10/330 [00:12<06:21,  1.19s/it]",
    "Epoch:[1/2](100/11040), loss: 6.4310, lr: 5e-4, epoch_time: 9.3min",
    "Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s",
    '{"step": 100, "loss": 2.3456, "lr": 1e-3}',
    '{"current_steps": 10, "total_steps": 656, "loss": 0.85, "elapsed_time": "0:02:32"}',
    "step,train_loss,val_loss,lr",
    "10,2.3,2.5,0.001",
    " iteration  100/ 1000 | elapsed time per iteration (ms): 512.3 | learning rate: 1.5E-04 | lm loss: 2 |",
    "100/100 ━━━━━━━━━━━━━━━━━━━━ 8s 8ms/step - loss: 2.1 - val_loss: 2.2",
    "| batch_size | 16 | 8 |",
    "| --- | --- | --- |",
    "```",
    "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 11.6 GiB",
    "Traceback (most recent call last):",
    "saving checkpoint to out",
    "number of parameters: 10.65M",
    "Overriding: batch_size = 12",
)


def make_input(seed: int) -> bytes:
    rng = random.Random(seed)
    kinds = rng.sample(_LINES, rng.randint(1, 4))
    lines = [rng.choice(kinds) for _ in range(rng.randint(1, _MAX_LINES))]
    for index, line in enumerate(lines):
        if rng.random() < 0.7:  # count on, as a log does
            line = (
                line.replace("100", str(100 + index))
                .replace("250", str(250 * index))
                .replace("125", str(index))
            )
        if rng.random() < 0.15:
            words = line.split(" ")
            words[rng.randrange(len(words))] = rng.choice(_NUMBERS)
            line = " ".join(words)
        if rng.random() < 0.05:
            line = line[: rng.randrange(len(line) + 1)]
        if rng.random() < 0.03:
            line *= rng.randint(2, 60)
        lines[index] = line
    content = bytearray(rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines).encode())
    for _ in range(rng.choice((0, 0, 0, 1, 5))):
        content[rng.randrange(len(content) or 1) : 1] = bytes([rng.randrange(256)])
    return bytes(content)


def explain_inputs(seeds: range) -> tuple[int, list[str], list[int]]:
    """How many were explained; crashes with their seeds; seeds that took too long."""
    from glassgpt.errors import UserError
    from glassgpt.explain.explanation import explain_runs
    from glassgpt.runs.reading import read_stream

    explained = 0
    crashes: list[str] = []
    hangs: list[int] = []

    def explain_input(seed: int) -> bool:
        with contextlib.suppress(UserError):
            explanation = explain_runs(read_stream(io.BytesIO(make_input(seed)), "input"))
            json.dumps(explanation.as_dict())
            return True
        return False

    for seed in seeds:
        started = time.perf_counter()
        try:
            explained += explain_input(seed)
        except Exception:  # noqa: BLE001 - to report which input did it
            crashes.append(f"seed {seed}: {traceback.format_exc(limit=-2)}")
        if time.perf_counter() - started > HANG_S:
            # Another program may have held the core: its CPU time counts, which is slow to ask for.
            started = time.process_time()
            with contextlib.suppress(Exception):
                explain_input(seed)
            if time.process_time() - started > HANG_S:
                hangs.append(seed)
    return explained, crashes, hangs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz_logs", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first input")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    end = arguments.seed + arguments.inputs
    chunks = [range(start, min(start + 1000, end)) for start in range(arguments.seed, end, 1000)]
    started, explained = time.perf_counter(), 0
    crashes: list[str] = []
    hangs: list[int] = []
    with multiprocessing.Pool(arguments.jobs) as pool:
        for number, (good, bad, slow) in enumerate(pool.imap_unordered(explain_inputs, chunks), 1):
            explained, crashes, hangs = explained + good, crashes + bad, hangs + slow
            print(
                f"{number} of {len(chunks)} thousand, {len(crashes)} crashes, {len(hangs)} hangs",
                file=sys.stderr,
            )
    print("\n".join(crashes[:10]))
    result = {"inputs": arguments.inputs, "explained": explained, "crashes": len(crashes), "hangs": hangs}
    print(json.dumps(result | {"seconds": round(time.perf_counter() - started, 1)}))
    return 1 if crashes or hangs else 0


if __name__ == "__main__":
    sys.exit(main())
