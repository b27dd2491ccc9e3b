"""A model that writes: which one is meant, with which tokenizer, and that its text is what its tokens say."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import CONTEXT, LINE, prepared, trained

from glassgpt.cli import main
from glassgpt.data.tokenizers import (
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    load_tokenizer,
    train_bpe,
)
from glassgpt.errors import UserError
from glassgpt.harmless import harmless
from glassgpt.model.draws import Draws
from glassgpt.model.generate import generate_samples
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.sample import writer as writers
from glassgpt.sample.options import SampleOptions
from glassgpt.sample.writer import Writer, find_source, open_writer

SOME = SampleOptions(num_samples=4, max_new_tokens=40, top_k=None, temperature=1.5, seed=3, device="cpu")
KINDS = {"char": "char", "byte": "byte", "bpe": "bpe:300"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/char, runs/byte and runs/bpe."""
    folder = tmp_path_factory.mktemp("runs")
    for name, tokenizer in KINDS.items():
        arch = "modern" if name == "byte" else "gpt2"
        trained(folder / "runs" / name, prepared(folder, name, tokenizer), arch=arch)
    return folder


def samples_of(writer: Writer, prompt: list[int], options: SampleOptions) -> list[list[str]]:
    """The pieces of each sample."""
    samples: list[list[str]] = []
    group: list[list[str]] = []
    for pieces in writer.write(prompt, options):
        if pieces:
            group.append(pieces)
        else:
            samples += [list(sample) for sample in zip(*group, strict=True)]
            group = []
    assert group == []
    return samples


def texts(writer: Writer, prompt: list[int], options: SampleOptions) -> list[str]:
    return ["".join(pieces) for pieces in samples_of(writer, prompt, options)]


# --- text from tokens ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_together_are_the_text_of_the_tokens(root: Path, kind: str) -> None:
    writer = open_writer(str(root / "runs" / kind), SOME)
    prompt = writer.encode("glass, कांच")
    draws = Draws(writer.tokenizer.vocab_size, temperature=1.5, top_k=None, seed=3)
    steps = generate_samples(writer.model, prompt, 40, draws, samples=range(4))
    tokens = list(zip(*steps, strict=True))
    samples = samples_of(writer, prompt, SOME)
    assert ["".join(pieces) for pieces in samples] == [writer.tokenizer.decode(ids) for ids in tokens]
    # One piece per token, and at the end what was left of a character that never became whole.
    assert {len(pieces) for pieces in samples} == {41}
    assert len(set(tokens)) == 4


class Dictated:
    """In place of a model's choice: these tokens, in every sample."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def __call__(self, *arguments: Any, samples: range, **options: Any) -> Iterator[list[int]]:
        return ([token] * len(samples) for token in self.tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_shows_when_it_is_whole(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    writer = open_writer(str(root / "runs" / kind), SOME)
    text = LINE if kind == "char" else LINE + "ज़ट ڤ 🐸☃"  # the latter are not among what was learned
    tokens = [int(token) for token in writer.tokenizer.encode(text)]
    shown_alone = [writer.tokenizer.decode([token]) for token in tokens]
    assert ("".join(shown_alone) == text) == (kind == "char")
    monkeypatch.setattr(writers, "generate_samples", Dictated(tokens))
    for pieces in samples_of(writer, [0], SOME):
        assert "".join(pieces) == text
        if kind == "byte":
            expected = [part for char in text for part in (*[""] * (len(char.encode()) - 1), char)]
            assert pieces == [*expected, ""]


def test_what_never_becomes_a_character_is_marked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(str(root / "runs" / "byte"), SOME)
    broken = "क".encode()[:2] + b"a\xff" + "🦊".encode()[:3]
    monkeypatch.setattr(writers, "generate_samples", Dictated(list(broken)))
    (pieces, *_) = samples_of(writer, [0], SOME)
    assert "".join(pieces) == broken.decode("utf-8", "replace") == "\ufffda\ufffd\ufffd"
    assert pieces[-1] == "\ufffd"


# --- which sample ---


def test_the_same_seed_gives_the_same_text(root: Path) -> None:
    one, other = (open_writer(str(root / "runs" / "char"), SOME) for _ in range(2))
    assert texts(one, [1, 2], SOME) == texts(other, [1, 2], SOME)
    assert not set(texts(one, [1, 2], SOME)) & set(texts(one, [1, 2], replace(SOME, seed=4)))


@pytest.mark.parametrize("length", [1, 2 * CONTEXT])
def test_a_sample_depends_neither_on_how_many_there_are_nor_on_those_beside_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    writer = open_writer(str(root / "runs" / "char"), SOME)
    prompt = [2] * length
    together = texts(writer, prompt, replace(SOME, num_samples=7))
    assert len(set(together)) == 7
    for number in (1, 2, 6):
        assert texts(writer, prompt, replace(SOME, num_samples=number)) == together[:number]
    one_sample = 2 * 4 * writer.model.config.n_embd * CONTEXT  # keys and values of one layer, float32
    for rows in (1, 3, 7):
        monkeypatch.setattr(writers, "_CACHE_BYTES", rows * one_sample)
        ends = [not pieces for pieces in writer.write(prompt, replace(SOME, num_samples=7))]
        assert sum(ends) == -(-7 // rows)
        assert texts(writer, prompt, replace(SOME, num_samples=7)) == together
    monkeypatch.setattr(writers, "_CACHE_BYTES", 1)  # less than any: one after the other
    assert texts(writer, prompt, replace(SOME, num_samples=3)) == together[:3]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_longer_than_the_context_is_what_the_plain_forward_makes_of_its_end(
    root: Path, kind: str
) -> None:
    writer = open_writer(str(root / "runs" / kind), SOME)
    known = writer.encode(LINE * 5)
    assert len(known) > 2 * CONTEXT
    greedy = replace(SOME, temperature=0, max_new_tokens=2 * CONTEXT, num_samples=2)
    written = texts(writer, list(known), greedy)
    tokens = list(known)
    for _ in range(2 * CONTEXT):
        logits = writer.model(torch.tensor([tokens[-CONTEXT:]]))[0, -1, : writer.tokenizer.vocab_size]
        tokens.append(int(logits.argmax()))
    assert written == [writer.tokenizer.decode(tokens[len(known) :])] * 2


def test_three_ways_to_take_always_the_likeliest(root: Path) -> None:
    writer = open_writer(str(root / "runs" / "char"), SOME)
    likeliest = texts(writer, [1], replace(SOME, temperature=0))
    assert len(set(likeliest)) == 1
    for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}):
        assert texts(writer, [1], replace(SOME, **narrow)) == likeliest
    assert texts(writer, [1], SOME) != likeliest
    # And ways that leave everything open.
    for wide in ({"top_k": 10**6}, {"top_p": 1.0}):
        assert texts(writer, [1], replace(SOME, **wide)) == texts(writer, [1], SOME)


def test_bfloat16_is_computed_in(root: Path) -> None:
    writer = open_writer(str(root / "runs" / "char"), replace(SOME, dtype="bfloat16"))
    assert [(choice.name, choice.value) for choice in writer.choices] == [
        ("device", "cpu"),
        ("dtype", "bfloat16"),
        ("tokenizer", "char"),
    ]
    seen: set[torch.dtype] = set()
    writer.model.lm_head.register_forward_hook(lambda module, inputs, logits: seen.add(logits.dtype))
    (text, *_) = texts(writer, [1], SOME)
    assert len(text) == 40
    assert seen == {torch.bfloat16}
    assert not writer.model.training


def test_steps_are_recorded_on_a_cuda_card_unless_that_is_off(root: Path) -> None:
    for device, asked, value, said in (
        ("cuda", "auto", "on", "CUDA graph"),
        ("cuda", "on", "on", "CUDA graph"),
        ("cuda", "off", "off", "asked for"),
        ("cpu", "on", "off", "only on a CUDA card"),
        ("mps", "auto", "off", "only on a CUDA card"),
    ):
        choice = writers._choose_graph(asked, torch.device(device))
        assert (choice.name, choice.value) == ("compile", value)
        assert said in choice.reason
    writer = open_writer(str(root / "runs" / "char"), replace(SOME, compile="on"))
    assert [(choice.name, choice.value) for choice in writer.choices][-1] == ("compile", "off")
    assert not writer.placement.compile


# --- the prompt ---


def only(tokenizer: Tokenizer, root: Path) -> Writer:
    return replace(open_writer(str(root / "runs" / "char"), SOME), tokenizer=tokenizer)


def test_an_empty_prompt_is_a_line_break_or_where_a_text_begins(root: Path) -> None:
    for kind in KINDS:
        writer = open_writer(str(root / "runs" / kind), SOME)
        assert writer.tokenizer.decode(writer.encode("")) == "\n"
    assert only(CharTokenizer("abc"), root).encode("") == [0]
    assert only(IdsTokenizer(30), root).encode("") == [0]
    bpe = open_writer(str(root / "runs" / "bpe"), SOME).tokenizer
    assert only(bpe, root).encode("<|endoftext|>a") == [bpe.eot, *bpe.encode("a")]


def test_characters_that_the_model_does_not_know_are_shown(root: Path) -> None:
    writer = open_writer(str(root / "runs" / "char"), SOME)
    with pytest.raises(UserError, match=r"has no 'X', 'é': use only its \d+ characters"):
        writer.encode("glassé Xé")
    for kind in ("byte", "bpe"):
        writer = open_writer(str(root / "runs" / kind), SOME)
        assert writer.tokenizer.decode(writer.encode("glassé X\N{SNOWMAN}")) == "glassé X\N{SNOWMAN}"


# --- which model ---


def with_age(folder: Path, seconds: float) -> None:
    moment = time.time() - seconds
    for path in folder.iterdir():
        os.utime(path, (moment, moment))


def fake_run(path: str, age_s: float, file: str = "config.toml") -> None:
    Path(path).mkdir(parents=True)
    Path(path, file).write_text("")
    if file == "config.toml":
        Path(path, "checkpoints/00000001").mkdir(parents=True)
    with_age(Path(path), age_s)


def test_without_a_word_it_is_the_run_that_was_written_to_last(here: Path) -> None:
    with pytest.raises(
        UserError, match="there is no run in runs/ to sample from; say which: glass sample RUN"
    ):
        find_source(None, SOME)
    Path("runs/notes").mkdir(parents=True)
    Path("outline.txt").write_text("no run")
    fake_run("runs/old", 300)
    fake_run("runs/new", 100)
    fake_run("runs/middle", 200)
    assert find_source(None, SOME) == "runs/new"
    fake_run("out-theirs", 50, "ckpt.pt")
    assert find_source(None, SOME) == "out-theirs"
    with_age(Path("runs/old"), 1)
    assert find_source(None, SOME) == "runs/old"


def test_out_dir_is_the_newest_of_its_row(here: Path) -> None:
    asked = replace(SOME, out_dir="out-mine")
    with pytest.raises(UserError, match="there is no run out-mine"):
        find_source(None, asked)
    fake_run("out-mine-other", 0)
    fake_run("out-mine", 0, "ckpt.pt")
    assert find_source(None, asked) == "out-mine"
    for number in (2, 9, 10):
        fake_run(f"out-mine-{number}", 100 + number)
        assert find_source(None, asked) == f"out-mine-{number}"
    assert find_source(None, replace(SOME, out_dir="out-mine-2")) == "out-mine-2"


def test_a_name_is_a_name(here: Path) -> None:
    assert find_source("runs/a@5", SOME) == "runs/a@5"
    assert find_source(None, replace(SOME, init_from="gpt2-xl")) == "gpt2-xl"


def test_a_run_writes_with_its_best_checkpoint_unless_another_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    losses = {at: open_writer(f"char@{at}", SOME).origin.val_loss for at in (1, 2, 3)}
    best = min(losses, key=lambda at: losses[at] or 0.0)
    for spec, at in (("char", best), ("runs/char@best", best), ("char@last", 3), ("char@1", 1)):
        writer = open_writer(spec, SOME)
        assert (writer.origin.iter, writer.origin.val_loss) == (at, losses[at])
        assert torch.equal(writer.model.lm_head.weight, writer.origin.weights["transformer.wte.weight"])


def test_a_device_that_is_not_there(root: Path) -> None:
    missing = "mps" if torch.cuda.is_available() else "cuda"
    with pytest.raises(UserError, match=f"--device={missing} is not available here"):
        open_writer(str(root / "runs/char"), replace(SOME, device=missing))


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
    options = replace(SOME, data_dir=place if place == "elsewhere" else "")
    for spec in (here / "nano/out", here / "nano/out/ckpt.pt"):
        writer = open_writer(str(spec), options)
        assert writer.tokenizer == CharTokenizer(CHARACTERS)
        assert (writer.origin.iter, writer.origin.val_loss) == (7, 1.5)
        tokens = torch.tensor([writer.encode("glass")])
        assert torch.equal(writer.model(tokens), model(tokens))
        assert set("".join(texts(writer, writer.encode("glass"), options))) <= set(CHARACTERS)


def test_nanogpts_checkpoint_without_its_characters_asks_for_them(here: Path) -> None:
    write_ckpt(here / "out")
    with pytest.raises(
        UserError, match=r"ckpt\.pt does not say which .* --data_dir=FOLDER \(data/theirs is not"
    ):
        open_writer("out", SOME)
    with pytest.raises(UserError, match="no dataset at nothing"):
        open_writer("out", replace(SOME, data_dir="nothing"))
    write_ckpt(here / "out2", dataset="")
    with pytest.raises(UserError, match=r"\(data/DATASET is not there\)"):
        open_writer("out2", SOME)


def test_characters_of_another_dataset_are_refused(here: Path, root: Path) -> None:
    write_ckpt(here / "out")
    itos = dict(enumerate("abc"))
    write_meta(here / "data/theirs", {"vocab_size": 3, "itos": itos, "stoi": {c: i for i, c in itos.items()}})
    with pytest.raises(UserError, match=rf"ckpt\.pt has {len(CHARACTERS)} tokens, but the tokenizer has 3"):
        open_writer("out", SOME)
    with pytest.raises(UserError, match="but the tokenizer has 3: give the folder of the dataset"):
        open_writer(str(root / "runs/char"), replace(SOME, data_dir="data/theirs"))


def test_where_only_the_ids_are_known_ids_are_written(here: Path) -> None:
    write_ckpt(here / "out")
    write_meta(here / "data/theirs", {"vocab_size": len(CHARACTERS)})
    writer = open_writer("out", SOME)
    (text, *_) = texts(writer, writer.encode(""), SOME)
    assert len(text.split()) == 40
    assert max(map(int, text.split())) < len(CHARACTERS)
    prompt = writer.encode("12 5")
    assert prompt == [12, 5]
    assert writer.shown(prompt, "12 5") == "12 5 ", "the next id does not run into it"


def test_nanogpts_gpt2_tokens_are_those_of_tiktoken(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ckpt(here / "out", vocab_size=50304)
    table = {bytes([byte]): byte for byte in range(256)} | {b"%d," % i: i for i in range(256, 50256)}
    monkeypatch.setattr(writers, "download_ranks", lambda fix: table)
    # As a clone of nanoGPT's repository has it, where nothing was prepared.
    Path("data/theirs").mkdir(parents=True)
    Path("data/theirs/prepare.py").write_text("")
    writer = open_writer("out", SOME)
    assert (writer.tokenizer.name, writer.tokenizer.vocab_size) == ("gpt2", 50257)
    (text, *_) = texts(writer, writer.encode("a"), SOME)
    assert len(text.split(",")) > 30

    def fail(fix: str) -> None:
        raise UserError(fix)

    monkeypatch.setattr(writers, "download_ranks", fail)
    with pytest.raises(UserError, match="connect to the network once"):
        open_writer("out", SOME)


# --- GPT-2's ---


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `transformers` writes it, of random weights, with a small tokenizer of GPT-2's kind."""
    transformers = pytest.importorskip("transformers")
    tokenizer = train_bpe([LINE * 9], 300)
    shape = {"vocab_size": tokenizer.vocab_size, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, initializer_range=0.3))
    folder = tmp_path_factory.mktemp("hf") / "little-gpt2"
    model.save_pretrained(folder)
    for name, content in tokenizer.files.items():
        (folder / name).write_bytes(content)
    return folder


def test_greedy_text_of_a_gpt2_folder_is_that_of_transformers(gpt2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(gpt2 / "tokenizer.json"))
    writer = open_writer(str(gpt2), SOME)
    assert (writer.origin.what, writer.origin.iter) == (str(gpt2), None)
    for prompt in ("glass, ", "कांच का", "<|endoftext|>"):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert writer.encode(prompt) == ids[0].tolist()
        count = 32 - ids.shape[1]
        tokens = model.generate(ids, do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0)
        greedy = replace(SOME, temperature=0, max_new_tokens=count, num_samples=1)
        assert texts(writer, writer.encode(prompt), greedy) == [tokenizer.decode(tokens[0, ids.shape[1] :])]


def test_a_gpt2_folder_is_sampled_by_its_path(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(SOME, num_samples=1, max_new_tokens=9, temperature=0)
    writer = open_writer(str(gpt2), options)
    flags = ["--num_samples=1", "--max_new_tokens=9", "--temperature=0", "--start=glass,", "--device=cpu"]
    assert main(["sample", f"--init_from={gpt2}", *flags]) == 0
    said = capsys.readouterr()
    (text,) = texts(writer, writer.encode("glass,"), options)
    assert said.out == f"glass,{harmless(text)}\n---------------\n"
    assert said.err.startswith(
        f"model         {gpt2}, {writer.model.parameter_count() / 1000:.3g}k parameters\n"
    )


def test_a_gpt2_folder_without_its_tokenizer_says_what_is_missing(gpt2: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((gpt2 / name).read_bytes())
    with pytest.raises(UserError, match=r"has no tokenizer: it needs .*merges\.txt"):
        open_writer(str(tmp_path), SOME)


def test_a_run_keeps_its_tokenizer_when_its_dataset_is_gone(tmp_path: Path) -> None:
    data = prepared(tmp_path, "mine", "bpe:290")
    tokenizer = load_tokenizer(data)
    run = trained(tmp_path / "run", data)
    for path in data.iterdir():
        path.unlink()
    writer = open_writer(str(run), SOME)
    assert writer.tokenizer.name == "bpe:290"
    assert writer.encode(LINE) == tokenizer.encode(LINE).tolist()
