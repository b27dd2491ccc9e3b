"""A run's tokenizer is identified by its table, not by its name, and no other takes its place."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from tiny import MakeConfig, resume

from glassgpt.data.bpe import gpt2_tokenizer, train_bpe
from glassgpt.data.dataset import open_dataset
from glassgpt.data.manifest import write_manifest
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.data.tokenizers import load_tokenizer
from glassgpt.errors import UserError
from glassgpt.training.session import train
from glassgpt.training.weight_compatibility import check_compatible
from glassgpt.training.weight_source import find_tokenizer, load_init_from

TEXT = "Whoever lives in a glass house learns to sweep, and to draw the curtains at night.\n" * 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`own` and `other`: different tables of the same size and name. `renamed`: `own` by another name."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(TEXT)
    for name, learned_from in (("own", TEXT), ("other", TEXT.swapcase())):
        files = folder / f"{name}_files"
        files.mkdir()
        for file, content in gpt2_tokenizer(train_bpe([learned_from], 290).ranks).files.items():
            (files / file).write_bytes(content)
        options = PrepareOptions(
            str(folder / "text.txt"),
            tokenizer="gpt2",
            tokenizer_files=str(files),
            out_dir=str(folder / name),
        )
        prepare(options, print_line=lambda line: None)
    shutil.copytree(folder / "own", folder / "renamed")
    (folder / "renamed" / "gpt2.tiktoken").unlink()
    content = dump_tokenizer(load_tokenizer(folder / "own"))
    (folder / "renamed" / "tokenizer.json").write_bytes(content)
    manifest = open_dataset(folder / "own").manifest
    sha256 = {name: digest for name, digest in manifest.sha256.items() if name.endswith(".bin")}
    sha256["tokenizer.json"] = hashlib.sha256(content).hexdigest()
    write_manifest(folder / "renamed", dataclasses.replace(manifest, tokenizer="bpe:290", sha256=sha256))
    return folder


def run_files(run: str) -> dict[str, bytes]:
    """The files that a refused start must not change."""
    paths = [Path(run) / "config.toml", Path(run) / "journal.jsonl", *(Path(run) / "tokenizer").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_another_tokenizer_of_the_same_name_is_refused(tiny: MakeConfig, data: Path) -> None:
    config = tiny(data_dir=str(data / "own"), max_iters=2)
    train(config)
    before = run_files(config.out_dir)
    with pytest.raises(UserError, match="numbers its tokens differently"):
        resume(config, data_dir=str(data / "other"), max_iters=4)
    with pytest.raises(UserError, match="numbers its tokens differently"):
        train(tiny("next", init_from=config.out_dir, data_dir=str(data / "other")))
    loaded = load_init_from(config.out_dir)
    with pytest.raises(UserError, match="another tokenizer"):
        find_tokenizer(loaded, str(data / "other"))
    assert run_files(config.out_dir) == before

    ids = load_tokenizer(data / "own").encode(TEXT).tolist()
    assert find_tokenizer(loaded, str(data / "renamed")).encode(TEXT).tolist() == ids
    assert resume(config, data_dir=str(data / "renamed"), max_iters=4).iter == 4
    assert all(run_files(config.out_dir)[name] == before[name] for name in ("gpt2.tiktoken", "manifest.json"))
    following = tiny("next", init_from=config.out_dir, data_dir=str(data / "renamed"), max_iters=6)
    assert train(following).iter == 6


def test_a_run_from_before_digests_is_known_by_its_files(tiny: MakeConfig, data: Path) -> None:
    config = tiny(data_dir=str(data / "own"), max_iters=1)
    train(config)
    loaded = load_init_from(config.out_dir)
    assert len(loaded.state["tokenizer"]) == 64
    # As older versions wrote it, which left GPT-2's table out.
    older = dataclasses.replace(loaded, state={**loaded.state, "tokenizer": json.dumps(["gpt2", None, {}])})
    for name in ("own", "renamed"):
        check_compatible(config, open_dataset(data / name), older)
    with pytest.raises(UserError, match="numbers its tokens differently"):
        check_compatible(config, open_dataset(data / "other"), older)
    # Where its files are gone, the names are all that is known.
    shutil.rmtree(Path(config.out_dir) / "tokenizer")
    check_compatible(config, open_dataset(data / "own"), older)
    with pytest.raises(UserError, match="numbers its tokens differently"):
        check_compatible(config, open_dataset(data / "renamed"), older)


def test_a_run_without_a_checkpoint_keeps_its_tokenizer_too(tiny: MakeConfig, data: Path) -> None:
    config = tiny(data_dir=str(data / "own"), max_iters=1)
    train(config)
    shutil.rmtree(Path(config.out_dir) / "checkpoints")
    before = run_files(config.out_dir)
    with pytest.raises(UserError, match="another tokenizer"):
        resume(config, data_dir=str(data / "other"))
    assert run_files(config.out_dir) == before
    # One that was cut off is written again.
    (Path(config.out_dir) / "tokenizer" / "gpt2.tiktoken").write_bytes(b"half")
    resume(config)
    assert run_files(config.out_dir)["gpt2.tiktoken"] == before["gpt2.tiktoken"]
