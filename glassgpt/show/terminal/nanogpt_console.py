"""A run in nanoGPT's own lines (`--console=nanogpt`), so that scripts that read those go on working.

    step 250: train loss 1.9710, val loss 2.0674
    iter 250: loss 2.0131, time 12.10ms, mfu 12.46%
    saving checkpoint to out-shakespeare-char

Updates are numbered as there, from 0, and `mfu` is a share of an A100's 312 TFLOP/s in a running mean, of
each process its own, because whoever reads these lines takes it for that. `time` is an update's own:
evaluating and saving are not in it. The journal has the same run in our terms. What nanoGPT has no line for
goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from glassgpt.record.finding import finding_line
from glassgpt.record.journal import Record
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.next_steps import suggest_next_steps

_A100_FLOPS = 312e12
_MFU_WARMUP_UPDATES = 5  # updates of a process, before which nanoGPT shows -100%


class NanogptConsole:
    """Prints records. Holds only what a later line needs of earlier ones."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._run: Record = {}
        self._train_loss: float | None = None
        self._updates = 0
        self._mfu = -1.0
        self._printers: dict[str, Callable[[Record], None]] = {
            "run": self._print_run,
            "step": self._print_step,
            "eval": self._print_eval,
            "checkpoint": self._print_checkpoint,
            "resume": self._print_resume,
            "finding": self._print_finding,
            "sample": self._print_sample,
            "end": self._print_end,
        }

    def __call__(self, record: Record) -> None:
        if show := self._printers.get(record["kind"]):
            show(record)

    def _print_stdout(self, text: str) -> None:
        print(sanitize_text(text), file=self._out, flush=True)

    def _print_stderr(self, text: str) -> None:
        print(sanitize_text(text), file=self._err, flush=True)

    def _print_run(self, record: Record) -> None:
        self._run = record
        model, config = record["model"], record["config"]
        decayed, others = count_decayed_parameters(model)
        self._print_stdout(f"tokens per iteration will be: {record['batch']['tokens']:,}")
        if record["process"] == 0 and config["init_from"] == "scratch":
            self._print_stdout("Initializing a new model from scratch")
        self._print_stdout(f"number of parameters: {model['parameters_without_positions'] / 1e6:.2f}M")
        self._print_stdout(f"num decayed parameter tensors: {decayed[0]}, with {decayed[1]:,} parameters")
        self._print_stdout(f"num non-decayed parameter tensors: {others[0]}, with {others[1]:,} parameters")
        self._print_stdout(f"using fused AdamW: {_choice_value(record, 'device') != 'mps'}")
        if _choice_value(record, "compile") == "on":
            self._print_stdout("compiling the model... (takes a ~minute)")

    def _print_resume(self, record: Record) -> None:
        self._print_stdout(f"Resuming training from {self._run['out_dir']}")
        for complaint in record["complaints"]:
            self._print_stderr(f"warning: {complaint}")

    def _print_step(self, record: Record) -> None:
        self._updates += record["updates"]
        ms = record["first_update_ms"] if record["step_ms"] is None else record["step_ms"]
        if self._updates > _MFU_WARMUP_UPDATES and record["flops_per_s"] is not None:
            mfu = record["flops_per_s"] / self._run.get("team", {}).get("size", 1) / _A100_FLOPS
            self._mfu = mfu if self._mfu == -1.0 else 0.9 * self._mfu + 0.1 * mfu
        self._print_stdout(
            f"iter {record['iter'] - 1}: loss {record['loss']:.4f}, time {ms or 0.0:.2f}ms, "
            f"mfu {self._mfu * 100:.2f}%"
        )

    def _print_eval(self, record: Record) -> None:
        if record["closing"]:
            self._print_stderr(f"whole validation split: loss {record['loss']:.4f}")
        elif record["split"] == "train":
            self._train_loss = record["loss"]
        else:
            train = self._train_loss
            self._print_stdout(
                f"step {record['iter']}: train loss {train:.4f}, val loss {record['loss']:.4f}"
            )

    def _print_checkpoint(self, record: Record) -> None:
        self._print_stdout(f"saving checkpoint to {self._run['out_dir']}")

    def _print_finding(self, record: Record) -> None:
        self._print_stderr(f"{record['severity']}: {finding_line(record)}")

    def _print_sample(self, record: Record) -> None:
        self._print_stderr(record["text"])

    def _print_end(self, record: Record) -> None:
        if record["reason"] != "finished":
            for label, text in suggest_next_steps(record, self._run):
                self._print_stderr(f"{label}: {text}" if label else text)


def _choice_value(run: Record, name: str) -> object:
    return next((choice["value"] for choice in run["choices"] if choice["name"] == name), None)


def count_decayed_parameters(model: Record) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many tensors are decayed (matrices) and how many are not, and how many parameters those have."""
    layers, width, gpt2 = model["n_layer"], model["n_embd"], model["arch"] == "gpt2"
    vectors, size = 2 * layers + 1, (2 * layers + 1) * width  # the norms' gains
    if model["bias"] and gpt2:
        # And biases: the norms' again, and of four linear layers 3, 1, 4 and 1 times the width.
        vectors, size = 2 * vectors + 4 * layers, 2 * size + 9 * layers * width
    matrices = 4 * layers + (2 if gpt2 else 1)  # and embeddings of tokens, and of positions
    matrices += not model.get("tie_embeddings", True)  # and the one that predicts
    return (matrices, model["parameters"] - size), (vectors, size)
