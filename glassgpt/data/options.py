"""What `glass prepare` can be asked for, and what is wrong with asking it.

    glass prepare my.txt --tokenizer bpe:1024 --val_fraction 0.05 --out_dir data/mine

The comment above each option is its line in `glass prepare --help`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glassgpt.data.dataset import BUILT_IN, user_path
from glassgpt.data.manifest import MANIFEST, TOKENIZER_FILES
from glassgpt.data.sources import dataset_problem, is_kept_download
from glassgpt.data.staging import writable_problem
from glassgpt.data.tokenizers import tokenizer_problem
from glassgpt.errors import UserError


@dataclass(frozen=True)
class PrepareOptions:
    """What `glass prepare` can be asked for."""

    # What to read: pylib, shakespeare_char, shakespeare, or a text file or folder of your own.
    dataset: str
    # A local copy of the text, for the datasets that are otherwise downloaded (shakespeare*).
    source: str = ""
    # char, byte, gpt2, bpe:N (N tokens learned from the text), or auto, which says what it chose and why.
    tokenizer: str = "auto"
    # A folder with GPT-2's tokenizer files, for --tokenizer gpt2 without a network.
    tokenizer_files: str = ""
    # The share of the text kept for validation. none: 0.1, as nanoGPT; of pylib 0.03, which is plenty.
    val_fraction: float | None = None
    # Where the dataset goes; data/<name> when empty.
    out_dir: str = ""
    # Replace a dataset that is already there. Without it, nothing is ever overwritten.
    overwrite: bool = False


def out_directory(options: PrepareOptions) -> Path:
    if options.out_dir:
        path = user_path(options.out_dir)
        return path if path.name not in ("", "..") else path.resolve()  # "." has no name to rename to
    if options.dataset in BUILT_IN:
        return Path("data", options.dataset)
    path = user_path(options.dataset).resolve()
    return Path("data", path.name if path.is_dir() else path.stem)


def val_fraction(options: PrepareOptions) -> float:
    """A whole validation split is evaluated at the end of every run, so it should not be huge."""
    if options.val_fraction is not None:
        return options.val_fraction
    return 0.03 if options.dataset == "pylib" else 0.1


def check_options(options: PrepareOptions, out: Path) -> None:
    """Everything that can be known to be wrong before any work, all at once."""
    problems = [dataset_problem(options.dataset), tokenizer_problem(options.tokenizer)]
    if options.val_fraction is not None and not 0 < options.val_fraction < 1:
        problems.append(f"--val_fraction {options.val_fraction} is not between 0 and 1: use 0.1")
    if options.source and options.dataset not in ("shakespeare", "shakespeare_char"):
        problems.append(f"--source is for shakespeare: to read a file, run  glass prepare {options.source}")
    elif options.source and not user_path(options.source).is_file():
        problems.append(f"--source {options.source} is not a file: give a text file")
    if options.tokenizer_files and asked_tokenizer(options) != "gpt2":
        problems.append("--tokenizer_files is only read by gpt2: add --tokenizer gpt2, or leave it out")
    elif options.tokenizer_files and not user_path(options.tokenizer_files).is_dir():
        problems.append(f"--tokenizer_files {options.tokenizer_files} is not a folder: give one")
    problems.append(_place_problem(options, out) or writable_problem(out))
    if found := [problem for problem in problems if problem]:
        raise UserError(found)


# What a dataset's folder in nanoGPT's repository comes with; prepare works beside these and keeps them.
NANOGPT_SCRIPTS = {"prepare.py", "readme.md"}


def _place_problem(options: PrepareOptions, out: Path) -> str | None:
    """Why `out` must be left alone, or None. What prepare did not write, it never removes."""
    text = user_path(options.source if options.dataset in BUILT_IN else options.dataset)
    place, read = out.resolve(), text.resolve()
    if (options.source or options.dataset not in BUILT_IN) and (
        read.is_relative_to(place) or (read.is_dir() and place.is_relative_to(read))
    ):
        return (
            f"the dataset at {out} and the text at {text} are in each other's way: choose another --out_dir"
        )
    if not out.exists():
        return f"{out} is a broken link: choose another --out_dir" if out.is_symlink() else None
    if not out.is_dir() or out.is_symlink():
        return f"{out} is not a plain folder: choose another --out_dir"
    names = sorted(path.name for path in out.iterdir())
    if "train.bin" in names and MANIFEST not in names:
        return (
            f"{out} holds nanoGPT's files, which need no preparing: train with --data_dir={out}, "
            "or choose another --out_dir"
        )
    ours = {"train.bin", "val.bin", MANIFEST, *TOKENIZER_FILES} if MANIFEST in names else set()
    ours |= NANOGPT_SCRIPTS
    if foreign := [name for name in names if name not in ours and not is_kept_download(out / name)]:
        return f"{out} holds other files ({', '.join(foreign[:3])}): choose another --out_dir"
    if MANIFEST in names and not options.overwrite:
        return f"{out} holds a dataset already: add --overwrite to replace it, or choose another --out_dir"
    return None


def asked_tokenizer(options: PrepareOptions) -> str:
    """The tokenizer as far as it is known without reading: "auto" when the text will decide."""
    return BUILT_IN.get(options.dataset, "auto") if options.tokenizer == "auto" else options.tokenizer
