"""What is exported for nanoGPT is as its own train.py would have written it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_runs import LINE, TOKENIZERS, own_logits, run_export, some_tokens, train_run, train_with_each
from small_runs import CONTEXT

from glassgpt.data.nanogpt_bin import read_meta
from glassgpt.errors import UserError
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.export import export
from glassgpt.exchange.export_formats import load_exportable_model
from glassgpt.training.weight_source import load_init_from

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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each tokenizer."""
    folder = tmp_path_factory.mktemp("somebodys_home")
    train_with_each(TOKENIZERS, folder)
    return folder


def test_a_ckpt_is_as_nanogpt_reads_it(root: Path, tmp_path: Path) -> None:
    run = root / "runs" / "char"
    done = run_export(run, tmp_path / "out", "nanogpt")
    content = torch.load(tmp_path / "out" / "ckpt.pt", map_location="cpu", weights_only=True)
    assert content.keys() == {"model", "model_args", "iter_num", "best_val_loss", "config", "optimizer"}
    assert content["model_args"].keys() == NANOGPT_ARGUMENTS  # its GPTConfig takes no others
    assert sorted(content["model"]) == sorted(NANOGPT_KEYS)  # it is loaded strictly
    assert torch.equal(content["model"]["lm_head.weight"], content["model"]["transformer.wte.weight"])
    assert content["model"]["transformer.h.0.mlp.c_fc.weight"].shape == (64, 16)
    origin = load_init_from(str(run), "best")
    assert (content["iter_num"], content["best_val_loss"]) == (origin.iter, origin.val_loss)
    assert content["config"]["dataset"] == "char"
    vocabulary = read_meta(tmp_path / "out" / "meta.pkl")
    assert vocabulary.characters == done.model.tokenizer.decode(range(vocabulary.vocab_size))


def test_nanogpts_optimizer_takes_its_state(root: Path, tmp_path: Path) -> None:
    """By position: its configure_optimizers has matrices first, then the rest, each in the model's order."""
    run = root / "runs" / "char"
    run_export(run, tmp_path / "out", "nanogpt")
    content = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    model = load_exportable_model(str(run)).model()
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
    kept = load_init_from(str(run), "best").optimizer
    for position, name in enumerate(order):
        state = optimizer.state[named[name]]
        assert torch.equal(state["exp_avg_sq"], kept[f"{name}:exp_avg_sq"]), position
        assert state["step"] == kept[f"{name}:step"]
    assert [group["weight_decay"] for group in content["optimizer"]["param_groups"]] == [0.1, 0.0]


def test_muons_memory_is_left_out(root: Path, tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", root / "char" / "data" / "char", optimizer="muon")
    done = run_export(run, tmp_path / "out", "nanogpt")
    assert "optimizer" not in torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert ("optimizer", "omitted") in [(note.name, note.value) for note in done.notes]


def test_what_it_exports_is_what_it_imports(root: Path, tmp_path: Path) -> None:
    """Through a ckpt.pt and back, to the last bit."""
    out = run_export(root / "runs" / "char", tmp_path / "out", "nanogpt").out_dir
    tokens = some_tokens(20)
    assert torch.equal(own_logits(out, tokens), own_logits(root / "runs" / "char", tokens))
    again = export(str(out), ExportOptions(out=str(tmp_path / "hf"), data_dir=str(out)))
    assert again.model.origin.kind == "nanogpt"
    ids = load_exportable_model(str(root / "runs" / "char")).tokenizer.encode(LINE).tolist()
    assert again.model.tokenizer.encode(LINE).tolist() == ids
    assert "not recorded" in (tmp_path / "hf" / "README.md").read_text()


def test_gpt2s_tokens_need_no_meta(root: Path, tmp_path: Path) -> None:
    assert not (run_export(root / "runs" / "gpt2", tmp_path / "out", "nanogpt").out_dir / "meta.pkl").exists()


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_a_meta_says_what_each_id_is(root: Path, tmp_path: Path, kind: str) -> None:
    done = run_export(root / "runs" / kind, tmp_path / "out", "nanogpt")
    path = tmp_path / "out" / "meta.pkl"
    meta = pickle.loads(path.read_bytes())  # noqa: S301 - as sample.py does
    assert "".join(meta["itos"][meta["stoi"][letter]] for letter in "glass\n") == "glass\n"
    ids = done.model.tokenizer.encode("glass, don't you'll see\n").tolist()
    assert "".join(meta["itos"][id] for id in ids) == "glass, don't you'll see\n"
    assert "prompts" in [note.name for note in done.notes]


def test_gpt2s_activation_becomes_nanogpts_and_the_difference_is_said(root: Path, tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", root / "char" / "data" / "char", activation="gelu_new")
    done = run_export(run, tmp_path / "out", "nanogpt")
    note = next(note for note in done.notes if note.name == "activation")
    said = float(note.reason.partition("up to ")[2].partition(",")[0])
    tokens = torch.randint(
        done.model.shape.vocab_size, (1, CONTEXT), generator=torch.Generator().manual_seed(0)
    )
    theirs = own_logits(done.out_dir, tokens)  # a ckpt.pt has the exact GELU
    assert said == pytest.approx((theirs - own_logits(run, tokens)).abs().max().item(), rel=0.1)
    assert said > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"activation": "relu2"}, "relu2"), ({"tie_embeddings": False}, "ties them")],
)
def test_what_nanogpt_cannot_compute_is_refused(
    root: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    run = train_run(tmp_path / "run", root / "char" / "data" / "char", **changes)
    with pytest.raises(UserError, match=f"{said}.*; --to=hf supports it"):
        run_export(run, tmp_path / "out", "nanogpt")
    assert not (tmp_path / "out").exists()
