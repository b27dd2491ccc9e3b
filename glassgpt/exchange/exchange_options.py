"""The options of `glass export` and `glass import`, in a separate module: --help must not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ExportOptions:
    """Write a model as a folder for other programs, and check that it computes the same there.

    RUN as in `glass sample`: its best checkpoint, or RUN@2000, RUN@last; also nanoGPT's ckpt.pt, or a folder
    with GPT-2's weights.
    """

    # `hf`: for Hugging Face's transformers, with tokenizer and model card. `nanogpt`: a ckpt.pt for its
    # sample.py and train.py, arch=gpt2 only. `glass`: safetensors with our names, for your own code.
    to: Literal["hf", "nanogpt", "glass"] = "hf"
    # The folder to write. Default: exports/RUN-hf. Only an unchanged export is overwritten.
    out: str = ""
    # For a ckpt.pt of nanoGPT: the folder with its meta.pkl, if that is not data/DATASET.
    data_dir: str = ""


@dataclass(frozen=True)
class ImportOptions:
    """Import a nanoGPT run: then show, explain, compare, sample and resume work on it.

    OUT_DIR is nanoGPT's out_dir with its ckpt.pt. Nothing in it is changed or executed.
    """

    # A file with nanoGPT's console output: losses and times. Without it only the checkpoint is imported.
    log: str = ""
    # The folder of the new run. Default: runs/OUT_DIR, or runs/OUT_DIR-2, ... if that exists.
    out: str = ""
    # The folder with its train.bin, val.bin and meta.pkl, if that is not data/DATASET.
    data_dir: str = ""
