"""The options of `glass prepare`, and their problems.

    glass prepare my.txt --tokenizer bpe:1024 --val_fraction 0.05 --out_dir data/mine

The comment above each option is its line in `glass prepare --help`.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from glassgpt.data.corpus import is_corpus, is_pattern
from glassgpt.data.dataset import BUILT_IN
from glassgpt.data.document_readers import is_document_file
from glassgpt.data.hub import parse_hub_dataset
from glassgpt.data.manifest import LADDER_FILE, MANIFEST_FILE, TOKENIZER_FILES, split_of_file
from glassgpt.data.prepare_resume import PREPARE_STATE_FILE
from glassgpt.data.sources import dataset_problem, is_cached_download, is_special_file
from glassgpt.data.tokenizers import tokenizer_problem
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path, writable_problem

_TARGET_VAL_BYTES = 20_000_000
# Files in nanoGPT's data/NAME folders; prepare works beside them and keeps them.
NANOGPT_SCRIPTS = {"prepare.py", "readme.md"}
_CORPUS_OPTIONS = ("text_column", "dedup", "workers", "shard_tokens")


@dataclass(frozen=True)
class PrepareOptions:
    """Turn text into tokens: a file, a folder, a pattern, or a dataset on Hugging Face."""

    # What to read: pylib, shakespeare_char, shakespeare, fineweb_edu, openwebtext, tinystories, any dataset
    # on Hugging Face (owner/name or owner/name:subset), or a file, folder or 'pattern*' of your own.
    dataset: str
    # A local copy of a dataset that is otherwise downloaded: a file, or, except for shakespeare*, a folder.
    source: str = ""
    # char, byte, gpt2, bpe:N (N tokens trained on the text), or auto, which prints its choice and the reason.
    tokenizer: str = "auto"
    # A folder with GPT-2's tokenizer files, for --tokenizer gpt2 without a network.
    tokenizer_files: str = ""
    # Fraction of the text for the validation split. none: 0.1, as nanoGPT; for pylib 0.03; for a corpus about
    # 20 MB, but from 0.0005 to 0.1.
    val_fraction: float | None = None
    # Folder of the dataset. Empty: data/<name>.
    out_dir: str = ""
    # Replace an existing dataset. Without it, nothing is ever overwritten.
    overwrite: bool = False

    # --- corpora: parquet, JSON lines, patterns, Hugging Face ---

    # The column of a parquet file, or the field of a line of JSON, that has the text.
    text_column: str = "text"
    # Leave out exact duplicates of earlier documents. Takes 8 bytes of memory per document.
    dedup: bool = False
    # Worker processes that encode. none: one per core. The result is the same for any number.
    workers: int | None = None
    # Tokens per shard file. A preparation that was stopped resumes after the last full shard.
    shard_tokens: int = 100_000_000


def out_directory(options: PrepareOptions) -> Path:
    if options.out_dir:
        path = expand_user_path(options.out_dir)
        return path if path.name not in ("", "..") else path.resolve()  # "." has no name to rename to
    return Path("data", dataset_name(options))


def dataset_name(options: PrepareOptions) -> str:
    """The default name of the dataset."""
    name = options.dataset
    if name in BUILT_IN:
        return name
    path = expand_user_path(name).resolve()
    if path.is_dir():
        return path.name
    if not path.exists() and is_pattern(name):
        return next(parent.name for parent in path.parents if not is_pattern(str(parent)))
    if not path.exists() and (on_hub := parse_hub_dataset(name)):
        return re.sub(r"[^\w.-]+", "-", f"{on_hub.repository.split('/')[1]}-{on_hub.subset}").strip("-")
    return path.name.split(".")[0] if is_document_file(path.name) else path.stem


def val_fraction(options: PrepareOptions) -> float:
    """The validation share of a text. Every run evaluates that split as a whole at its end: keep it small."""
    if options.val_fraction is not None:
        return options.val_fraction
    return 0.03 if options.dataset == "pylib" else 0.1


def corpus_val_fraction(options: PrepareOptions, size_bytes: int) -> float:
    """The validation share of a corpus: enough text to measure a loss well. `size_bytes`: on disk."""
    if options.val_fraction is not None:
        return options.val_fraction
    return min(max(_TARGET_VAL_BYTES / max(1, size_bytes), 0.0005), 0.1)


def check_options(options: PrepareOptions, out: Path) -> None:
    """Raises one UserError with all problems that can be known before any work."""
    reads_corpus = is_corpus(options.dataset, options.dedup)
    problems: list[str | None] = []
    if not reads_corpus or is_special_file(expand_user_path(options.dataset)):
        problems.append(dataset_problem(options.dataset))
    problems.append(tokenizer_problem(options.tokenizer))
    problems += _input_problems(options, reads_corpus)
    if options.val_fraction is not None and not 0 < options.val_fraction < 1:
        problems.append(f"--val_fraction {options.val_fraction} is not between 0 and 1: use 0.1")
    if options.tokenizer_files and requested_tokenizer(options)[0] != "gpt2":
        problems.append("--tokenizer_files is only read by gpt2: add --tokenizer gpt2, or leave it out")
    elif options.tokenizer_files and not expand_user_path(options.tokenizer_files).is_dir():
        problems.append(f"--tokenizer_files {options.tokenizer_files} is not a folder: give one")
    problems.append(_out_dir_problem(options, out) or writable_problem(out))
    if actual_problems := [problem for problem in problems if problem]:
        raise UserError(actual_problems)


def check_out_dir(options: PrepareOptions, out: Path) -> None:
    """Called again right before the dataset is renamed to `out`, which may have changed meanwhile."""
    if problem := _out_dir_problem(options, out):
        raise UserError(problem)


def _input_problems(options: PrepareOptions, reads_corpus: bool) -> list[str]:
    """Problems with --source, and with options that only a corpus or only a text has."""
    problems, source = [], options.source
    if not reads_corpus:
        if source and options.dataset not in ("shakespeare", "shakespeare_char"):
            problems.append(f"--source is for shakespeare: to read a file, run  glass prepare {source}")
        elif source and not expand_user_path(source).is_file():
            problems.append(f"--source {source} is not a file: give a text file")
        defaults = PrepareOptions("")
        return problems + [
            f"--{name} is for documents in bulk (parquet, JSON lines, a pattern, Hugging Face): leave it out"
            for name in _CORPUS_OPTIONS
            if getattr(options, name) != getattr(defaults, name)
        ]
    if source and not (is_pattern(source) or expand_user_path(source).exists()):
        problems.append(f"--source {source} is not there: give a file, a folder or a pattern")
    elif source and expand_user_path(options.dataset).exists():
        problems.append(f"--source is for what is downloaded: to read files, run  glass prepare {source}")
    if options.tokenizer == "char":
        problems.append("--tokenizer char has to know every character beforehand: use byte or bpe:N")
    return problems + [
        f"--{name} {value} is not at least 1"
        for name in ("workers", "shard_tokens")
        if (value := getattr(options, name)) is not None and value < 1
    ]


def copy_nanogpt_scripts(out: Path, work: Path) -> None:
    """Copies nanoGPT's scripts from the folder that `work` will replace."""
    for script in NANOGPT_SCRIPTS:
        if (out / script).is_file():
            shutil.copy2(out / script, work)


def _out_dir_problem(options: PrepareOptions, out: Path) -> str | None:
    """Why the dataset cannot be written to `out`, or None. Files of others are never removed."""
    text = expand_user_path(options.source or options.dataset)
    out_path, text_path = out.resolve(), text.resolve()
    if (options.source or options.dataset not in BUILT_IN) and (
        text_path.is_relative_to(out_path) or (text_path.is_dir() and out_path.is_relative_to(text_path))
    ):
        return (
            f"the dataset at {out} and the text at {text} are in each other's way: choose another --out_dir"
        )
    if not out.exists():
        return f"{out} is a broken link: choose another --out_dir" if out.is_symlink() else None
    if not out.is_dir() or out.is_symlink():
        return f"{out} is not a plain folder: choose another --out_dir"
    names = sorted(path.name for path in out.iterdir())
    if "train.bin" in names and MANIFEST_FILE not in names:
        return (
            f"{out} holds nanoGPT's files, which need no preparing: train with --data_dir={out}, "
            "or choose another --out_dir"
        )
    own_names = set(NANOGPT_SCRIPTS)
    if MANIFEST_FILE in names:
        # The state file is left by a preparation that was killed right after its last rename.
        own_names |= {MANIFEST_FILE, LADDER_FILE, PREPARE_STATE_FILE, *TOKENIZER_FILES}
        own_names |= set(filter(split_of_file, names))
    if foreign := [name for name in names if name not in own_names and not is_cached_download(out / name)]:
        return f"{out} holds other files ({', '.join(foreign[:3])}): choose another --out_dir"
    if MANIFEST_FILE in names and not options.overwrite:
        return f"{out} holds a dataset already: add --overwrite to replace it, or choose another --out_dir"
    return None


def requested_tokenizer(options: PrepareOptions) -> tuple[str, str]:
    """The tokenizer as far as it is known before reading ("auto": it depends on the text), and the reason."""
    if options.tokenizer != "auto":
        return options.tokenizer, "as asked"
    return BUILT_IN.get(options.dataset, "auto"), f"the usual one for {options.dataset}"
