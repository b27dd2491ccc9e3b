"""What happens to a log on its way into a file: noise between its lines, and things done to all of them."""

from __future__ import annotations

from collections.abc import Callable

# Lines of other programs, of wandb, of a notebook, of samples. None of them says anything about the run.
NOISE = (
    "",
    "   ",
    "/usr/lib/python3/site-packages/torch/_inductor/compile_fx.py:140: UserWarning: "
    "TensorFloat32 tensor cores",
    "  warnings.warn(",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::]:12355 (errno: 97)",
    "W0329 21:22:06.460627 1454052 torch/distributed/run.py:774] Setting OMP_NUM_THREADS to "
    "be 1 for each process",
    "wandb: Currently logged in as: someone (team). Use `wandb login --relogin` to force relogin",
    "wandb: Run data is saved locally in /home/someone/wandb/run-20240801_150833-mvtm5kj1",
    "wandb:  View run at https://wandb.ai/someone/owt/runs/mvtm5kj1",
    "wandb:        mfu ▁█████",
    "SLURM_JOB_ID=492393",
    "srun: job 492393 has been allocated resources",
    "| NVIDIA-SMI 560.35.03    Driver Version: 560.35.03    CUDA Version: 12.6 |",
    "|   0  NVIDIA H100 80GB HBM3    On | 00000000:00:05.0 Off |         0 |",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
    "To disable this warning, you can either:",
    "Downloading data: 100%|██████████| 1.06M/1.06M [00:00<00:00, 12.1MB/s]",
    "Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.2s/it]",
    "ROMEO: The step was long, and great the loss; what time is it?",
    "rank 3 sample 0: Hello, I'm a language model, and this is my first iteration of the loss.",
    "Hello, I'm a language model, I step over 5 dogs | and then: 12 cats",
    "<|endoftext|>In the year 1823 the loss was 12.5 million, in step with 1824.",
    '{"event": "heartbeat", "uptime": 12.5}',
    "tensor([[ 2,  0,  7,  0,  8,  0, 12,  0, 15,  0,  2,  0,  3,  0,  1,  0,  0,  0,",
    "DEBUG:filelock:Lock 140234 acquired on /tmp/x.lock",
    "INFO: 127.0.0.1 - GET /metrics HTTP/1.1 200",
    "Thu Jul 31 12:00:00 UTC 2025",
    "…",
    "...",
    "x = model(idx)  # (B, T, vocab_size)",
    "evaluating: 12/20",
    "loss",
    "step",
    "iter",
    "\u3000\u3000　✨",
)  # fmt: skip

Dirt = Callable[[str], str]


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def coloured(text: str) -> str:
    """Each line in a colour, each number in another."""
    return "".join(f"\x1b[32m{line[:7]}\x1b[1;34m{line[7:]}\x1b[0m\n" for line in text.splitlines())


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def trailing_blanks(text: str) -> str:
    return "".join(f"{line}   \n" for line in text.splitlines())


def blank_lines_between(text: str) -> str:
    return text.replace("\n", "\n\n")


def rank_prefixed(text: str) -> str:
    """torchrun --log-prefix style."""
    return "".join(f"[rank0]: {line}\n" for line in text.splitlines())


def labelled(text: str) -> str:
    """srun --label."""
    return "".join(f"0: {line}\n" for line in text.splitlines())


def of_two_ranks(text: str) -> str:
    """Both ranks print everything, each under its name."""
    return "".join(f"[rank0]: {line}\n[rank1]: {line}\n" for line in text.splitlines())


def twice(text: str) -> str:
    """Two ranks that both print, without saying who they are."""
    return "".join(f"{line}\n{line}\n" for line in text.splitlines())


def timestamped(text: str) -> str:
    return "".join(f"2023-03-22 09:30:39 {line}\n" for line in text.splitlines())


def bracketed_time(text: str) -> str:
    return "".join(f"[2024-08-01 15:08:33] {line}\n" for line in text.splitlines())


def logged(text: str) -> str:
    """Python's logging."""
    return "".join(f"2024-08-01 15:08:33,125 - INFO - {line}\n" for line in text.splitlines())


def of_ts(text: str) -> str:
    """moreutils' `ts`."""
    return "".join(f"Mar 01 15:08:33 {line}\n" for line in text.splitlines())


def of_systemd(text: str) -> str:
    """journalctl."""
    return "".join(f"Mar  1 15:08:33 gpu-box python[4711]: {line}\n" for line in text.splitlines())


def of_kubernetes(text: str) -> str:
    return "".join(f"2024-03-01T15:08:33.123456789Z stderr F {line}\n" for line in text.splitlines())


def since_the_beginning(text: str) -> str:
    return "".join(f"[{at * 0.3:10.3f}] {line}\n" for at, line in enumerate(text.splitlines()))


def of_torchtitan(text: str) -> str:
    stamp = "[rank0]:[titan] 2024-08-01 15:08:33,125 - root - INFO - "
    return "".join(f"{stamp}{line}\n" for line in text.splitlines())


def docker(text: str) -> str:
    return "".join(f"trainer-1  | {line}\n" for line in text.splitlines())


def fenced(text: str) -> str:
    return f"Here is what I got:\n\n```\n{text}```\n\nAny idea?\n"


def quoted(text: str) -> str:
    return "".join(f"> {line}\n" for line in text.splitlines())


def notebook(text: str) -> str:
    """The text of a cell, as the JSON of a notebook has it."""
    cell = "".join(f'            "{line}\\n",\n' for line in text.splitlines())
    return '{\n "cells": [\n  {\n   "outputs": [\n    {\n     "text": [\n' + cell + "     ]\n    }\n   ]\n"


TEXT_DIRT: dict[str, Dirt] = {
    dirt.__name__: dirt
    for dirt in (indented, trailing_blanks, blank_lines_between, rank_prefixed, labelled, of_two_ranks)
}
STAMPS: dict[str, Dirt] = {
    dirt.__name__: dirt
    for dirt in (
        timestamped,
        bracketed_time,
        logged,
        of_ts,
        of_systemd,
        of_kubernetes,
        since_the_beginning,
        of_torchtitan,
        docker,
        quoted,
        fenced,
    )
}
