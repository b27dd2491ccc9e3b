"""Sampling: from which model, with which tokenizer, and that the text is that of the tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from samples import KINDS, SAMPLE_OPTIONS, sample_pieces, sample_texts, train_every_tokenizer
from small_runs import CONTEXT, LINE, prepare_dataset, train_run

from glassgpt.data.tokenizers import CharTokenizer, IdsTokenizer, Tokenizer, load_tokenizer
from glassgpt.errors import UserError
from glassgpt.model.generate import generate_samples, has_float16_linear
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.sample import sampler as sampler_module
from glassgpt.sample.sampler import Sampler, find_model_source, load_sampler


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/char, runs/byte and runs/bpe."""
    return train_every_tokenizer(tmp_path_factory.mktemp("runs"))


# --- text from tokens ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_together_are_the_text_of_the_tokens(root: Path, kind: str) -> None:
    sampler = load_sampler(str(root / "runs" / kind), SAMPLE_OPTIONS)
    prompt = sampler.encode("glass, कांच")
    draws = TokenSampler(sampler.tokenizer.vocab_size, temperature=1.5, top_k=None, seed=3)
    steps = generate_samples(sampler.model, prompt, 40, draws, samples=range(4))
    tokens = list(zip(*steps, strict=True))
    samples = sample_pieces(sampler, prompt, SAMPLE_OPTIONS)
    assert ["".join(pieces) for pieces in samples] == [sampler.tokenizer.decode(ids) for ids in tokens]
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
    sampler = load_sampler(str(root / "runs" / kind), SAMPLE_OPTIONS)
    text = LINE if kind == "char" else LINE + "ज़ट ڤ 🐸☃"  # the latter are not among what was learned
    tokens = [int(token) for token in sampler.tokenizer.encode(text)]
    shown_alone = [sampler.tokenizer.decode([token]) for token in tokens]
    assert ("".join(shown_alone) == text) == (kind == "char")
    monkeypatch.setattr(sampler_module, "generate_samples", Dictated(tokens))
    for pieces in sample_pieces(sampler, [0], SAMPLE_OPTIONS):
        assert "".join(pieces) == text
        if kind == "byte":
            expected = [part for char in text for part in (*[""] * (len(char.encode()) - 1), char)]
            assert pieces == [*expected, ""]


def test_what_never_becomes_a_character_is_marked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = load_sampler(str(root / "runs" / "byte"), SAMPLE_OPTIONS)
    broken = "क".encode()[:2] + b"a\xff" + "🦊".encode()[:3]
    monkeypatch.setattr(sampler_module, "generate_samples", Dictated(list(broken)))
    (pieces, *_) = sample_pieces(sampler, [0], SAMPLE_OPTIONS)
    assert "".join(pieces) == broken.decode("utf-8", "replace") == "\ufffda\ufffd\ufffd"
    assert pieces[-1] == "\ufffd"


# --- which sample ---


def test_the_same_seed_gives_the_same_text(root: Path) -> None:
    one, other = (load_sampler(str(root / "runs" / "char"), SAMPLE_OPTIONS) for _ in range(2))
    assert sample_texts(one, [1, 2], SAMPLE_OPTIONS) == sample_texts(other, [1, 2], SAMPLE_OPTIONS)
    assert not set(sample_texts(one, [1, 2], SAMPLE_OPTIONS)) & set(
        sample_texts(one, [1, 2], replace(SAMPLE_OPTIONS, seed=4))
    )


@pytest.mark.parametrize("length", [1, 2 * CONTEXT])
def test_a_sample_depends_neither_on_how_many_there_are_nor_on_those_beside_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    sampler = load_sampler(str(root / "runs" / "char"), SAMPLE_OPTIONS)
    prompt = [2] * length
    together = sample_texts(sampler, prompt, replace(SAMPLE_OPTIONS, num_samples=7))
    assert len(set(together)) == 7
    for number in (1, 2, 6):
        assert sample_texts(sampler, prompt, replace(SAMPLE_OPTIONS, num_samples=number)) == together[:number]
    one_sample = 2 * 4 * sampler.model.config.n_embd * CONTEXT  # keys and values of one layer, float32
    for rows in (1, 3, 7):
        monkeypatch.setattr(sampler_module, "_MAX_KV_CACHE_BYTES", rows * one_sample)
        ends = [not pieces for pieces in sampler.sample(prompt, replace(SAMPLE_OPTIONS, num_samples=7))]
        assert sum(ends) == -(-7 // rows)
        assert sample_texts(sampler, prompt, replace(SAMPLE_OPTIONS, num_samples=7)) == together
    monkeypatch.setattr(sampler_module, "_MAX_KV_CACHE_BYTES", 1)  # less than any: one after the other
    assert sample_texts(sampler, prompt, replace(SAMPLE_OPTIONS, num_samples=3)) == together[:3]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_longer_than_the_context_is_what_the_plain_forward_makes_of_its_end(
    root: Path, kind: str
) -> None:
    sampler = load_sampler(str(root / "runs" / kind), SAMPLE_OPTIONS)
    known = sampler.encode(LINE * 5)
    assert len(known) > 2 * CONTEXT
    greedy = replace(SAMPLE_OPTIONS, temperature=0, max_new_tokens=2 * CONTEXT, num_samples=2)
    written = sample_texts(sampler, list(known), greedy)
    tokens = list(known)
    for _ in range(2 * CONTEXT):
        logits = sampler.model(torch.tensor([tokens[-CONTEXT:]]))[0, -1, : sampler.tokenizer.vocab_size]
        tokens.append(int(logits.argmax()))
    assert written == [sampler.tokenizer.decode(tokens[len(known) :])] * 2


def test_three_ways_to_take_always_the_likeliest(root: Path) -> None:
    sampler = load_sampler(str(root / "runs" / "char"), SAMPLE_OPTIONS)
    likeliest = sample_texts(sampler, [1], replace(SAMPLE_OPTIONS, temperature=0))
    assert len(set(likeliest)) == 1
    for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}):
        assert sample_texts(sampler, [1], replace(SAMPLE_OPTIONS, **narrow)) == likeliest
    assert sample_texts(sampler, [1], SAMPLE_OPTIONS) != likeliest
    # And ways that leave everything open.
    for wide in ({"top_k": 10**6}, {"top_p": 1.0}):
        assert sample_texts(sampler, [1], replace(SAMPLE_OPTIONS, **wide)) == sample_texts(
            sampler, [1], SAMPLE_OPTIONS
        )


def test_bfloat16_is_computed_in(root: Path) -> None:
    sampler = load_sampler(str(root / "runs" / "char"), replace(SAMPLE_OPTIONS, dtype="bfloat16"))
    assert [(choice.name, choice.value) for choice in sampler.choices] == [
        ("device", "cpu"),
        ("dtype", "bfloat16"),
        ("tokenizer", "char"),
    ]
    seen: set[torch.dtype] = set()
    sampler.model.lm_head.register_forward_hook(lambda module, inputs, logits: seen.add(logits.dtype))
    (text, *_) = sample_texts(sampler, [1], SAMPLE_OPTIONS)
    assert len(text) == 40
    assert seen == {torch.bfloat16}
    assert not sampler.model.training


def test_weights_on_a_cpu_are_float16_where_that_pays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, enough = torch.device("cpu"), sampler_module._MIN_PARAMETERS_FOR_FLOAT16
    cases: tuple[tuple[bool, Literal["auto", "float32", "bfloat16", "float16"], int, int, str, str], ...] = (
        (True, "auto", 500, enough, "float16", "half the bytes"),
        (True, "auto", 500, enough - 1, "float32", "so small a model"),
        (True, "auto", 199, enough, "float32", "199 tokens save"),
        (True, "float16", 1, 1, "float16", "asked for"),
        (True, "float32", 500, enough, "float32", "asked for"),
        (True, "bfloat16", 500, enough, "bfloat16", "asked for"),
        (False, "auto", 500, enough, "float32", "memory-bound"),
        (False, "float16", 500, enough, "bfloat16", "no fast float16"),
    )
    for has_matmul, requested, tokens, parameters, value, reason in cases:
        monkeypatch.setattr(sampler_module, "has_float16_linear", lambda answer=has_matmul: answer)
        options = replace(SAMPLE_OPTIONS, dtype=requested, max_new_tokens=tokens)
        choice = sampler_module._choose_dtype(options, cpu, parameters)
        assert (choice.name, choice.value) == ("dtype", value), (requested, tokens, parameters)
        assert reason in choice.reason


@pytest.mark.skipif(not has_float16_linear(), reason="FBGEMM is for x86 with AVX2")
@pytest.mark.parametrize("kind", KINDS)
def test_float16_weights_hardly_change_the_logits(root: Path, kind: str) -> None:
    run = str(root / "runs" / kind)
    exact = load_sampler(run, replace(SAMPLE_OPTIONS, dtype="float32"))
    rounded = load_sampler(run, replace(SAMPLE_OPTIONS, dtype="float16"))
    assert rounded.choices[1].value == "float16"
    assert rounded.execution.dtype == "float32"
    tokens = torch.tensor([exact.encode(LINE)[:9]])
    with torch.no_grad():
        logits = [sampler.model.next_logits(tokens) for sampler in (exact, rounded)]
    assert not torch.equal(*logits)
    torch.testing.assert_close(*logits, atol=0.01, rtol=0)
    assert len(sample_texts(rounded, [1], SAMPLE_OPTIONS)) == SAMPLE_OPTIONS.num_samples


def test_steps_are_captured_on_a_cuda_card_unless_that_is_off(root: Path) -> None:
    for device, requested, value, reason in (
        ("cuda", "auto", "on", "CUDA graph"),
        ("cuda", "on", "on", "CUDA graph"),
        ("cuda", "off", "off", "asked for"),
        ("cpu", "on", "off", "only on a CUDA card"),
        ("mps", "auto", "off", "only on a CUDA card"),
    ):
        choice = sampler_module._choose_graph(requested, torch.device(device))
        assert (choice.name, choice.value) == ("compile", value)
        assert reason in choice.reason
    sampler = load_sampler(str(root / "runs" / "char"), replace(SAMPLE_OPTIONS, compile="on"))
    assert [(choice.name, choice.value) for choice in sampler.choices][-1] == ("compile", "off")
    assert not sampler.execution.compile


# --- the prompt ---


def only(tokenizer: Tokenizer, root: Path) -> Sampler:
    return replace(load_sampler(str(root / "runs" / "char"), SAMPLE_OPTIONS), tokenizer=tokenizer)


def test_an_empty_prompt_is_a_line_break_or_the_end_of_text_token(root: Path) -> None:
    for kind in KINDS:
        sampler = load_sampler(str(root / "runs" / kind), SAMPLE_OPTIONS)
        assert sampler.tokenizer.decode(sampler.encode("")) == "\n"
    assert only(CharTokenizer("abc"), root).encode("") == [0]
    assert only(IdsTokenizer(30), root).encode("") == [0]
    bpe = load_sampler(str(root / "runs" / "bpe"), SAMPLE_OPTIONS).tokenizer
    assert only(bpe, root).encode("<|endoftext|>a") == [bpe.eot, *bpe.encode("a")]


def test_characters_that_the_model_does_not_know_are_shown(root: Path) -> None:
    sampler = load_sampler(str(root / "runs" / "char"), SAMPLE_OPTIONS)
    with pytest.raises(UserError, match=r"has no 'X', 'é': use only its \d+ characters"):
        sampler.encode("glassé Xé")
    for kind in ("byte", "bpe"):
        sampler = load_sampler(str(root / "runs" / kind), SAMPLE_OPTIONS)
        assert sampler.tokenizer.decode(sampler.encode("glassé X\N{SNOWMAN}")) == "glassé X\N{SNOWMAN}"


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


def test_the_default_is_the_run_that_was_written_to_last(here: Path) -> None:
    with pytest.raises(
        UserError, match="there is no run in runs/ to sample from; say which: glass sample RUN"
    ):
        find_model_source(None, SAMPLE_OPTIONS)
    Path("runs/notes").mkdir(parents=True)
    Path("outline.txt").write_text("no run")
    fake_run("runs/old", 300)
    fake_run("runs/new", 100)
    fake_run("runs/middle", 200)
    assert find_model_source(None, SAMPLE_OPTIONS) == "runs/new"
    fake_run("out-theirs", 50, "ckpt.pt")
    assert find_model_source(None, SAMPLE_OPTIONS) == "out-theirs"
    with_age(Path("runs/old"), 1)
    assert find_model_source(None, SAMPLE_OPTIONS) == "runs/old"


def test_out_dir_is_the_newest_of_its_row(here: Path) -> None:
    options = replace(SAMPLE_OPTIONS, out_dir="out-mine")
    with pytest.raises(UserError, match="there is no run out-mine"):
        find_model_source(None, options)
    fake_run("out-mine-other", 0)
    fake_run("out-mine", 0, "ckpt.pt")
    assert find_model_source(None, options) == "out-mine"
    for number in (2, 9, 10):
        fake_run(f"out-mine-{number}", 100 + number)
        assert find_model_source(None, options) == f"out-mine-{number}"
    assert find_model_source(None, replace(SAMPLE_OPTIONS, out_dir="out-mine-2")) == "out-mine-2"


def test_a_name_is_a_name(here: Path) -> None:
    assert find_model_source("runs/a@5", SAMPLE_OPTIONS) == "runs/a@5"
    assert find_model_source(None, replace(SAMPLE_OPTIONS, init_from="gpt2-xl")) == "gpt2-xl"


def test_a_run_is_sampled_from_its_best_checkpoint_unless_another_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    losses = {at: load_sampler(f"char@{at}", SAMPLE_OPTIONS).checkpoint.val_loss for at in (1, 2, 3)}
    best = min(losses, key=lambda at: losses[at] or 0.0)
    for spec, at in (("char", best), ("runs/char@best", best), ("char@last", 3), ("char@1", 1)):
        sampler = load_sampler(spec, SAMPLE_OPTIONS)
        assert (sampler.checkpoint.iter, sampler.checkpoint.val_loss) == (at, losses[at])
        assert torch.equal(sampler.model.lm_head.weight, sampler.checkpoint.weights["transformer.wte.weight"])


def test_a_busy_core_takes_a_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(threads: int, busy: float) -> dict[str, tuple[object, str]]:
        torch.set_num_threads(threads)
        monkeypatch.setattr("glassgpt.training.compute_plan.measure_busy_cores", lambda: busy)
        sampler = load_sampler(str(root / "runs/char"), replace(SAMPLE_OPTIONS, device="cpu"))
        return {choice.name: (choice.value, choice.reason) for choice in sampler.choices}

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    try:
        quiet, quiet_threads = load(2, 0.2), torch.get_num_threads()
        busy, busy_threads = load(2, 1.2), torch.get_num_threads()
    finally:
        torch.set_num_threads(1)
    assert (quiet_threads, busy_threads) == (2, 1)
    assert "threads" not in quiet
    assert quiet["device"][1].endswith("2 threads")
    assert busy["threads"][0] == 1
    assert "1.2 cores" in busy["threads"][1]
    assert busy["device"][1].endswith("1 thread")


def test_a_device_that_is_not_there(root: Path) -> None:
    missing = "mps" if torch.cuda.is_available() else "cuda"
    with pytest.raises(UserError, match=f"--device={missing} is not available here"):
        load_sampler(str(root / "runs/char"), replace(SAMPLE_OPTIONS, device=missing))


def test_a_run_keeps_its_tokenizer_when_its_dataset_is_gone(tmp_path: Path) -> None:
    data = prepare_dataset(tmp_path, "mine", "bpe:290")
    tokenizer = load_tokenizer(data)
    run = train_run(tmp_path / "run", data)
    for path in data.iterdir():
        path.unlink()
    sampler = load_sampler(str(run), SAMPLE_OPTIONS)
    assert sampler.tokenizer.name == "bpe:290"
    assert sampler.encode(LINE) == tokenizer.encode(LINE).tolist()
