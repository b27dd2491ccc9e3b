"""What is exported computes the same where it is loaded, or is not written at all."""

from __future__ import annotations

import importlib.util
import json
import math
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from some_runs import CONTEXT, LINE, TOKENIZERS, prepared, trained
from torch import Tensor

from glassgpt import config as settings
from glassgpt.account import journal
from glassgpt.cli import main
from glassgpt.data.nanogpt import read_meta
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.data.tokenizers import CharTokenizer
from glassgpt.errors import UserError
from glassgpt.exchange import hf, proof
from glassgpt.exchange.card import until_checkpoint
from glassgpt.exchange.export import MARKER, Exported, export
from glassgpt.exchange.options import ExportOptions
from glassgpt.exchange.parcel import open_parcel
from glassgpt.model.gpt import GPT
from glassgpt.model.pretrained import read_pretrained
from glassgpt.model.weights import load_weights, to_transformers
from glassgpt.train.origin import open_origin


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each tokenizer, in a folder whose name must not be told to anybody."""
    folder = tmp_path_factory.mktemp("somebodys_home")
    for tokenizer in TOKENIZERS:
        data = prepared(folder / tokenizer.partition(":")[0], tokenizer)
        trained(folder / "runs" / tokenizer.partition(":")[0], data)
    trained(folder / "runs" / "modern", folder / "char" / "data" / "char", arch="modern", n_head=2)
    return folder


def sent(source: Path | str, out: Path, to: Any = "hf") -> Exported:
    return export(str(source), ExportOptions(to=to, out=str(out)))


@torch.no_grad()
def own_logits(source: Path | str, tokens: Tensor) -> Tensor:
    origin = open_origin(str(source), "best")
    model = GPT(origin.shape).eval()
    load_weights(model, origin.weights, "it")
    logits: Tensor = model(tokens)
    return logits


@torch.no_grad()
def their_logits(folder: Path, tokens: Tensor) -> Tensor:
    model = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(folder)
    logits: Tensor = model(tokens).logits
    return logits


def some_tokens(vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (3, CONTEXT), generator=torch.Generator().manual_seed(4))


# --- Hugging Face ---


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "gpt2"])
def test_transformers_loads_model_and_tokenizer_without_code_of_ours(
    root: Path, tmp_path: Path, kind: str
) -> None:
    transformers = pytest.importorskip("transformers")
    done = sent(root / "runs" / kind, tmp_path / "out")
    assert done.proof.reader == f"transformers {transformers.__version__}"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    tokens = some_tokens(model.config.vocab_size)
    expected = own_logits(root / "runs" / kind, tokens)
    torch.testing.assert_close(their_logits(tmp_path / "out", tokens), expected, atol=1e-5, rtol=0)
    ours = open_parcel(str(root / "runs" / kind)).tokenizer
    text = LINE[::-1] + LINE
    ids = ours.encode(text).tolist()
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == ours.vocab_size == model.config.vocab_size
    assert tokenizer.eos_token_id == ours.eot == model.config.eos_token_id
    start = tokenizer(LINE[0], return_tensors="pt")
    written = model.generate(**start, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert written.shape[1] >= 2


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": True},
        {"tie_embeddings": False},
        {"activation": "gelu_new", "bias": True},
        {"activation": "relu2"},
        {"n_head": 4, "dropout": 0.1},
    ],
    ids=str,
)
def test_every_shape_that_gpt2s_layout_can_hold(root: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    run = trained(tmp_path / "run", root / "char" / "data" / "char", **changes)
    sent(run, tmp_path / "out")
    tokens = some_tokens(20)
    expected = own_logits(run, tokens)
    torch.testing.assert_close(their_logits(tmp_path / "out", tokens), expected, atol=1e-5, rtol=0)
    shape, _ = read_pretrained(tmp_path / "out")  # and back
    torch.testing.assert_close(own_logits(tmp_path / "out", tokens), expected, atol=1e-6, rtol=0)
    assert (shape.activation, shape.tie_embeddings) == (
        changes.get("activation", "gelu"),
        changes.get("tie_embeddings", True),
    )


def test_without_biases_zeros_are_written(root: Path, tmp_path: Path) -> None:
    done = sent(root / "runs" / "char", tmp_path / "out")
    state = load_file(tmp_path / "out" / "model.safetensors")
    biases = {name: tensor for name, tensor in state.items() if name.endswith(".bias")}
    assert len(biases) == 2 * 6 + 1
    assert not any(tensor.any() for tensor in biases.values())
    assert ("biases", "zeros") in [(note.name, note.value) for note in done.notes]


def test_padding_of_the_vocabulary_stays_behind(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_PAD_VOCABULARY_ABOVE", 100)
    run = trained(tmp_path / "run", root / "bpe" / "data" / "bpe")
    assert open_origin(str(run)).shape.vocab_size == 320
    done = sent(run, tmp_path / "out")
    note = next(note for note in done.notes if note.name == "vocabulary")
    assert (note.value, note.reason) == (
        "300 rows",
        "of 320: the other 20 were padding and stand for no token",
    )
    tokens = some_tokens(300)
    exported = own_logits(tmp_path / "out", tokens)
    torch.testing.assert_close(exported, own_logits(run, tokens)[..., :300], atol=1e-6, rtol=0)
    ckpt = torch.load(sent(run, tmp_path / "nano", "nanogpt").out / "ckpt.pt", weights_only=True)
    assert ckpt["model_args"]["vocab_size"] == 300
    assert ckpt["optimizer"]["state"][0]["exp_avg"].shape == (300, 16)


def test_checkpoints_are_chosen_as_glass_sample_does(root: Path, tmp_path: Path) -> None:
    run = root / "runs" / "char"
    for spec, update in ((f"{run}@1", 1), (f"{run}@last", 3)):
        done = sent(spec, tmp_path / str(update))
        assert done.parcel.origin.iter == update
        assert json.loads((done.out / MARKER).read_text())["model"] == f"char@{update}"
    best = open_origin(str(run), "best").iter
    assert sent(run, tmp_path / "best").parcel.origin.iter == best
    with pytest.raises(UserError, match="has no checkpoint @2000"):
        sent(f"{run}@2000", tmp_path / "none")


def test_without_transformers_our_own_model_reads_the_files_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for kind in ("char", "byte", "bpe", "gpt2"):
        done = sent(root / "runs" / kind, tmp_path / kind)
        assert done.proof.reader == "GlassGPT, from the files"
        assert done.proof.difference <= done.proof.allowed
        assert done.proof.ids > 20


@pytest.mark.parametrize("installed", [True, False])
def test_an_export_that_computes_something_else_is_not_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    def slightly_wrong(*arguments: Any) -> dict[str, Tensor]:
        state = to_transformers(*arguments)
        positions = state["transformer.wpe.weight"].clone()
        positions[CONTEXT - 1, 3] += 1e-2  # one number of all
        return state | {"transformer.wpe.weight": positions}

    monkeypatch.setattr(hf, "to_transformers", slightly_wrong)
    if not installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"the export is wrong: .* its logits differ by up to .* nothing was"):
        sent(root / "runs" / "char", tmp_path / "a" / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["hf", "glass", "nanogpt"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_as_such(
    root: Path, tmp_path: Path, to: str, number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(root / "runs" / "char", tmp_path / "whole", "glass")
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"][3, 2] = number
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    assert main(["export", str(tmp_path / "whole"), f"--to={to}", f"--out={tmp_path / 'out'}"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "not finite (NaN or infinity in 1 tensor, the first is transformer.h.1.mlp.c_fc.weight):" in said
    assert "the export is wrong" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_logits_that_overflow_are_refused_as_such(root: Path, tmp_path: Path) -> None:
    sent(root / "runs" / "char", tmp_path / "whole", "glass")
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    weights["transformer.ln_f.weight"] += 3e38
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    with pytest.raises(UserError, match=r"the logits of .*whole are not finite, nothing was written"):
        sent(tmp_path / "whole", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_reads_differently_is_not_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = open_parcel(str(root / "runs" / "char")).tokenizer
    wrong = dump_tokenizer(CharTokenizer(right.decode(range(right.vocab_size))[::-1]))
    monkeypatch.setattr(hf, "dump_tokenizer", lambda tokenizer: wrong)
    with pytest.raises(UserError, match="does not turn text into the same tokens and back"):
        sent(root / "runs" / "char", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_modern_is_refused_with_the_way_that_works(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for to, why in (("hf", "no model in transformers computes"), ("nanogpt", "model.py does not compute")):
        words = ["export", str(root / "runs" / "modern"), f"--to={to}", f"--out={tmp_path / 'out'}"]
        assert main(words) == 2
        said = capsys.readouterr().err
        assert why in said
        assert "--to=glass writes safetensors with a loader of a few lines" in said
    assert list(tmp_path.iterdir()) == []


# --- our own layout ---


@pytest.mark.parametrize("kind", ["modern", "char", "byte", "bpe"])
def test_our_own_layout_is_read_back_as_it_was(root: Path, tmp_path: Path, kind: str) -> None:
    run = root / "runs" / kind
    done = sent(run, tmp_path / "out", "glass")
    tokens = some_tokens(done.parcel.shape.vocab_size)
    assert torch.equal(own_logits(tmp_path / "out", tokens), own_logits(run, tokens))
    ours = open_parcel(str(tmp_path / "out")).tokenizer
    assert ours.encode(LINE).tolist() == done.parcel.tokenizer.encode(LINE).tolist()


@pytest.mark.parametrize("change", [{"n_head": 3}, {"arch": "llama"}, {"n_layer": "2"}, {"bias": 1}])
def test_a_changed_config_of_ours_is_refused(root: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    sent(root / "runs" / "modern", tmp_path / "out", "glass")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="does not describe a model as `glass export` does"):
        read_pretrained(tmp_path / "out")


def test_a_run_can_begin_from_an_export(root: Path, tmp_path: Path) -> None:
    """The tokens are compared: as many others are refused."""
    sent(root / "runs" / "char", tmp_path / "out")
    run = trained(
        tmp_path / "run", root / "char" / "data" / "char", init_from=str(tmp_path / "out"), max_iters=1
    )
    before = next(
        record["loss"]
        for record in journal.read(run / journal.NAME)
        if record["kind"] == "eval" and record["iter"] == 0 and record["split"] == "val"
    )
    assert before == pytest.approx(open_origin(str(root / "runs" / "char"), "best").val_loss, abs=1e-5)
    with pytest.raises(UserError, match="has a vocabulary of 256"):
        trained(tmp_path / "other", root / "byte" / "data" / "byte", init_from=str(tmp_path / "out"))


# --- nanoGPT ---

# What nanoGPT's model.py has, for two layers without biases.
LAYER = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
NANOGPT_KEYS = [
    "transformer.wte.weight",
    "transformer.wpe.weight",
    *(f"transformer.h.{layer}.{part}.weight" for layer in range(2) for part in LAYER),
    "transformer.ln_f.weight",
    "lm_head.weight",
]
NANOGPT_ARGUMENTS = {"block_size", "vocab_size", "n_layer", "n_head", "n_embd", "dropout", "bias"}


def test_a_ckpt_is_as_nanogpt_reads_it(root: Path, tmp_path: Path) -> None:
    run = root / "runs" / "char"
    done = sent(run, tmp_path / "out", "nanogpt")
    content = torch.load(tmp_path / "out" / "ckpt.pt", map_location="cpu", weights_only=True)
    assert content.keys() == {"model", "model_args", "iter_num", "best_val_loss", "config", "optimizer"}
    assert content["model_args"].keys() == NANOGPT_ARGUMENTS  # its GPTConfig takes no others
    assert sorted(content["model"]) == sorted(NANOGPT_KEYS)  # it is loaded strictly
    assert torch.equal(content["model"]["lm_head.weight"], content["model"]["transformer.wte.weight"])
    assert content["model"]["transformer.h.0.mlp.c_fc.weight"].shape == (64, 16)
    origin = open_origin(str(run), "best")
    assert (content["iter_num"], content["best_val_loss"]) == (origin.iter, origin.val_loss)
    assert content["config"]["dataset"] == "char"
    vocabulary = read_meta(tmp_path / "out" / "meta.pkl")
    assert vocabulary.characters == done.parcel.tokenizer.decode(range(vocabulary.vocab_size))


def test_nanogpts_optimizer_takes_its_state(root: Path, tmp_path: Path) -> None:
    """By position: its configure_optimizers has matrices first, then the rest, each in the model's order."""
    run = root / "runs" / "char"
    sent(run, tmp_path / "out", "nanogpt")
    content = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    model = open_parcel(str(run)).model()
    named = dict(model.named_parameters())
    order = [name for name in named if named[name].dim() >= 2] + [
        name for name in named if named[name].dim() < 2
    ]
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    optimizer.load_state_dict(content["optimizer"])
    kept = open_origin(str(run), "best").optimizer
    for position, name in enumerate(order):
        state = optimizer.state[named[name]]
        assert torch.equal(state["exp_avg_sq"], kept[f"{name}:exp_avg_sq"]), position
        assert state["step"] == kept[f"{name}:step"]
    assert [group["weight_decay"] for group in content["optimizer"]["param_groups"]] == [0.1, 0.0]


def test_muons_memory_is_left_out(root: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", root / "char" / "data" / "char", optimizer="muon")
    done = sent(run, tmp_path / "out", "nanogpt")
    assert "optimizer" not in torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert ("optimizer", "left out") in [(note.name, note.value) for note in done.notes]


def test_what_it_exports_is_what_it_imports(root: Path, tmp_path: Path) -> None:
    """Through a ckpt.pt and back, to the last bit."""
    out = sent(root / "runs" / "char", tmp_path / "out", "nanogpt").out
    tokens = some_tokens(20)
    assert torch.equal(own_logits(out, tokens), own_logits(root / "runs" / "char", tokens))
    again = export(str(out), ExportOptions(out=str(tmp_path / "hf"), data_dir=str(out)))
    assert again.parcel.origin.kind == "nanogpt"
    ids = open_parcel(str(root / "runs" / "char")).tokenizer.encode(LINE).tolist()
    assert again.parcel.tokenizer.encode(LINE).tolist() == ids
    assert "not recorded" in (tmp_path / "hf" / "README.md").read_text()


def test_gpt2s_tokens_need_no_meta(root: Path, tmp_path: Path) -> None:
    assert not (sent(root / "runs" / "gpt2", tmp_path / "out", "nanogpt").out / "meta.pkl").exists()


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_a_meta_says_what_each_id_is(root: Path, tmp_path: Path, kind: str) -> None:
    done = sent(root / "runs" / kind, tmp_path / "out", "nanogpt")
    path = tmp_path / "out" / "meta.pkl"
    meta = pickle.loads(path.read_bytes())  # noqa: S301 - as sample.py does
    assert "".join(meta["itos"][meta["stoi"][letter]] for letter in "glass\n") == "glass\n"
    ids = done.parcel.tokenizer.encode("glass, don't you'll see\n").tolist()
    assert "".join(meta["itos"][id] for id in ids) == "glass, don't you'll see\n"
    assert "prompts" in [note.name for note in done.notes]


def test_gpt2s_activation_becomes_nanogpts_and_the_difference_is_said(root: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", root / "char" / "data" / "char", activation="gelu_new")
    done = sent(run, tmp_path / "out", "nanogpt")
    note = next(note for note in done.notes if note.name == "activation")
    said = float(note.reason.partition("up to ")[2].split()[0])
    tokens = torch.randint(
        done.parcel.shape.vocab_size, (1, CONTEXT), generator=torch.Generator().manual_seed(0)
    )
    theirs = own_logits(done.out, tokens)  # a ckpt.pt has the exact GELU
    assert said == pytest.approx((theirs - own_logits(run, tokens)).abs().max().item(), rel=0.1)
    assert said > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"activation": "relu2"}, "relu2"), ({"tie_embeddings": False}, "one matrix for both")],
)
def test_what_nanogpt_cannot_compute_is_refused(
    root: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    run = trained(tmp_path / "run", root / "char" / "data" / "char", **changes)
    with pytest.raises(UserError, match=f"{said}.*; --to=hf can have it"):
        sent(run, tmp_path / "out", "nanogpt")
    assert not (tmp_path / "out").exists()


# --- the card ---


def test_the_card_has_the_runs_facts_and_no_path(root: Path, tmp_path: Path) -> None:
    run = root / "runs" / "char"
    done = sent(f"{run}@3", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    records = list(journal.read(run / journal.NAME))
    start = next(record for record in records if record["kind"] == "run")
    end = records[-1]
    val = next(
        record["loss"]
        for record in records
        if record["kind"] == "eval" and record["split"] == "val" and record["iter"] == 3
    )
    assert f"| val, sampled: nats per token | {val:.4f} |" in card
    assert f"| tokens seen | {3 * 4 * CONTEXT} |" in card
    assert f"| tokens to learn from | {start['data']['tokens']['train']:,} |" in card
    assert start["data"]["hash"] in card
    assert f"| device | {start['machine']['device']['name']} |" in card
    assert f"| parameters | {start['model']['parameters']:,} |" in card
    shares = [float(part.split("%")[0]) for part in card.partition("time went")[2].split("(")[1:9]]
    assert shares == pytest.approx([100 * s / end["wall_s"] for s in end["ledger"].values()], abs=0.06)
    assert "glass train training.toml" in card
    for path in done.out.iterdir():
        assert b"somebodys_home" not in path.read_bytes(), path.name


def test_the_time_of_killed_processes_is_in_the_card(root: Path, tmp_path: Path) -> None:
    """Two are killed, after 100 s and 150 s by their records; the third's ledger is all that the run has."""
    run = shutil.copytree(root / "runs" / "char", tmp_path / "run")
    path = run / journal.NAME
    last = [record | {"process": 2} for record in journal.read(path)]
    ledger = last[-1]["ledger"] = {"startup": 4.0, "train": 46.0}
    killed = [
        {"kind": kind, "iter": iter, "time": time, "process": process}
        for kind, iter, time, process in (
            ("run", 0, 1000.0, 0), ("step", 90, 1100.0, 0),
            ("run", 0, 2000.0, 1), ("resume", 0, 2001.0, 1), ("step", 140, 2150.0, 1),
        )
    ]  # fmt: skip
    last.insert(1, {"kind": "resume", "iter": 0, "from_iter": -1, "time": last[0]["time"], "process": 2})
    path.write_bytes(b"".join(map(journal.encode, killed + last)))
    card = (sent(run, tmp_path / "out").out / "README.md").read_text()
    assert f"| train | 46 s ({46 / 300:.1%}) |" in card
    assert (
        f"| 2 processes that left no ledger | 4m 10s ({250 / 300:.1%}), from first to last record |" in card
    )
    assert "| the whole run | at least 5m 00s |" in card
    path.write_bytes(b"".join(map(journal.encode, last)))
    card = (sent(run, tmp_path / "other").out / "README.md").read_text()
    assert f"| the whole run | {sum(ledger.values()):.0f} s |" in card
    path.write_bytes(b"".join(map(journal.encode, last[:-1])))
    assert (
        "| 1 process that left no ledger |" in (sent(run, tmp_path / "third").out / "README.md").read_text()
    )


def test_tokens_seen_are_those_of_each_process_and_nothing_after_the_checkpoint_is_told(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(root / "runs" / "char", tmp_path / "run")
    words = [f"--out_dir={run}", "--init_from=resume", "--max_iters=5", "--batch_size=8"]
    assert main(["train", *words]) == 0
    runs = [record for record in journal.read(run / journal.NAME) if record["kind"] == "run"]
    per_pass = runs[0]["data"]["tokens"]["train"]
    for update, seen, said in (
        (2, 2 * 4 * CONTEXT, "48"),
        (3, 3 * 4 * CONTEXT, "48"),  # where the second process began
        (5, (3 * 4 + 2 * 8) * CONTEXT, "48, then 96"),
    ):
        card = (sent(f"{run}@{update}", tmp_path / str(update)).out / "README.md").read_text()
        assert f"| tokens seen | {seen} |" in card
        assert f"| tokens per update | {said} |" in card
        assert f"| passes over the data | {seen / per_pass:.3g} |" in card


def test_an_abandoned_branch_is_told_as_it_was() -> None:
    """Process 1 goes on from update 10, but the checkpoint of update 20 is process 0's."""
    records = [
        {"kind": kind, "iter": iter, "process": process, "time": 0.0}
        for kind, iter, process in (
            ("run", 0, 0), ("eval", 20, 0), ("step", 21, 0), ("checkpoint", 20, 0), ("step", 25, 0),
            ("run", 10, 1), ("resume", 10, 1), ("eval", 20, 1), ("checkpoint", 30, 1),
        )
    ]  # fmt: skip
    assert until_checkpoint(records, 20) == [records[0], records[1], records[3]]
    assert until_checkpoint(records, 30) == [records[0], *records[5:]]


def test_an_export_can_be_exported_and_tells_no_path_either(root: Path, tmp_path: Path) -> None:
    sent(root / "runs" / "bpe", root / "handed-over")
    done = sent(root / "handed-over", tmp_path / "out", "glass")
    tokens = some_tokens(300)
    expected = own_logits(root / "runs" / "bpe", tokens)
    torch.testing.assert_close(own_logits(done.out, tokens), expected, atol=1e-6, rtol=0)
    assert done.parcel.name == "handed-over"
    assert (tmp_path / "out" / "README.md").read_text().count("not recorded") > 5
    assert not (tmp_path / "out" / "training.toml").exists()  # nobody knows
    for path in done.out.iterdir():
        assert b"somebodys_home" not in path.read_bytes(), path.name


def test_its_command_asks_for_the_same_run(root: Path, tmp_path: Path) -> None:
    from glassgpt.recipe import find_recipe

    sent(root / "runs" / "char", tmp_path / "out")
    recipe = find_recipe(str(tmp_path / "out" / "training.toml"))
    assert recipe.settings["n_embd"] == 16
    assert recipe.settings["max_iters"] == 3
    assert recipe.settings["dataset"] == "char"


# --- the place ---


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_is_replaced_and_nothing_else(root: Path, tmp_path: Path) -> None:
    run, out = root / "runs" / "char", tmp_path / "out"
    sent(f"{run}@1", out)
    sent(f"{run}@last", out)
    assert json.loads((out / MARKER).read_text())["model"] == "char@3"
    (out / "README.md").write_text("my own words")
    before = snapshot(out)
    with pytest.raises(UserError, match=r"was changed since it was written \(README.md\)"):
        sent(run, out)
    assert snapshot(out) == before
    shutil.copy(root / "char" / "text.txt", out / "mine.txt")
    with pytest.raises(UserError, match=r"\(README.md, mine.txt\)"):
        sent(run, out)


@pytest.mark.parametrize("marker", [None, "{", "[]", '{"written_by": 3}', '{"written_by": "glass export"}'])
def test_a_folder_of_somebody_else_is_left_alone(root: Path, tmp_path: Path, marker: str | None) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    if marker is not None:
        (tmp_path / MARKER).write_text(marker)
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="holds something that `glass export` did not write"):
        sent(root / "runs" / "char", tmp_path)
    assert snapshot(tmp_path) == before


def test_a_file_or_a_link_in_its_place_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(UserError, match="is not a folder: choose another --out"):
            sent(root / "runs" / "char", tmp_path / name)
    with pytest.raises(UserError, match="cannot be written, because of"):
        sent(root / "runs" / "char", tmp_path / "file" / "below")


def test_a_crash_on_the_way_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = root / "runs" / "char", tmp_path / "a" / "out"
    sent(run, out)
    before = snapshot(out)

    def crash(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(proof, "check_hf", crash)
    with pytest.raises(UserError, match=r"could not be written \(.*No space left.*\): choose another --out$"):
        sent(run, out)
    assert snapshot(out) == before
    assert list(out.parent.iterdir()) == [out]


def test_its_usual_place(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(str(root / "runs" / "char"), ExportOptions(to="glass")).out == Path("exports/char-glass")


# --- the command ---


def test_the_command_says_what_it_did(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(root / "runs" / "char"), "--to", "nanogpt", f"--out={tmp_path / 'o'}"]) == 0
    said = capsys.readouterr().out
    assert "check         read back by GlassGPT, from the file: logits are equal to the last bit" in said
    assert f"python sample.py --out_dir={tmp_path / 'o'}" in said
    assert f"cp {tmp_path / 'o'}/meta.pkl data/char/" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which run to export"),
        (["a", "b"], "say which run to export"),
        (["nothing-there"], "nothing-there is neither a run"),
        (["nope/nope"], "no run or folder nope/nope is here (`glass runs` lists the runs there are), and of"),
        (["a", "--to=onnx"], "--to=onnx is not one of hf, nanogpt, glass"),
        (["a", "--too=hf"], "did you mean --to?"),
    ],
)
def test_a_mistake_is_answered_with_code_2(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # nothing is asked of a network
    assert main(["export", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_who_finetunes_an_export_on_other_characters_is_sent_to_its_own(root: Path, tmp_path: Path) -> None:
    """Characters cannot be given to `glass prepare` as a table, as byte pairs can."""
    folder = sent(root / "runs" / "char", tmp_path / "exported").out
    known = json.loads((root / "char" / "data" / "char" / "manifest.json").read_text())["vocab_size"]
    other = prepared(tmp_path, "char", "".join(chr(0x3041 + i) for i in range(known)) * 40)
    complaint = r"which needs the dataset that it was trained on: its tokenizer is char"
    with pytest.raises(UserError, match=complaint):
        trained(tmp_path / "run", other, init_from=str(folder), arch="gpt2")


@pytest.mark.parametrize("to", ["hf", "nanogpt", "glass"])
def test_a_full_disk_is_said_and_leaves_nothing(root: Path, tmp_path: Path, to: str) -> None:
    """The libraries that write tensors do not call it an OSError."""
    if not hasattr(signal, "SIGXFSZ"):
        pytest.skip("this system has no limit on the size of files")
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
        "from glassgpt.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["export", str(root / "runs" / "char"), f"--to={to}", f"--out={tmp_path / 'there'}"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"error: {tmp_path / 'there'} could not be written (the disk may be full; " in done.stderr
    assert list(tmp_path.iterdir()) == []
