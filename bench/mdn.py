"""The larger text of the benchmarks: 14,593 documents about the web, as tokens.

    python -m bench.mdn mdn.jsonl.xz data/mdn

One JSON document per line, with its `text`. The tokenizer is learned here, from the training documents, and
has as many tokens as nanoGPT's model has by default, so that both sides train the very same model.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from pathlib import Path

from glassgpt.data.manifest import MANIFEST_FILE
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions

TOKENIZER = "bpe:50304"
VAL_FRACTION = 0.05


def prepare_mdn(source: Path, out: Path) -> Path:
    """A folder that is prepared already is taken as it is; the text is prepared in `out`."""
    if (source / MANIFEST_FILE).is_file():
        return source
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "mdn")
        folder.mkdir()
        with lzma.open(source, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                (folder / f"{number:06}.md").write_bytes(json.loads(line)["text"].encode())
        options = PrepareOptions(
            str(folder), tokenizer=TOKENIZER, val_fraction=VAL_FRACTION, out_dir=str(out)
        )
        prepare(options, progress=False)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    prepare_mdn(options.source, options.out)


if __name__ == "__main__":
    main()
