"""`glass look`: losses, attention, head scores, what the journal adds; the command itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import KINDS, train_every_tokenizer
from small_runs import CONTEXT, LINE

from glassgpt.cli import main
from glassgpt.data.passage import piece_texts
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, CausalSelfAttention, GPTConfig, attention_weights
from glassgpt.runs.loss_by_class import passage_texts, read_loss_parts
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import LoggedEvaluation
from glassgpt.sample import look as look_module
from glassgpt.sample.look import (
    choose_passage,
    forward_with_attention,
    highest_heads,
    induction_scores,
    look_at_passage,
    measure_originality,
    previous_token_scores,
    score_heads,
    training_dataset,
    uniform_score,
)
from glassgpt.sample.look_document import look
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sampler import Sampler, load_sampler

ON_CPU = SampleOptions(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/char, runs/byte and runs/bpe."""
    return train_every_tokenizer(tmp_path_factory.mktemp("runs"))


def load(root: Path, name: str) -> Sampler:
    return load_sampler(str(root / "runs" / name), ON_CPU)


# --- attention ---


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_attention_weights_are_those_that_the_model_uses(arch: str) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, 24, n_layer=2, n_head=3, n_embd=48, arch=arch, bias=arch == "gpt2")).eval()
    for parameter in model.parameters():  # `modern` begins with projections of 0
        torch.nn.init.normal_(parameter, std=0.3)
    calls = []

    def record(module: CausalSelfAttention, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        calls.append((module, inputs, output))

    layers = [module for module in model.modules() if isinstance(module, CausalSelfAttention)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    tokens = torch.randint(50, (2, 24))
    logits, attention = forward_with_attention(model, tokens)
    for hook in hooks:
        hook.remove()
    assert attention.shape == (2, 2, 3, 24, 24)
    assert torch.allclose(attention.sum(-1), torch.ones(2, 2, 3, 24), atol=1e-6)
    assert attention.triu(1).abs().max() == 0
    with torch.no_grad():
        assert torch.equal(logits, model(tokens))
        for (module, inputs, output), weights in zip(calls, attention, strict=True):
            _, _, v = module.project(inputs[0], inputs[1])
            mixed = (weights @ v).transpose(1, 2).reshape(2, 24, 48)
            assert (module.c_proj(mixed) - output).abs().max() < 1e-5
            assert output.abs().max() > 0.1
            assert all(not layer._forward_pre_hooks for layer in layers)


def test_scores_of_patterns_made_by_hand() -> None:
    T = 12
    previous = torch.zeros(T, T)
    previous[0, 0] = 1
    previous[range(1, T), range(T - 1)] = 1
    uniform = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    scores = previous_token_scores(torch.stack([previous, uniform]))
    assert scores[0] == 1
    assert scores[1] == pytest.approx(uniform_score(1, T))
    assert uniform_score(1, T) == pytest.approx(sum(1 / n for n in range(2, T + 1)) / (T - 1))
    length = T // 2
    induction = torch.eye(T)
    for index in range(length):
        induction[length + index] = 0
        induction[length + index, index + 1] = 1
    scores = induction_scores(torch.stack([induction, previous, uniform]), length)
    assert scores[:2].tolist() == [1, 0]
    assert scores[2] == pytest.approx(uniform_score(length, T))
    table = torch.tensor([[0.1, 0.9], [0.5, 0.2]])
    assert [(layer, head) for layer, head, _ in highest_heads(table, 3)] == [(0, 1), (1, 0), (1, 1)]


def test_a_model_that_attends_equally_scores_as_uniform(root: Path) -> None:
    sampler = load(root, "char")
    for module in sampler.model.modules():
        if isinstance(module, CausalSelfAttention):
            torch.nn.init.zeros_(module.c_attn.weight)
    view = look_at_passage(sampler, choose_passage(sampler, training_dataset(sampler), ""))
    heads = score_heads(sampler, view.attention)
    assert heads.induction is not None
    assert heads.induction.flatten().tolist() == pytest.approx([heads.induction_uniform] * 2, rel=1e-5)
    assert heads.previous_token.flatten().tolist() == pytest.approx(
        [heads.previous_token_uniform] * 2, rel=1e-5
    )


def test_a_head_that_looks_a_fixed_way_back_is_no_induction_head(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With copies of one length, it would score 1 where that length is its distance."""
    sampler = load(root, "char")

    def attend(model: GPT, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        T = tokens.shape[1]
        fixed, finding = torch.eye(T), torch.eye(T)
        for row in range(T):
            earlier = (tokens[0, :row] == tokens[0, row]).nonzero()
            finding[row] = torch.eye(T)[int(earlier[0]) + 1 if len(earlier) else row]
            fixed[row] = torch.eye(T)[max(0, row - (CONTEXT // 2 - 1))]
        return torch.zeros(1, T, sampler.tokenizer.vocab_size), torch.stack([fixed, finding])[None, None]

    monkeypatch.setattr(look_module, "forward_with_attention", attend)
    scores = score_heads(sampler, torch.eye(3).expand(1, 2, 3, 3)).induction
    assert scores is not None
    lengths = CONTEXT // 2 - 1  # 6, 5, 4, 3, 2
    assert scores[0].tolist() == pytest.approx([1 / lengths, 1])


# --- the passage ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_passage_begins_after_a_line_end(root: Path, kind: str) -> None:
    sampler = load(root, kind)
    dataset = training_dataset(sampler)
    assert dataset is not None
    passage = choose_passage(sampler, dataset, "")
    val = dataset.tokens("val")
    assert passage.start is not None
    assert passage.start > len(val) // 10
    assert passage.tokens == tuple(val[passage.start : passage.start + CONTEXT].tolist())
    assert b"\n" in sampler.tokenizer.token_bytes(passage.context)
    assert passage == choose_passage(load_sampler(str(root / "runs" / f"{kind}@1"), ON_CPU), dataset, "")
    texts = piece_texts(sampler.tokenizer, passage.tokens)
    assert len(texts) == CONTEXT
    assert "".join(texts) == sampler.tokenizer.decode(passage.tokens)


def test_losses_and_guesses_are_those_of_the_model(root: Path) -> None:
    sampler = load(root, "byte")
    passage = choose_passage(sampler, training_dataset(sampler), "")
    view = look_at_passage(sampler, passage)
    tokens = torch.tensor([[passage.context, *passage.tokens]])
    with torch.no_grad():
        expected = sampler.model(tokens[:, :-1], tokens[:, 1:], reduction="none")[0]
        probs = sampler.model(tokens[:, :-1])[0].softmax(-1)
    assert view.losses == pytest.approx(expected.tolist(), abs=1e-5)
    assert view.mean_loss == pytest.approx(float(expected.mean()), abs=1e-5)
    for row, guesses in zip(probs, view.guesses, strict=True):
        best = row.sort(descending=True).values[:3].tolist()
        assert [p for _, p in guesses] == pytest.approx(best)
        assert [float(row[token]) for token, _ in guesses] == pytest.approx(best)


def test_a_given_text_is_cut_to_the_context(root: Path) -> None:
    sampler = load(root, "char")
    passage = choose_passage(sampler, None, "glass, glass, glass")
    assert (len(passage.tokens), passage.omitted, passage.start) == (CONTEXT, 19 - CONTEXT, None)
    assert len(look_at_passage(sampler, passage).losses) == CONTEXT
    with pytest.raises(UserError, match="--text"):
        choose_passage(sampler, None, "")


def test_a_dataset_that_is_gone_or_another_one_is_not_used(root: Path) -> None:
    sampler = load(root, "char")
    with pytest.raises(UserError, match="--data_dir"):
        training_dataset(sampler, str(root / "data/byte"))
    (root / "data/char").rename(root / "data/moved")
    try:
        assert training_dataset(sampler) is None
        assert training_dataset(sampler, str(root / "data/moved")) is not None
    finally:
        (root / "data/moved").rename(root / "data/char")


# --- copying ---


def test_what_a_sample_copies(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = load(root, "char")
    dataset = training_dataset(sampler)
    assert dataset is not None
    # "xyz" cannot be: the model has only its characters. So a sample of known and reversed words.
    line = LINE.strip()
    text = f"ssalg {line} {line[:5][::-1]} ssalg"
    tokens = sampler.encode(text)
    monkeypatch.setattr(look_module, "generate_samples", lambda *_, **__: ([token] for token in tokens))
    result = measure_originality(sampler, dataset)
    assert result.copied_text == line
    assert result.copied_tokens == len(line)
    assert result.sample_tokens == len(tokens)
    assert result.searched_tokens == result.train_tokens == len(dataset.tokens("train"))
    assert result.val_copied_tokens == CONTEXT - 1  # the same line all over, in pieces
    words = line.replace(",", "").split()[:-1]  # without the animals
    assert result.known_words == pytest.approx(len(words) / (len(words) + 1))
    assert result.val_known_words == 1


# --- the command ---


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["look", *arguments, "--device=cpu", "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_json_document(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    document = run_json(capsys, "runs/char@3", "--against=1")
    assert list(document) == [
        *("schema_version", "checkpoint", "passage", "against"),
        *("heads", "originality", "ladder", "evaluation"),
    ]
    assert (document["checkpoint"]["iter"], document["against"]["iter"]) == (3, 1)
    tokens = document["passage"]["tokens"]
    assert len(tokens) == len(document["against"]["losses"]) == CONTEXT
    assert document["passage"]["loss"] == pytest.approx(sum(token["loss"] for token in tokens) / CONTEXT)
    assert {len(token["guesses"]) for token in tokens} == {3}
    alone = run_json(capsys, "runs/char@1")
    assert alone["against"] is None
    assert [token["loss"] for token in alone["passage"]["tokens"]] == document["against"]["losses"]
    # By the first update nothing that was passed later.
    for one in (alone, document):
        assert all(at <= one["checkpoint"]["iter"] for at in one["ladder"]["passed_at"].values())
        evaluation = one["evaluation"]
        assert evaluation["iter"] == one["checkpoint"]["iter"]
        for partition in ("by_kind", "by_frequency", "by_script"):
            rows = evaluation[partition].values()
            mean = sum(tokens * loss for tokens, loss in rows) / sum(tokens for tokens, _ in rows)
            assert mean == pytest.approx(evaluation["loss"], abs=1e-9)
    assert np.shape(document["heads"]["induction"]) == np.shape(document["heads"]["previous_token"]) == (1, 2)
    originality = document["originality"]
    assert originality["samples"] * (CONTEXT - 1) == originality["sample_tokens"] >= 500


def test_what_is_printed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    for arguments in (["runs/byte"], ["runs/bpe", "--against=1"], ["runs/char", "--text=glass का"]):
        assert main(["look", *arguments, "--device=cpu"]) == 0
        lines = capsys.readouterr().out.splitlines()
        labels = {line.split()[0] for line in lines if not line.startswith(" ")}
        assert {"model", "passage", "ladder", "loss", "heads", "copied"} <= labels
        assert ("difference" in labels) == ("--against=1" in arguments)
        # A line for each token, because this is no terminal.
        (title,) = (line for line in lines if line.startswith("passage"))
        after = lines[lines.index(title) + 1 + ("--against=1" in arguments) :]
        losses = [float(line.split()[0]) for line in itertools.takewhile(lambda line: line[0] == " ", after)]
        assert len(losses) == int(title.split()[1])
        assert np.mean(losses) == pytest.approx(float(title.rpartition(" ")[2]), abs=2e-3)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a", "b"], "one run at a time"),
        (["--device=gpu"], "--device=gpu"),
        (["runs/char", "--against=runs/byte"], "another tokenizer"),
        (["runs/char", "--against=77"], "@77"),
        (["runs/char", "--text=Ω"], "has no 'Ω'"),
    ],
)
def test_mistakes_are_named(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(root)
    assert main(["look", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_a_damaged_evaluation_has_no_parts() -> None:
    parts = {"by_kind": {"space": [3, 0.5]}, "by_position": [], "passage_losses": [0.5, 1]}
    evaluation = LoggedEvaluation(5, 0, 1.5, parts=parts)
    read = read_loss_parts(evaluation)
    assert read is not None
    assert read.classes == {"by_kind": {"space": (3, 0.5)}}
    assert read.passage_losses == (0.5, 1.0)
    damages: list[dict[str, Any]] = [
        {"by_kind": 3}, {"by_position": [[1]]}, {"by_kind": {"space": ["x", 1]}}, {"passage_losses": ["nan"]},
        {"passage_losses": 3}, {"by_position": None},
    ]  # fmt: skip
    for damage in damages:
        assert read_loss_parts(replace(evaluation, parts=parts | damage)) is None, damage
    assert read_loss_parts(LoggedEvaluation(5, 0, None, parts=parts)) is None
    assert read_loss_parts(LoggedEvaluation(5, 0, 1.5)) is None


def test_a_look_is_kept_in_the_folder_of_its_run(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    document = run_json(capsys, "runs/byte@1")
    (kept,) = (one for one in read_run_log("runs/byte").looks if one.iteration == 1)
    tokens = document["passage"]["tokens"]
    assert kept.passage_start == document["passage"]["start"]
    assert kept.passage_losses == tuple(round(token["loss"], 4) for token in tokens)
    assert [guess for guess, _ in kept.guesses[4]] == [guess["text"] for guess in tokens[4]["guesses"]]
    assert kept.known_words == document["originality"]["known_words"]
    # The evaluation at that update kept the same tokens' losses, of the same weights.
    run_log = read_run_log("runs/byte")
    (evaluation,) = (one for one in run_log.evals if one.iteration == 1)
    assert evaluation.parts["passage_losses"] == pytest.approx(list(kept.passage_losses), abs=0.05)
    passage = passage_texts(run_log.setup.data)
    assert passage is not None
    assert passage == (kept.passage_start, [token["text"] for token in tokens])


def test_a_model_without_a_run_is_looked_at_too(root: Path) -> None:
    sampler = load(root, "bpe")
    document = look(sampler, None, text="glass")
    assert document.originality is None
    assert [len(one) for one in (document.texts, document.view.losses)] == [len(document.passage.tokens)] * 2
    q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4)
    assert attention_weights(q, k).item() == 1
