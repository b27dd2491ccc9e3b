"""The options of `glass export` and `glass import`. A module of its own: --help must not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ExportOptions:
    """Write a model as a folder for other programs, and check that it computes the same there.

    RUN is as for `glass sample`: its best checkpoint, or RUN@2000, RUN@last; also nanoGPT's ckpt.pt, or a
    folder with GPT-2's weights.
    """

    # `hf`: for Hugging Face's transformers, tokenizer and model card included. `nanogpt`: a ckpt.pt for its
    # sample.py and train.py; arch=gpt2 only. `glass`: safetensors under our names, for code of your own.
    to: Literal["hf", "nanogpt", "glass"] = "hf"
    # The folder to write. Default: exports/RUN-hf. One that holds anything else than an export is left alone.
    out: str = ""
    # For a ckpt.pt of nanoGPT: the folder with its meta.pkl, if it is not at data/DATASET.
    data_dir: str = ""


@dataclass(frozen=True)
class ImportOptions:
    """Turn a run of nanoGPT's into one of ours: then show, explain, compare, sample and resume work on it.

    OUT_DIR is nanoGPT's out_dir, which holds its ckpt.pt. It is read only, and nothing in it is executed.
    """

    # What nanoGPT printed, as a file: every loss and every time. Without it only the checkpoint is known.
    log: str = ""
    # The folder of the new run. Default: runs/OUT_DIR, then runs/OUT_DIR-2, ...; a run is never overwritten.
    out: str = ""
    # The folder with the run's train.bin, val.bin and meta.pkl, if it is not at data/DATASET.
    data_dir: str = ""
