"""GPT-2's folders: found where they are, read exactly, refused with the reason; all without a network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_models import CONTEXT, change_config, hf_gpt2, hf_nanochat, little_config, some_batch, some_tokens
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.model.pretrained import find_pretrained, read_pretrained
from glassgpt.model.weights import crop_block_size, load_weights


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `transformers` writes it."""
    folder = tmp_path_factory.mktemp("hf") / "little-gpt2"
    hf_gpt2().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in ("config.json", "model.safetensors"):
        (copy / file).write_bytes((original / file).read_bytes())
    return copy


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    """None removes one; dots are written as double underscores."""
    path = folder / "model.safetensors"
    state = load_file(path)
    for name, tensor in changes.items():
        state.pop(f"transformer.{name.replace('__', '.')}", None)
        if tensor is not None:
            state[f"transformer.{name.replace('__', '.')}"] = tensor
    save_file(state, path)


def built(config: GPTConfig, state: dict[str, Tensor]) -> GPT:
    model = GPT(config).eval()
    load_weights(model, state, "the folder")
    return model


def problems(folder: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_pretrained(folder)
    assert all(len(problem) < 400 for problem in caught.value.problems)
    return [problem.removeprefix(f"{folder}{os.sep}") for problem in caught.value.problems]


# --- reading ---


@torch.no_grad()
def test_a_folder_of_transformers_is_the_same_model(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hf_gpt2()(some_tokens()).logits
    monkeypatch.setitem(sys.modules, "transformers", None)
    config, state = read_pretrained(original)
    assert config == little_config(bias=True, activation="gelu_new")
    torch.testing.assert_close(built(config, state)(some_tokens()), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_other_activation_is_read_from_the_config(tmp_path: Path) -> None:
    hf_model = hf_gpt2(n_head=3, activation="gelu")
    hf_model.save_pretrained(tmp_path)
    config, state = read_pretrained(tmp_path)
    assert (config.activation, config.n_head) == ("gelu", 3)
    logits = built(config, state)(some_tokens())
    torch.testing.assert_close(logits, hf_model(some_tokens()).logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_folder_as_openai_community_has_it(folder: Path) -> None:
    """Without the head's prefix, with old masks, and without settings that are as usual."""
    model = built(*read_pretrained(folder))
    path = folder / "config.json"
    usual = ("tie_word_embeddings", "scale_attn_weights", "n_inner", "activation_function")
    config = {name: value for name, value in json.loads(path.read_text()).items() if name not in usual}
    path.write_text(json.dumps(config | {"n_ctx": CONTEXT, "task_specific_params": {"text-generation": {}}}))
    state = load_file(folder / "model.safetensors")
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
    save_file(state, folder / "model.safetensors")
    assert torch.equal(built(*read_pretrained(folder))(some_tokens()), model(some_tokens()))


def test_half_precision_becomes_float32(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in state.items()}, folder / "model.safetensors")
    _, ours = read_pretrained(folder)
    assert {tensor.dtype for tensor in ours.values()} == {torch.float32}
    assert torch.equal(ours["transformer.wte.weight"], state["transformer.wte.weight"].half().float())


def test_every_setting_that_is_not_implemented_is_named(folder: Path) -> None:
    change_config(
        folder,
        n_inner=7,
        layer_norm_epsilon=1e-6,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
        add_cross_attention=True,
    )
    assert problems(folder) == [
        "config.json: n_inner is 7; only 96 is implemented",
        "config.json: layer_norm_epsilon is 1e-06; only 1e-05 is implemented",
        "config.json: scale_attn_weights is false; only true is implemented",
        "config.json: scale_attn_by_inverse_layer_idx is true; only false is implemented",
        "config.json: add_cross_attention is true; only false is implemented",
    ]
    change_config(folder, n_head=5)
    assert problems(folder) == ["config.json: its n_embd=24 is not divisible by n_head=5"]
    change_config(folder, n_layer=10**300, activation_function="silu", tie_word_embeddings="no")
    assert problems(folder) == [
        f"config.json: it has n_layer=1{'0' * 59}",
        "config.json: it has activation='silu'",
        "config.json: it has tie_embeddings='no'",
    ]


SETTINGS = ["model_type", "vocab_size", "n_positions", "n_layer", "n_head", "n_embd", "n_inner"]
SETTINGS += ["activation_function", "layer_norm_epsilon", "tie_word_embeddings"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SETTINGS), anything)
def test_any_value_of_a_setting_is_refused_or_the_models_own(original: Path, name: str, value: Any) -> None:
    before = (original / "config.json").read_text()
    change_config(original, **{name: value})
    try:
        config, _ = read_pretrained(original)
    except UserError:
        return
    finally:
        (original / "config.json").write_text(before)
    # The weights fit any n_head, and any activation that has a name.
    assert config == little_config(activation=config.activation, n_head=config.n_head)
    assert config.n_head == value or name != "n_head"


def test_a_config_that_is_none(folder: Path, subtests: pytest.Subtests) -> None:
    for content in (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"n_layer": 1' + b"0" * 5000 + b"}",
    ):
        with subtests.test(repr(content[:20])):
            (folder / "config.json").write_bytes(content)
            assert problems(folder)[0].startswith("config.json")


def test_absurd_sizes_are_refused_before_a_model_is_built(folder: Path) -> None:
    change_config(folder, n_layer=900_000, vocab_size=900_000, n_positions=900_000)
    assert problems(folder) == [
        "model.safetensors: it has n_layer=900000, but weights of 2",
        "model.safetensors: its wte.weight is (23, 24), but its settings say (900000, 24)",
        "model.safetensors: its wpe.weight is (16, 24), but its settings say (900000, 24)",
    ]


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1000, -1])
def test_a_truncated_file_is_an_error(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert problems(folder)[0].startswith("model.safetensors cannot be read (")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_an_error(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert problems(folder)[0].startswith(f"{file} cannot be read (")
    with pytest.raises(UserError, match=f"has no {file}: give a folder with both, or one of gpt2, "):
        find_pretrained(str(folder))


def test_a_pickle_is_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is not read.* get model\.safetensors instead"):
        find_pretrained(str(folder))


def test_weights_that_cannot_be_these_are_named(folder: Path) -> None:
    change_weights(
        folder, wte__weight=None, wpe__weight=torch.zeros(9, 24), ln_f__bias=torch.zeros(24).char()
    )
    assert problems(folder) == [
        "model.safetensors: it has no wte.weight",
        "model.safetensors: its wpe.weight is (9, 24), but its settings say (16, 24)",
        "model.safetensors: transformer.ln_f.bias is torch.int8; only float32, bfloat16 and float16 are read",
    ]


def test_a_head_of_its_own_is_refused_where_the_config_says_that_there_is_none(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["lm_head.weight"] = state["transformer.wte.weight"] + 1
    save_file(state, folder / "model.safetensors")
    assert problems(folder) == [
        "model.safetensors: its lm_head.weight differs from its wte.weight, which are one matrix here"
    ]


@torch.no_grad()
def test_a_head_of_its_own_is_read(tmp_path: Path) -> None:
    hf_model = hf_gpt2(tie_word_embeddings=False)
    hf_model.save_pretrained(tmp_path)
    config, state = read_pretrained(tmp_path)
    assert not config.tie_embeddings
    assert not torch.equal(state["lm_head.weight"], state["transformer.wte.weight"])
    logits = built(config, state)(some_tokens())
    torch.testing.assert_close(logits, hf_model(some_tokens()).logits, atol=1e-5, rtol=0)


# --- NanoChat ---


@torch.no_grad()
def test_a_nanochat_of_transformers_is_the_same_model(tmp_path: Path) -> None:
    tokens, targets = some_batch()
    for tied in (True, False):
        hf_model = hf_nanochat(tie_word_embeddings=tied)
        hf_model.save_pretrained(tmp_path / str(tied))
        config, state = read_pretrained(find_pretrained(str(tmp_path / str(tied))))
        assert config == little_config(arch="modern", bias=False, activation="relu2", tie_embeddings=tied)
        model, logits = built(config, state), hf_model(tokens).logits
        torch.testing.assert_close(model(tokens), logits, atol=1e-5, rtol=0)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        assert model(tokens, targets).item() == pytest.approx(loss.item(), abs=1e-6)


def test_what_nanochat_computes_and_we_do_not_is_named(tmp_path: Path) -> None:
    """By the settings in transformers, which has other defaults where the file says nothing."""
    hf_nanochat().save_pretrained(tmp_path)
    before = (tmp_path / "config.json").read_text()
    for name, value in {
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 15.0,
        "attention_bias": True,
        "intermediate_size": 100,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }.items():
        change_config(tmp_path, **{"num_key_value_heads": None} | {name: value})
        named = "activation='silu'" if name == "hidden_act" else name
        assert [named in problem for problem in problems(tmp_path)] == [True]
        (tmp_path / "config.json").write_text(before)
    # Heads of 3 channels have no halves.
    change_config(tmp_path, num_attention_heads=8, num_key_value_heads=None, head_dim=None)
    assert problems(tmp_path) == ["config.json: it has heads of 3 channels; only even ones can be rotated"]
    settings = json.loads(before)
    for name in ("rms_norm_eps", "final_logit_softcapping", "intermediate_size"):
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if k != name}))
        assert [name in problem for problem in problems(tmp_path)] == [True]
    del settings["rope_parameters"], settings["tie_word_embeddings"], settings["hidden_act"]
    (tmp_path / "config.json").write_text(json.dumps(settings))  # whose defaults are ours
    assert read_pretrained(tmp_path)[0].activation == "relu2"


def test_weights_of_nanochat_that_do_not_fit_are_named(tmp_path: Path) -> None:
    hf_nanochat().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    save_file(state | {"model.layers.1.self_attn.q_proj.weight": torch.zeros(6, 24)}, path)
    with pytest.raises(UserError, match=r"lacks transformer\.h\.1\.attn\.c_attn\.weight"):
        built(*read_pretrained(tmp_path))
    save_file({name: tensor for name, tensor in state.items() if "embed_tokens" not in name}, path)
    assert "model.safetensors: it has no wte.weight" in problems(tmp_path)
    save_file(state, path)
    change_config(tmp_path, num_hidden_layers=900_000, vocab_size=900_000, hidden_size=200_000, head_dim=None)
    assert "intermediate_size" in problems(tmp_path)[0]
    change_config(tmp_path, intermediate_size=800_000)
    assert "n_layer=900000, but weights of 2" in problems(tmp_path)[0]


# --- several files ---


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """As `transformers` writes a model that is larger than a file may be."""
    folder = tmp_path / "sharded"
    hf_gpt2().save_pretrained(folder, max_shard_size="20KB")
    assert not (folder / "model.safetensors").exists()
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    return folder


@torch.no_grad()
def test_weights_in_several_files_are_the_same_model(sharded: Path) -> None:
    assert find_pretrained(str(sharded)) == sharded
    logits = built(*read_pretrained(sharded))(some_tokens())
    torch.testing.assert_close(logits, hf_gpt2()(some_tokens()).logits, atol=1e-5, rtol=0)


def test_a_file_that_is_missing_of_several_is_named(sharded: Path) -> None:
    path = sorted(sharded.glob("model-*.safetensors"))[1]
    path.unlink()
    assert problems(sharded)[0].startswith(f"{path.name} cannot be read (")
    os.mkfifo(path)  # which is not waited for
    assert problems(sharded)[0].startswith(f"{path.name} cannot be read (")


@pytest.mark.parametrize(
    "index", [{}, {"weight_map": {}}, {"weight_map": 3}, {"weight_map": {"a": "../../etc/x.safetensors"}}]
)
def test_an_index_that_names_no_files_beside_it_is_refused(sharded: Path, index: Any) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    message = "model.safetensors.index.json does not say which .safetensors files hold the weights"
    assert problems(sharded)[0].startswith(message)


# --- another architecture ---


@pytest.mark.parametrize("kind", ["LlamaConfig", "GPTNeoConfig", "BertConfig"])
def test_another_architecture_is_named_and_nothing_else_is_said(tmp_path: Path, kind: str) -> None:
    config = getattr(pytest.importorskip("transformers"), kind)()
    config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    message = rf'model_type is "{config.model_type}", another architecture; only models of GPT-2\'s kind '
    with pytest.raises(UserError, match=message) as caught:
        find_pretrained(str(tmp_path))
    assert len(caught.value.problems) == 1
    assert len(problems(tmp_path)) == 1


def test_a_layer_of_wrong_shape_is_left_to_load_weights(folder: Path) -> None:
    change_weights(folder, h__0__mlp__c_fc__weight=torch.zeros(2, 2, 2), h__1__ln_1__weight=None)
    with pytest.raises(UserError) as caught:
        built(*read_pretrained(folder))
    assert caught.value.problems == [
        "the folder lacks transformer.h.1.ln_1.weight",
        "transformer.h.0.mlp.c_fc.weight is (2, 2, 2) in the folder, but (96, 24) here",
    ]


# --- cropping ---


@torch.no_grad()
def test_a_shorter_context_computes_the_same(original: Path) -> None:
    config, state = read_pretrained(original)
    short, cropped = crop_block_size(config, state, 5)
    assert short.block_size == 5
    tokens = some_tokens(length=5)
    assert torch.equal(built(short, cropped)(tokens), built(config, state)(tokens))
    assert state["transformer.wpe.weight"].shape == (CONTEXT, 24)  # the original stays
    same, whole = crop_block_size(config, state, CONTEXT)
    assert (same, whole.keys()) == (config, state.keys())


def test_a_longer_context_is_refused(original: Path) -> None:
    config, state = read_pretrained(original)
    with pytest.raises(UserError, match=r"--block_size=17 is more than the 16 positions .* use at most 16"):
        crop_block_size(config, state, CONTEXT + 1)
