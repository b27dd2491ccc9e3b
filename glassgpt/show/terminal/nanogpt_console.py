"""A run in nanoGPT's own lines (`--console=nanogpt`), so that scripts that parse those keep working.

    step 250: train loss 1.9710, val loss 2.0674
    iter 250: loss 2.0131, time 12.10ms, mfu 12.46%
    saving checkpoint to out-shakespeare-char

Updates are numbered from 0, as in nanoGPT. `mfu` is a running mean per process, relative to an A100's
312 TFLOP/s: readers of these lines expect that. `time` is the update alone, without evaluation and saving.
The journal has the same run in our terms. What nanoGPT has no line for goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from glassgpt.record.finding import finding_line
from glassgpt.record.journal import Record
from glassgpt.runs.trainer import A100_PEAK
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.run_lines import suggest_next_steps

_MFU_WARMUP_UPDATES = 5  # of a process; until then nanoGPT shows -100%


class NanogptConsole:
    """Prints records. Its state is what later lines need of earlier records. `page_url`: as RunConsole's."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        page_url: Callable[[Path], str] = lambda run_dir: "",
    ) -> None:
        self._out, self._err, self._page_url = out or sys.stdout, err or sys.stderr, page_url
        self._run: Record = {}
        self._train_loss: float | None = None
        self._updates = 0
        self._mfu = -1.0

    def __call__(self, record: Record) -> None:
        match record["kind"]:
            case "run":
                self._run = record
                self._print_run(record)
                if url := self._page_url(Path(record["out_dir"])):
                    self._print_stderr(f"page: {url}")
            case "resume":
                self._print_stdout(f"Resuming training from {self._run['out_dir']}")
                for complaint in record["complaints"]:
                    self._print_stderr(f"warning: {complaint}")
            case "step":
                self._print_step(record)
            case "eval" if record["closing"]:
                self._print_stderr(f"whole validation split: loss {record['loss']:.4f}")
            case "eval" if record["split"] == "train":
                self._train_loss = record["loss"]
            case "eval":
                losses = f"train loss {self._train_loss:.4f}, val loss {record['loss']:.4f}"
                self._print_stdout(f"step {record['iter']}: {losses}")
            case "checkpoint":
                self._print_stdout(f"saving checkpoint to {self._run['out_dir']}")
            case "finding":
                self._print_stderr(f"{record['severity']}: {finding_line(record)}")
            case "sample":
                self._print_stderr(record["text"])
            case "end" if record["reason"] != "finished":
                for label, text, suggested in suggest_next_steps(record, self._run):
                    line = f"{text}  {suggested}" if suggested else text
                    self._print_stderr(f"{label}: {line}" if label else line)

    def _print_stdout(self, text: str) -> None:
        print(sanitize_text(text), file=self._out, flush=True)

    def _print_stderr(self, text: str) -> None:
        print(sanitize_text(text), file=self._err, flush=True)

    def _print_run(self, record: Record) -> None:
        model, config = record["model"], record["config"]
        choices = {choice["name"]: choice["value"] for choice in reversed(record["choices"])}
        decayed, others = count_decayed_parameters(model)
        self._print_stdout(f"tokens per iteration will be: {record['batch']['tokens']:,}")
        if record["process"] == 0 and config["init_from"] == "scratch":
            self._print_stdout("Initializing a new model from scratch")
        self._print_stdout(f"number of parameters: {model['parameters_without_positions'] / 1e6:.2f}M")
        self._print_stdout(f"num decayed parameter tensors: {decayed[0]}, with {decayed[1]:,} parameters")
        self._print_stdout(f"num non-decayed parameter tensors: {others[0]}, with {others[1]:,} parameters")
        self._print_stdout(f"using fused AdamW: {choices.get('device') != 'mps'}")
        if choices.get("compile") == "on":
            self._print_stdout("compiling the model... (takes a ~minute)")

    def _print_step(self, record: Record) -> None:
        self._updates += record["updates"]
        ms = record["first_update_ms"] if record["step_ms"] is None else record["step_ms"]
        if self._updates > _MFU_WARMUP_UPDATES and record["flops_per_s"] is not None:
            mfu = record["flops_per_s"] / self._run.get("team", {}).get("size", 1) / A100_PEAK
            self._mfu = mfu if self._mfu == -1.0 else 0.9 * self._mfu + 0.1 * mfu
        self._print_stdout(
            f"iter {record['iter'] - 1}: loss {record['loss']:.4f}, time {ms or 0.0:.2f}ms, "
            f"mfu {self._mfu * 100:.2f}%"
        )


def count_decayed_parameters(model: Record) -> tuple[tuple[int, int], tuple[int, int]]:
    """(tensors, parameters) with weight decay (matrices), and (tensors, parameters) without (vectors)."""
    layers, width, is_gpt2 = model["n_layer"], model["n_embd"], model["arch"] == "gpt2"
    vectors, vector_size = 2 * layers + 1, (2 * layers + 1) * width  # gains of the norms
    if model["bias"] and is_gpt2:
        # Biases: of the norms, and of four linear layers with 3, 1, 4 and 1 times the width.
        vectors, vector_size = 2 * vectors + 4 * layers, 2 * vector_size + 9 * layers * width
    matrices = 4 * layers + (2 if is_gpt2 else 1)  # with the token and the position embedding
    matrices += not model.get("tie_embeddings", True)  # an untied lm_head
    return (matrices, model["parameters"] - vector_size), (vectors, vector_size)
