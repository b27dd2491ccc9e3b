"""How fast documents become tokens, against nanoGPT's way to do it, and in how much memory.

    python -m bench.prepare mdn.jsonl.xz --workers 2 --rounds 3

The documents are written once as parquet with FineWeb-Edu's columns. Both sides read that, with the same BPE,
learned here, and end with files of 16-bit ids on disk. nanoGPT's way is its data/openwebtext/prepare.py:
`datasets.map` with `num_proc`, tiktoken's `encode_ordinary` on each document, then a memmap filled in 1024
batches. They take turns, each in a process of its own, and each starts without a cache. Then GlassGPT does
four times the text, to see that its memory stays where it is. The last line is one JSON document.

Needs  pip install datasets, which GlassGPT itself does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassgpt.data.bpe import TOKENIZER_JSON, BytePairTokenizer, train_bpe
from glassgpt.data.tokenizers import load_folder_bpe

VOCABULARY = 50_304
VAL_FRACTION = 0.0005  # nanoGPT's


# --- what both read ---


def write_parquet(source: Path, folder: Path, files: int, times: int) -> int:
    """The documents of a .jsonl.xz in FineWeb-Edu's layout, `times` over. Returns their bytes of text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with lzma.open(source, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    folder.mkdir(parents=True)
    for number in range(files * times):
        part = texts[number % files :: files]
        n = len(part)
        columns = {
            "text": part,
            "id": [f"<urn:uuid:{number:08}-{i:08}>" for i in range(n)],
            "dump": ["CC-MAIN-2024-10"] * n,
            "url": [f"https://example.org/{number}/{i}" for i in range(n)],
            "file_path": ["s3://commoncrawl/crawl-data/CC-MAIN-2024-10/segments/0.warc.gz"] * n,
            "language": ["en"] * n,
            "language_score": [0.97] * n,
            "token_count": [len(text) // 4 for text in part],
            "score": [3.1] * n,
            "int_score": [3] * n,
        }
        pq.write_table(pa.table(columns), folder / f"{number:03}_00000.parquet", row_group_size=1000)
    return times * sum(len(text.encode()) for text in texts)


def learn_tokenizer(source: Path, folder: Path, vocabulary: int) -> None:
    """As a folder that both sides take their table from."""
    folder.mkdir(parents=True)
    with lzma.open(source, "rt", encoding="utf-8") as lines:
        learned = train_bpe((json.loads(line)["text"] for line in lines), vocabulary)
    (folder / TOKENIZER_JSON).write_bytes(learned.files[TOKENIZER_JSON])


# --- the two sides, each in a process of its own ---


def prepare_with_glassgpt(parquet: Path, tokenizer: Path, out: Path, workers: int) -> None:
    from glassgpt.data.prepare import prepare
    from glassgpt.data.prepare_options import PrepareOptions

    options = PrepareOptions(
        str(parquet),
        tokenizer="gpt2",
        tokenizer_files=str(tokenizer),
        out_dir=str(out),
        workers=workers,
        val_fraction=VAL_FRACTION,
    )
    prepare(options, lambda line: None, progress=False)


def prepare_with_nanogpt(parquet: Path, tokenizer: Path, out: Path, workers: int) -> None:
    """data/openwebtext/prepare.py, with another source and another table."""
    import datasets
    import numpy as np

    out.mkdir(parents=True)
    datasets.disable_progress_bars()
    carried = load_folder_bpe("bpe", tokenizer)
    assert isinstance(carried, BytePairTokenizer)
    enc = carried._encoding
    files = sorted(map(str, parquet.glob("*.parquet")))
    dataset = datasets.load_dataset(
        "parquet", data_files=files, cache_dir=str(out / "cache"), num_proc=workers
    )
    split_dataset = dataset["train"].train_test_split(test_size=VAL_FRACTION, seed=2357, shuffle=True)
    split_dataset["val"] = split_dataset.pop("test")

    def process(example: dict[str, Any]) -> dict[str, Any]:
        ids = enc.encode_ordinary(example["text"])
        ids.append(enc.eot_token)
        return {"ids": ids, "len": len(ids)}

    columns = dataset["train"].column_names
    tokenized = split_dataset.map(process, remove_columns=columns, num_proc=workers)
    for split, dset in tokenized.items():
        arr_len = np.sum(dset["len"], dtype=np.uint64)
        arr = np.memmap(out / f"{split}.bin", dtype=np.uint16, mode="w+", shape=(int(arr_len),))
        total_batches = min(1024, len(dset))
        idx = 0
        for batch_idx in range(total_batches):
            batch = dset.shard(num_shards=total_batches, index=batch_idx, contiguous=True).with_format(
                "numpy"
            )
            arr_batch = np.concatenate(batch["ids"])
            arr[idx : idx + len(arr_batch)] = arr_batch
            idx += len(arr_batch)
        arr.flush()
    shutil.rmtree(out / "cache")


PREPARERS = {"glassgpt": prepare_with_glassgpt, "nanogpt": prepare_with_nanogpt}


# --- measuring ---


def measure_preparation(
    side: str, parquet: Path, tokenizer: Path, out: Path, workers: int
) -> dict[str, float]:
    """Seconds from the process's start to its end, tokens it wrote, peak memory of it and its children."""
    import psutil  # type: ignore[import-untyped]

    shutil.rmtree(out, ignore_errors=True)
    words = [side, str(parquet), str(tokenizer), str(out), str(workers)]
    began = time.monotonic()
    process = psutil.Popen(
        [sys.executable, "-m", "bench.prepare", "--side", *words], stdout=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = [process, *process.children(recursive=True)]
            # Private pages: those of mapped files are the disk's cache, which nobody has to have.
            peak = max(peak, sum(one.memory_info().rss - one.memory_info().shared for one in tree))
        time.sleep(0.05)
    seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"{side} failed")
    tokens = sum(path.stat().st_size for path in out.rglob("*.bin")) // 2
    return {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds, "peak_bytes": peak}


def compare(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    tokenizer, once, more = scratch / "tokenizer", scratch / "once", scratch / "more"
    learn_tokenizer(options.source, tokenizer, options.vocabulary)
    text_bytes = write_parquet(options.source, once, options.files, 1)
    write_parquet(options.source, more, options.files, options.times)
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in PREPARERS}
    for number in range(options.rounds):
        order: Sequence[str] = list(PREPARERS) if number % 2 == 0 else list(reversed(PREPARERS))
        for side in order:
            rounds[side].append(measure_preparation(side, once, tokenizer, scratch / side, options.workers))
            print(f"{side:9} {rounds[side][-1]['tokens_per_s']:12,.0f} tokens/s", flush=True)
    large = measure_preparation("glassgpt", more, tokenizer, scratch / "glassgpt", options.workers)
    pairs = zip(rounds["glassgpt"], rounds["nanogpt"], strict=True)
    ratios = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in pairs]
    tokens = {side: {row["tokens"] for row in rows} for side, rows in rounds.items()}
    return {
        "workers": options.workers,
        "text_bytes": text_bytes,
        "same_tokens": tokens["glassgpt"] == tokens["nanogpt"] and len(tokens["nanogpt"]) == 1,
        "tokens_per_s": {
            side: statistics.median(row["tokens_per_s"] for row in rows) for side, rows in rounds.items()
        },
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "peak_bytes": {
            side: statistics.median(row["peak_bytes"] for row in rows) for side, rows in rounds.items()
        },
        f"peak_bytes_at_{options.times}x": large["peak_bytes"],
        f"tokens_per_s_at_{options.times}x": large["tokens_per_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, nargs="?", help="documents: a .jsonl.xz with a field text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=4, help="how much more text the last run gets")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument(
        "--scratch", type=Path, help="a folder for what is written; a temporary one if not given"
    )
    parser.add_argument("--side", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side, parquet, tokenizer, out, workers = options.side
        PREPARERS[side](Path(parquet), Path(tokenizer), Path(out), int(workers))
        return
    if options.source is None:
        parser.error("name the documents")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        print(json.dumps(compare(options, Path(scratch))))


if __name__ == "__main__":
    main()
