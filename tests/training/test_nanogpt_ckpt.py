"""nanoGPT's ckpt.pt: read, never executed, every key accounted for; a run resumes it or starts from it."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import nanogpt_files as ckpt
import numpy as np
import pytest
import torch
from tiny import MakeConfig, capture_learners, choices, records, run_evals, weights

from glassgpt.data.batches import IGNORED_TARGET, evaluation_batch, evaluation_window_starts
from glassgpt.data.dataset import open_dataset
from glassgpt.errors import UserError
from glassgpt.exchange.exchange_options import ImportOptions
from glassgpt.exchange.import_nanogpt import import_run
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import load_weights
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt
from glassgpt.training.session import resume, train


def vocabulary(tiny_data: Path) -> int:
    return open_dataset(tiny_data).manifest.vocab_size


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_come_back_under_our_names(tmp_path: Path, prefix: str, bias: bool) -> None:
    loaded = read_nanogpt_ckpt(ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21, prefix, bias=bias))
    model, _ = ckpt.make_trained_model(21, bias=bias)
    assert loaded.model_config == model.config
    assert loaded.weights.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in model.state_dict().items())
    assert (loaded.iter, loaded.val_loss) == (3, 2.5)


@pytest.mark.parametrize("bias", [False, True])
def test_the_optimizers_state_goes_to_its_parameter(tmp_path: Path, bias: bool) -> None:
    loaded = read_nanogpt_ckpt(ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21, bias=bias))
    model, optimizer = ckpt.make_trained_model(21, bias=bias)
    expected = {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    assert loaded.optimizer.keys() == expected.keys()
    assert all(torch.equal(loaded.optimizer[name], value) for name, value in expected.items())


def test_its_settings_are_inherited_except_those_of_its_machine(tmp_path: Path) -> None:
    loaded = read_nanogpt_ckpt(ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21)).settings
    assert loaded["dataset"] == "tiny"
    assert loaded["learning_rate"] == 1e-2
    assert loaded["gradient_accumulation_steps"] == 2
    assert not {"device", "dtype", "compile", "out_dir", "init_from", "backend"} & loaded.keys()


def test_old_checkpoints_carry_masks_and_lack_things(tmp_path: Path) -> None:
    content = ckpt.make_nanogpt_ckpt(21, bias=True)
    content["model"]["transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    del content["model_args"]["bias"], content["optimizer"], content["config"], content["best_val_loss"]
    torch.save(content, tmp_path / "ckpt.pt")
    loaded = read_nanogpt_ckpt(tmp_path / "ckpt.pt")
    assert loaded.model_config.bias
    assert (loaded.optimizer, loaded.settings, loaded.val_loss) == ({}, {}, None)
    load_weights(GPT(loaded.model_config), loaded.weights, "it")


def broken(change: Any, tmp_path: Path) -> str:
    content = ckpt.make_nanogpt_ckpt(21)
    change(content)
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(UserError) as caught:
        load(tmp_path / "ckpt.pt")
    return str(caught.value)


def load(path: Path) -> None:
    loaded = read_nanogpt_ckpt(path)
    load_weights(GPT(loaded.model_config), loaded.weights, "ckpt.pt")


def test_what_does_not_fit_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda c: c["model"].pop("transformer.ln_f.weight"), "lacks transformer.ln_f.weight"),
        (lambda c: c["model"].update({"extra.weight": torch.ones(1)}), "has extra.weight"),
        (lambda c: c["model"].update({"module.lm_head.weight": torch.ones(21, 16)}), "twice"),
        (lambda c: c["model"].update({"lm_head.weight": torch.ones(21, 16)}), "one matrix here"),
        (lambda c: c["model_args"].pop("n_layer"), "n_layer"),
        (lambda c: c["model_args"].update(n_layer=3), "n_layer=3, but weights of 2"),
        (lambda c: c["optimizer"]["param_groups"][0]["params"].pop(), "parameters"),
        (lambda c: c["optimizer"]["state"][0].update(exp_avg=torch.ones(2, 2)), "optimizer state 0"),
        (lambda c: c.pop("model"), "not a checkpoint of nanoGPT"),
        (lambda c: c["config"].update(learning_rate="fast"), "learning_rate"),
        (lambda c: c.update(model=[1, 2]), "not as nanoGPT writes it"),
    ]
    for change, expected in cases:
        with subtests.test(expected):
            assert expected in broken(change, tmp_path)


class Harm:
    """Runs a command if it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_nothing_in_it_is_executed(tmp_path: Path, how: str) -> None:
    content = ckpt.make_nanogpt_ckpt(21) | {"extra": Harm(f"touch {tmp_path / 'harm'}")}
    path = tmp_path / "ckpt.pt"
    torch.save(content, path) if how == "torch" else path.write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=r"would execute what is in it|is not a checkpoint"):
        read_nanogpt_ckpt(path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_cut_off_it_is_an_error(tmp_path: Path, size: int) -> None:
    path = ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=r"ckpt\.pt"):
        read_nanogpt_ckpt(path)


# --- resuming it ---


def whole_split_loss(model: GPT, tiny_data: Path) -> float:
    """The validation loss, the plain way: all windows at once."""
    tokens = open_dataset(tiny_data).tokens("val")
    T = model.config.block_size
    x, y = evaluation_batch(tokens, evaluation_window_starts(len(tokens), T, None), T)
    targets = torch.from_numpy(y)
    with torch.no_grad():
        losses = model.eval()(torch.from_numpy(x), targets, "none")
    is_target = targets != IGNORED_TARGET
    return float(losses[is_target].double().mean())


def test_a_run_of_nanogpt_resumes_in_its_folder(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = ckpt.write_nanogpt_ckpt(tmp_path / "out-tiny/ckpt.pt", vocabulary(tiny_data), "_orig_mod.")
    before = path.read_bytes()
    learners = capture_learners(monkeypatch)
    run = resume("out-tiny", data_dir=str(tiny_data), max_iters=5, probe_seconds=0, eval_iters=None)
    assert (run.iter, run.reason, run.out_dir) == (5, "finished", Path("out-tiny"))
    model, _ = ckpt.make_trained_model(vocabulary(tiny_data))
    first = run_evals("out-tiny")[3, "val"]
    assert first == pytest.approx(whole_split_loss(model, tiny_data), abs=1e-6)
    assert records("out-tiny", "resume")[0]["from_iter"] == 3
    # AdamW counts on from its three updates.
    steps = {float(state["step"]) for state in learners[-1].optimizers[0].state.values()}
    assert steps == {5.0}
    assert path.read_bytes() == before, "nanoGPT's own file is left as it was"
    # And now it is a run of ours like any other.
    assert resume("out-tiny", max_iters=6).iter == 6
    assert records("out-tiny", "resume")[-1]["from_iter"] == 5


def test_a_new_run_can_start_from_its_weights(
    tiny: MakeConfig, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ckpt.write_nanogpt_ckpt(tmp_path / "out/ckpt.pt", vocabulary(tiny_data))
    config = tiny(init_from=str(path), init_state="weights", max_iters=1, learning_rate=1e-12, n_layer=5)
    learners = capture_learners(monkeypatch)
    train(config)
    model, _ = ckpt.make_trained_model(vocabulary(tiny_data))
    now = weights(learners[-1])
    for name, parameter in model.named_parameters():
        assert torch.allclose(now[name], parameter, atol=1e-6), name
    value, reason = choices(config.out_dir)["init_from"]
    assert value == str(path)
    assert "update 0" in reason


def test_it_resumes_on_its_dataset_by_name_or_by_path(
    tiny: MakeConfig, tiny_data: Path, tmp_path: Path
) -> None:
    path = ckpt.write_nanogpt_ckpt(
        tmp_path / "out/ckpt.pt", vocabulary(tiny_data)
    )  # which says: trained on `tiny`
    copied_data = shutil.copytree(tiny_data, tmp_path / "theirs/tiny")
    for number, where in enumerate(
        ({"dataset": str(copied_data), "data_dir": ""}, {"data_dir": str(copied_data)})
    ):
        config = tiny(init_from=str(path), max_iters=4, out_dir=str(tmp_path / f"run-{number}"), **where)
        train(config)
        assert "resumes at update 3" in choices(config.out_dir)["init_from"][1]


def test_another_vocabulary_is_refused(tiny: MakeConfig, tmp_path: Path) -> None:
    path = ckpt.write_nanogpt_ckpt(tmp_path / "out/ckpt.pt", 7)
    with pytest.raises(UserError, match="vocabulary"):
        train(tiny(init_from=str(path)))
    assert not Path(tiny().out_dir).exists()


@pytest.mark.parametrize("whole", ["the first half", "the last half"])
def test_half_a_file_is_called_damaged(tmp_path: Path, whole: str) -> None:
    path = ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21)
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] if whole == "the first half" else b"PK" + content[half:])
    with pytest.raises(UserError, match="is damaged: "):
        read_nanogpt_ckpt(path)


def test_what_would_unpack_to_far_more_than_the_file_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/99", bytes(10 * path.stat().st_size))
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "testzip", lambda archive: pytest.fail("it was unpacked"))
        with pytest.raises(UserError, match="is refused: it unpacks to"):
            read_nanogpt_ckpt(path)
    path = ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21)
    monkeypatch.setattr(
        "glassgpt.training.checkpoint.nanogpt_ckpt.available_memory_bytes", lambda: path.stat().st_size // 2
    )
    with pytest.raises(UserError, match="is refused: it unpacks to"):
        read_nanogpt_ckpt(path)


def test_a_bytearray_as_large_as_the_file_says_is_refused(tmp_path: Path) -> None:
    """Twenty bytes that ask for a gigabyte: torch takes bytearrays for harmless."""
    path = tmp_path / "ckpt.pt"
    asks = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R."
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("data.pkl", asks), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"archive/{name}", content)
    for content in (path.read_bytes(), asks):  # as newer and as older versions of torch write files
        path.write_bytes(content)
        with pytest.raises(UserError, match="more than tensors and plain values"):
            read_nanogpt_ckpt(path)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = ckpt.write_nanogpt_ckpt(tmp_path / "ckpt.pt", 21)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda part: part.file_size)
    content[largest.header_offset + 200] ^= 4
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged: the checksum of"):
        read_nanogpt_ckpt(path)


@pytest.mark.parametrize("changes", [{"n_head": 0}, {"n_head": 5}, {"n_layer": 10**7}, {"vocab_size": -3}])
def test_a_shape_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    assert "ckpt.pt: it" in broken(lambda content: content["model_args"].update(changes), tmp_path)


LN = "transformer.ln_f.weight"


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1.0] * 16, f"{LN} is a list, not a tensor"),
        (torch.ones(16, dtype=torch.complex64), f"{LN} is of torch.complex64"),
        (torch.ones(16, dtype=torch.int8), f"{LN} is of torch.int8"),
        (torch.ones(16).to_sparse(), f"{LN} is of torch.sparse_coo"),
        (torch.ones(1).expand(16), f"{LN} says that it is (16,), and the file has fewer numbers"),
    ],
)
def test_what_is_no_weight_is_refused(tmp_path: Path, weight: Any, expected: str) -> None:
    assert expected in broken(lambda content: content["model"].update({LN: weight}), tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_layer": 900_000}, "n_layer=900000, but weights of 2"),
        ({"vocab_size": 999_999}, "its wte.weight is (21, 16), but its settings say (999999, 16)"),
        ({"block_size": 999_999}, "its wpe.weight is (8, 16), but its settings say (999999, 16)"),
        ({"dropout": float("nan")}, "dropout=nan"),
    ],
)
def test_nothing_is_built_that_the_file_only_claims(tmp_path: Path, changes: Any, expected: str) -> None:
    """A small file that says it is large must not fill the memory."""
    content = ckpt.make_nanogpt_ckpt(21)
    content["model_args"].update(changes)
    del content["optimizer"]
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(UserError) as caught:
        read_nanogpt_ckpt(tmp_path / "ckpt.pt")
    assert expected in str(caught.value)


def test_an_optimizer_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    assert "for transformer.wte.weight" in broken(lambda c: c["optimizer"]["state"].pop(0), tmp_path)


def test_what_cannot_be_a_number_is_refused(tmp_path: Path) -> None:
    for change in (
        lambda c: c.update(iter_num=float("inf")),
        lambda c: c.update(iter_num=float("nan")),
        lambda c: c.update(best_val_loss=10**400),
        lambda c: c["model"].update({LN: torch.ones(16, device="meta")}),
        lambda c: c["optimizer"]["state"][0].update(exp_avg=torch.ones(21, 16, device="meta")),
    ):
        assert "ckpt.pt" in broken(change, tmp_path)


def test_scalars_of_numpy_are_numbers(tmp_path: Path) -> None:
    for kind in (np.float64, np.float32, np.float16, np.dtype(">f8").type):
        content = ckpt.make_nanogpt_ckpt(21) | {"best_val_loss": kind(2.5), "iter_num": np.int64(7)}
        content["config"]["learning_rate"] = kind(0.5)
        torch.save(content, tmp_path / "ckpt.pt")
        loaded = read_nanogpt_ckpt(tmp_path / "ckpt.pt")
        assert (loaded.iter, loaded.val_loss, loaded.settings["learning_rate"]) == (7, 2.5, 0.5)
    for other in (np.array([1.0]), np.datetime64("2020-01-01"), np.str_("text"), np.complex64(1)):
        torch.save(ckpt.make_nanogpt_ckpt(21) | {"best_val_loss": other}, tmp_path / "ckpt.pt")
        with pytest.raises(UserError, match=r"ckpt\.pt"):
            read_nanogpt_ckpt(tmp_path / "ckpt.pt")


def test_a_tensor_that_the_model_lacks_is_refused_by_every_reader(tmp_path: Path) -> None:
    content = ckpt.make_nanogpt_ckpt(21)
    content["model"]["transformer.h.0.extra"] = torch.ones(2)
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match="extra"):
        read_nanogpt_ckpt(tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match="extra"):
        import_run(str(tmp_path), ImportOptions(out=str(tmp_path / "imported")))
    assert not (tmp_path / "imported").exists()
