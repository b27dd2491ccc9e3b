"""The dataset of a planned run: as prepared in its folder, or from a table of common ones."""

from __future__ import annotations

from glassgpt.config import TrainConfig, dataset_folder
from glassgpt.data.manifest import DatasetInfo, read_stored_manifest, usual_bytes_per_token
from glassgpt.data.prepare_options import PrepareOptions, corpus_val_fraction
from glassgpt.errors import UserError

# As `glass prepare` makes them; openwebtext as nanoGPT counts it.
_KNOWN_DATASETS = {
    "shakespeare_char": (1_003_854, 111_540, 65, "char", 1.0),
    "shakespeare": (301_966, 36_059, 50257, "gpt2", 3.3),
    "pylib": (9_400_000, 150_000, 96, "char", 1.0),
    "openwebtext": (9_035_582_198, 4_434_897, 50257, "gpt2", 4.3),
}
# Corpora, about: GPT-2 tokens of both splits together, and bytes of text per token.
_CORPORA = {"fineweb_edu": (9_900_000_000, 4.6), "tinystories": (475_000_000, 4.0)}


def find_dataset_info(config: TrainConfig) -> DatasetInfo:
    """From the prepared folder; else from the table; else assumed to be 10 billion GPT-2 tokens."""
    folder = dataset_folder(config)
    manifest = read_stored_manifest(folder) if folder.is_dir() else None
    if manifest is not None:
        return manifest.info(f"prepared in {folder}")
    files = [folder / "train.bin", folder / "val.bin"]
    if all(file.is_file() for file in files):
        # nanoGPT's: two bytes a token. Its vocabulary is in a pickle, which is not opened here.
        train_tokens, val_tokens = (file.stat().st_size // 2 for file in files)
        if not train_tokens or not val_tokens:
            raise UserError(f"{folder} has an empty split: prepare it again")
        tokenizer, vocab_size = ("char", 65) if (folder / "meta.pkl").is_file() else ("gpt2", 50257)
        bytes_per_token, source = usual_bytes_per_token(tokenizer), f"nanoGPT's folder {folder}"
        return DatasetInfo(
            folder.name, train_tokens, val_tokens, vocab_size, tokenizer, bytes_per_token, source
        )
    name = config.dataset
    if (name in _KNOWN_DATASETS or name in _CORPORA) and not config.data_dir:
        return known_dataset_info(name)
    source = "not prepared here: assumed to be 10 billion GPT-2 tokens"
    return DatasetInfo(name, 10**10, 10**8, 50257, "gpt2", usual_bytes_per_token("gpt2"), source)


def known_dataset_info(name: str) -> DatasetInfo:
    """A dataset of the table, as if `glass prepare` had made it."""
    if name not in _CORPORA:
        return DatasetInfo(name, *_KNOWN_DATASETS[name], source="not prepared here: the usual sizes")
    tokens, bytes_per_token = _CORPORA[name]
    val_fraction = corpus_val_fraction(PrepareOptions(name), round(tokens * bytes_per_token))
    val_tokens = round(tokens * val_fraction)
    source = "not prepared here: about as `glass prepare` makes it"
    return DatasetInfo(name, tokens - val_tokens, val_tokens, 50257, "gpt2", bytes_per_token, source)
