"""Starting from GPT-2's weights: with the loss that transformers computes, and on their tokens only."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from little_gpt2 import transformers_loss, write_gpt2
from tiny import (
    MakeConfig,
    choices,
    file_contents,
    learner_before_first_update,
    records,
    run_evals,
    tensor_bytes,
    weights,
)

from glassgpt.data.bpe import train_bpe
from glassgpt.data.bpe_table import bytes_to_unicode
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizers import load_tokenizer
from glassgpt.errors import UserError
from glassgpt.training.session import train
from glassgpt.training.weight_source import find_tokenizer, load_init_from

TEXT = "Glass houses have thin walls; whoever lives in one learns to sweep. कांच का घर, بيت من زجاج 🦊\n" * 60
VOCABULARY, CONTEXT = 290, 16


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 2, "n_head": 3}
    return write_gpt2(tmp_path_factory.mktemp("hf") / "little-gpt2", TEXT, shape)


@pytest.fixture(scope="module")
def gpt2_data(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2_data")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    options = PrepareOptions(
        str(folder / "text.txt"), tokenizer="gpt2", tokenizer_files=str(gpt2), out_dir=str(folder / "text")
    )
    prepare(options, print_line=lambda line: None)
    return folder / "text"


def test_pretrained_weights_begin_with_the_loss_that_transformers_computes(
    tiny: MakeConfig, gpt2: Path, gpt2_data: Path
) -> None:
    before = file_contents(str(gpt2))
    # The weights decide, but for the last.
    shape = {"n_layer": 7, "n_head": 7, "n_embd": 7, "block_size": CONTEXT}
    config = tiny(init_from=str(gpt2), data_dir=str(gpt2_data), max_iters=12, eval_interval=12, **shape)
    run = train(config)
    assert (run.iter, run.reason) == (12, "finished")
    tokens = torch.from_numpy(open_dataset(gpt2_data).tokens("val").astype("int64"))
    evals = run_evals(config.out_dir)
    assert evals[0, "val"] == pytest.approx(transformers_loss(gpt2, tokens, CONTEXT), abs=1e-5)
    assert evals[12, "val"] < evals[0, "val"] - 0.5
    model = records(config.out_dir, "run")[0]["model"]
    assert (model["vocab_size"], model["n_layer"], model["n_head"], model["n_embd"]) == (VOCABULARY, 2, 3, 24)
    assert (model["bias"], model["activation"]) == (True, "gelu_new")
    assert choices(config.out_dir)["init_from"] == (str(gpt2), "weights only: starts at update 0")
    assert file_contents(str(gpt2)) == before


def test_pretrained_weights_in_a_smaller_context(tiny: MakeConfig, gpt2: Path, gpt2_data: Path) -> None:
    config = tiny(init_from=str(gpt2), data_dir=str(gpt2_data), block_size=8)
    learner = learner_before_first_update(config)
    whole = load_init_from(str(gpt2)).weights["transformer.wpe.weight"]
    assert tensor_bytes(weights(learner)["transformer.wpe.weight"]) == tensor_bytes(whole[:8])


def test_pretrained_weights_have_no_optimizer_and_need_their_tokens(
    tiny: MakeConfig, gpt2: Path, gpt2_data: Path, tiny_data: Path, tmp_path: Path
) -> None:
    config = tiny(init_from=str(gpt2), data_dir=str(gpt2_data), init_state="all")
    with pytest.raises(UserError, match=r"--init_state=all is not possible: .* has no optimizer state"):
        train(config)
    with pytest.raises(UserError, match=r"has a vocabulary of 16, .* of 290"):
        train(replace(config, init_state="auto", data_dir=str(tiny_data)))
    for tokenizer, files in ((f"bpe:{VOCABULARY}", ""), ("gpt2", "others")):
        bpe = prepared_otherwise(tmp_path, tokenizer, files)
        with pytest.raises(
            UserError, match="needs a dataset prepared with --tokenizer=gpt2 --tokenizer_files="
        ):
            train(replace(config, init_state="auto", data_dir=str(bpe)))
    assert not Path(config.out_dir).exists()


def prepared_otherwise(folder: Path, tokenizer: str, files: str) -> Path:
    """A dataset with as many tokens in its vocabulary, but other ones."""
    other = TEXT.swapcase()
    (folder / "text.txt").write_text(other, encoding="utf-8")
    if files:
        (folder / files).mkdir()
        for name, content in train_bpe([other], VOCABULARY).files.items():
            (folder / files / name).write_bytes(content)
    options = PrepareOptions(
        str(folder / "text.txt"),
        tokenizer=tokenizer,
        tokenizer_files=str(folder / files) if files else "",
        out_dir=str(folder / tokenizer.partition(":")[0]),
    )
    prepare(options, print_line=lambda line: None)
    return folder / tokenizer.partition(":")[0]


def test_pretrained_weights_take_the_requested_dropout(tiny: MakeConfig, gpt2: Path, gpt2_data: Path) -> None:
    """The file's own (0.1 by default, as OpenAI had it) is for OpenAI's training."""
    for dropout in (0.0, 0.3):
        config = tiny(
            init_from=str(gpt2), data_dir=str(gpt2_data), block_size=8, dropout=dropout, max_iters=1,
            out_dir=str(gpt2.parent / f"dropout-{dropout}"),
        )  # fmt: skip
        train(config)
        assert records(config.out_dir, "run")[0]["model"]["dropout"] == dropout


# --- tokenizers of any numbering ---


def new_from_iterator(folder: Path) -> Path:
    """What `train_new_from_iterator` makes of GPT-2's tokenizer: <|endoftext|> is id 0."""
    transformers = pytest.importorskip("transformers")
    alphabet = {character: i for i, character in enumerate(bytes_to_unicode())}
    base = transformers.GPT2Tokenizer(vocab=alphabet | {"<|endoftext|>": 256}, merges=[])
    new = base.train_new_from_iterator([TEXT], VOCABULARY)
    assert new.convert_tokens_to_ids("<|endoftext|>") == 0
    new.save_pretrained(folder)
    return folder


def two_files(folder: Path, one: Path) -> Path:
    """The same as vocab.json and merges.txt."""
    folder.mkdir()
    model = json.loads((one / "tokenizer.json").read_bytes())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{first} {second}\n" for first, second in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    return folder


def renumbered(folder: Path, one: Path) -> Path:
    """The same with its ids shuffled and with holes between them, and with more added tokens."""
    folder.mkdir()
    document = json.loads((one / "tokenizer.json").read_bytes())
    vocab = document["model"]["vocab"] | {"<pad>": 0}
    # The library gives an added token that is not in the vocabulary this id, whatever the file says.
    new_id = len(vocab)
    ids = random.Random(1).sample([id for id in range(VOCABULARY + 40) if id != new_id], len(vocab))
    document["model"]["vocab"] = dict(zip(vocab, ids, strict=True))
    end = document["added_tokens"][0]
    others = [("<pad>", vocab["<pad>"], True), ("glass", new_id, False)]
    document["added_tokens"] += [end | {"content": c, "id": i, "special": s} for c, i, s in others]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def test_any_numbering_of_a_bpe_has_the_loss_that_transformers_computes(
    tiny: MakeConfig, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    one = new_from_iterator(tmp_path / "new")
    folders = [one, two_files(tmp_path / "two", one), renumbered(tmp_path / "renumbered", one)]
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    for folder in folders:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            shape = {"n_positions": CONTEXT, "n_embd": 24, "n_layer": 2, "n_head": 3}
            config = transformers.GPT2Config(vocab_size=VOCABULARY + 50, initializer_range=0.3, **shape)
            transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        data = tmp_path / f"data-{folder.name}"
        options = PrepareOptions(
            str(tmp_path / "text.txt"), tokenizer="gpt2", tokenizer_files=str(folder), out_dir=str(data)
        )
        prepare(options, print_line=lambda line: None)
        dataset = open_dataset(data)
        ids = dataset.tokens("val").astype("int64")
        if folder.name == "two":
            reference = transformers.GPT2Tokenizer.from_pretrained(folder)
        else:
            reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        assert reference(load_tokenizer(data).decode(ids)).input_ids == ids.tolist()
        settings = tiny(
            folder.name + "-run", init_from=str(folder), data_dir=str(data), block_size=CONTEXT, max_iters=1
        )
        train(settings)
        expected = transformers_loss(folder, torch.from_numpy(ids), CONTEXT)
        assert run_evals(settings.out_dir)[0, "val"] == pytest.approx(expected, abs=1e-5)
        assert (
            find_tokenizer(load_init_from(settings.out_dir)).encode(TEXT).tolist()
            == reference(TEXT).input_ids
        )


def test_a_tokenizer_that_cannot_be_read_is_not_taken_for_none(
    tiny: MakeConfig, gpt2: Path, gpt2_data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(gpt2, folder)
    config = tiny(init_from=str(folder), data_dir=str(gpt2_data), block_size=CONTEXT)
    document = json.loads((folder / "tokenizer.json").read_bytes())
    for wrong in ({"normalizer": {"type": "NFC"}}, {"model": {"type": "Unigram", "vocab": []}}):
        (folder / "tokenizer.json").write_text(json.dumps(document | wrong))
        with pytest.raises(UserError, match=r"--init_from .*(normalizer|Unigram)"):
            train(config)
    assert not Path(config.out_dir).exists()
