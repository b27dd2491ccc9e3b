"""Weights of others that write: nanoGPT's checkpoints, GPT-2's folders, and their tokenizers."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import SAMPLE_OPTIONS, sample_texts, write_gpt2
from small_runs import LINE, prepare_dataset, train_run

from glassgpt.cli import main
from glassgpt.data.tokenizers import CharTokenizer
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.sample.sampler import load_sampler
from glassgpt.sanitize import sanitize_text
from glassgpt.training import weight_source

# --- nanoGPT's ---

CHARACTERS = "".join(sorted(set(LINE)))


def write_ckpt(folder: Path, vocab_size: int = len(CHARACTERS), dataset: str = "theirs") -> GPT:
    """ckpt.pt as nanoGPT leaves it."""
    shape = GPTConfig(vocab_size, block_size=8, n_layer=1, n_head=2, n_embd=8)
    names = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size", "dropout")
    torch.manual_seed(1)
    model = GPT(shape).eval()
    content: dict[str, Any] = {
        "model": model.state_dict(),
        "model_args": {name: getattr(shape, name) for name in names},
    }
    content |= {"iter_num": 7, "best_val_loss": 1.5}
    folder.mkdir(parents=True)
    torch.save(content | {"config": {"dataset": dataset} if dataset else {}}, folder / "ckpt.pt")
    return model


def write_meta(folder: Path, meta: dict[str, Any] | None = None) -> None:
    folder.mkdir(parents=True)
    itos = dict(enumerate(CHARACTERS))
    stoi = {char: number for number, char in itos.items()}
    plain = {"vocab_size": len(itos), "itos": itos, "stoi": stoi}
    (folder / "meta.pkl").write_bytes(pickle.dumps(plain if meta is None else meta))


@pytest.mark.parametrize("place", ["data/theirs", "../data/theirs", "elsewhere"])
@pytest.mark.parametrize("with_tokens", [False, True])
def test_nanogpts_checkpoint_writes_with_the_characters_of_its_dataset(
    here: Path, monkeypatch: pytest.MonkeyPatch, place: str, with_tokens: bool
) -> None:
    model = write_ckpt(here / "nano" / "out")
    (here / "nano" / "work").mkdir()
    monkeypatch.chdir(here / "nano" if place != "../data/theirs" else here / "nano" / "work")
    write_meta(Path(place))
    if with_tokens:
        for split in ("train", "val"):
            np.arange(9, dtype=np.uint16).tofile(Path(place, f"{split}.bin"))
    options = replace(SAMPLE_OPTIONS, data_dir=place if place == "elsewhere" else "")
    for spec in (here / "nano/out", here / "nano/out/ckpt.pt"):
        sampler = load_sampler(str(spec), options)
        assert sampler.tokenizer == CharTokenizer(CHARACTERS)
        assert (sampler.checkpoint.iter, sampler.checkpoint.val_loss) == (7, 1.5)
        tokens = torch.tensor([sampler.encode("glass")])
        assert torch.equal(sampler.model(tokens), model(tokens))
        assert set("".join(sample_texts(sampler, sampler.encode("glass"), options))) <= set(CHARACTERS)


def test_nanogpts_checkpoint_without_its_characters_asks_for_them(here: Path) -> None:
    write_ckpt(here / "out")
    with pytest.raises(
        UserError, match=r"ckpt\.pt does not say which .* --data_dir=FOLDER \(data/theirs is not"
    ):
        load_sampler("out", SAMPLE_OPTIONS)
    with pytest.raises(UserError, match="no dataset at nothing"):
        load_sampler("out", replace(SAMPLE_OPTIONS, data_dir="nothing"))
    write_ckpt(here / "out2", dataset="")
    with pytest.raises(UserError, match=r"\(data/DATASET is not there\)"):
        load_sampler("out2", SAMPLE_OPTIONS)


def test_characters_of_another_dataset_are_refused(here: Path) -> None:
    write_ckpt(here / "out")
    itos = dict(enumerate("abc"))
    write_meta(here / "data/theirs", {"vocab_size": 3, "itos": itos, "stoi": {c: i for i, c in itos.items()}})
    with pytest.raises(UserError, match=rf"ckpt\.pt has {len(CHARACTERS)} tokens, but the tokenizer has 3"):
        load_sampler("out", SAMPLE_OPTIONS)
    run_dir = train_run(here / "runs/char", prepare_dataset(here, "char", "char"))
    with pytest.raises(UserError, match="another tokenizer than this char: give the folder of the dataset"):
        load_sampler(str(run_dir), replace(SAMPLE_OPTIONS, data_dir="data/theirs"))


def test_where_only_the_ids_are_known_samples_are_ids(here: Path) -> None:
    write_ckpt(here / "out")
    write_meta(here / "data/theirs", {"vocab_size": len(CHARACTERS)})
    sampler = load_sampler("out", SAMPLE_OPTIONS)
    (text, *_) = sample_texts(sampler, sampler.encode(""), SAMPLE_OPTIONS)
    assert len(text.split()) == 40
    assert max(map(int, text.split())) < len(CHARACTERS)
    prompt = sampler.encode("12 5")
    assert prompt == [12, 5]
    assert sampler.visible_prompt(prompt, "12 5") == "12 5 ", "the next id does not run into it"


def test_nanogpts_gpt2_tokens_are_those_of_tiktoken(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ckpt(here / "out", vocab_size=50304)
    table = {bytes([byte]): byte for byte in range(256)} | {b"%d," % i: i for i in range(256, 50256)}
    monkeypatch.setattr(weight_source, "download_gpt2_ranks", lambda fix: table)
    # As a clone of nanoGPT's repository has it, where nothing was prepared.
    Path("data/theirs").mkdir(parents=True)
    Path("data/theirs/prepare.py").write_text("")
    sampler = load_sampler("out", SAMPLE_OPTIONS)
    assert (sampler.tokenizer.name, sampler.tokenizer.vocab_size) == ("gpt2", 50257)
    (text, *_) = sample_texts(sampler, sampler.encode("a"), SAMPLE_OPTIONS)
    assert len(text.split(",")) > 30

    def fail(fix: str) -> None:
        raise UserError(fix)

    monkeypatch.setattr(weight_source, "download_gpt2_ranks", fail)
    with pytest.raises(UserError, match="connect to the network once"):
        load_sampler("out", SAMPLE_OPTIONS)


# --- GPT-2's ---


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("hf") / "little-gpt2")


def test_greedy_text_of_a_gpt2_folder_is_that_of_transformers(gpt2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(gpt2 / "tokenizer.json"))
    sampler = load_sampler(str(gpt2), SAMPLE_OPTIONS)
    assert (sampler.checkpoint.description, sampler.checkpoint.iter) == (str(gpt2), None)
    for prompt in ("glass, ", "कांच का", "<|endoftext|>"):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert sampler.encode(prompt) == ids[0].tolist()
        count = 32 - ids.shape[1]
        tokens = model.generate(ids, do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0)
        greedy = replace(SAMPLE_OPTIONS, temperature=0, max_new_tokens=count, num_samples=1)
        assert sample_texts(sampler, sampler.encode(prompt), greedy) == [
            tokenizer.decode(tokens[0, ids.shape[1] :])
        ]


def test_a_gpt2_folder_is_sampled_by_its_path(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(SAMPLE_OPTIONS, num_samples=1, max_new_tokens=9, temperature=0)
    sampler = load_sampler(str(gpt2), options)
    flags = ["--num_samples=1", "--max_new_tokens=9", "--temperature=0", "--start=glass,", "--device=cpu"]
    assert main(["sample", f"--init_from={gpt2}", *flags]) == 0
    captured = capsys.readouterr()
    (text,) = sample_texts(sampler, sampler.encode("glass,"), options)
    assert captured.out == f"glass,{sanitize_text(text)}\n---------------\n"
    assert captured.err.startswith(
        f"model         {gpt2}, {sampler.model.parameter_count() / 1000:.3g}k parameters\n"
    )


def test_a_gpt2_folder_without_its_tokenizer_says_what_is_missing(gpt2: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((gpt2 / name).read_bytes())
    with pytest.raises(UserError, match=r"has no tokenizer: it needs .*merges\.txt"):
        load_sampler(str(tmp_path), SAMPLE_OPTIONS)
