"""What is exported computes the same where it is loaded, or is not written at all."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from exported_runs import (
    LINE,
    TOKENIZERS,
    own_logits,
    prepare_dataset,
    run_export,
    some_tokens,
    train_run,
    train_with_each,
)
from safetensors.torch import load_file, save_file
from small_runs import CONTEXT
from torch import Tensor

from glassgpt import config as settings
from glassgpt.cli import main
from glassgpt.data.digests import EXPORT_RECORD_FILE
from glassgpt.data.nanogpt_bin import read_meta
from glassgpt.data.tokenizer_json import dump_tokenizer
from glassgpt.data.tokenizers import CharTokenizer
from glassgpt.errors import UserError
from glassgpt.exchange import export_formats, logit_check
from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.export import export
from glassgpt.exchange.export_formats import load_exportable_model
from glassgpt.model.pretrained import read_pretrained
from glassgpt.model.weights import to_transformers
from glassgpt.record import journal
from glassgpt.training.weight_source import load_init_from


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each tokenizer, and a modern one."""
    folder = tmp_path_factory.mktemp("somebodys_home")
    train_with_each(TOKENIZERS, folder)
    train_run(folder / "runs" / "modern", folder / "char" / "data" / "char", arch="modern", n_head=2)
    return folder


@torch.no_grad()
def their_logits(folder: Path, tokens: Tensor) -> Tensor:
    model = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(folder)
    logits: Tensor = model(tokens).logits
    return logits


# --- Hugging Face ---


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "gpt2"])
def test_transformers_loads_model_and_tokenizer_without_code_of_ours(
    root: Path, tmp_path: Path, kind: str
) -> None:
    transformers = pytest.importorskip("transformers")
    done = run_export(root / "runs" / kind, tmp_path / "out")
    assert done.check.loaded_by == f"transformers {transformers.__version__}"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    tokens = some_tokens(model.config.vocab_size)
    expected = own_logits(root / "runs" / kind, tokens)
    torch.testing.assert_close(their_logits(tmp_path / "out", tokens), expected, atol=1e-5, rtol=0)
    ours = load_exportable_model(str(root / "runs" / kind)).tokenizer
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
    run = train_run(tmp_path / "run", root / "char" / "data" / "char", **changes)
    run_export(run, tmp_path / "out")
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
    done = run_export(root / "runs" / "char", tmp_path / "out")
    state = load_file(tmp_path / "out" / "model.safetensors")
    biases = {name: tensor for name, tensor in state.items() if name.endswith(".bias")}
    assert len(biases) == 2 * 6 + 1
    assert not any(tensor.any() for tensor in biases.values())
    assert ("biases", "zeros") in [(note.name, note.value) for note in done.notes]


def test_padding_of_the_vocabulary_stays_behind(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_MIN_PADDED_VOCAB_SIZE", 100)
    run = train_run(tmp_path / "run", root / "bpe" / "data" / "bpe")
    assert load_init_from(str(run)).model_config.vocab_size == 320
    done = run_export(run, tmp_path / "out")
    note = next(note for note in done.notes if note.name == "vocabulary")
    assert (note.value, note.reason) == (
        "300 rows",
        "of 320: the other 20 were padding",
    )
    tokens = some_tokens(300)
    exported = own_logits(tmp_path / "out", tokens)
    torch.testing.assert_close(exported, own_logits(run, tokens)[..., :300], atol=1e-6, rtol=0)
    ckpt = torch.load(run_export(run, tmp_path / "nano", "nanogpt").out_dir / "ckpt.pt", weights_only=True)
    assert ckpt["model_args"]["vocab_size"] == 300
    assert ckpt["optimizer"]["state"][0]["exp_avg"].shape == (300, 16)


def test_checkpoints_are_chosen_as_glass_sample_does(root: Path, tmp_path: Path) -> None:
    run = root / "runs" / "char"
    for spec, update in ((f"{run}@1", 1), (f"{run}@last", 3)):
        done = run_export(spec, tmp_path / str(update))
        assert done.model.origin.iter == update
        assert json.loads((done.out_dir / EXPORT_RECORD_FILE).read_text())["model"] == f"char@{update}"
    best = load_init_from(str(run), "best").iter
    assert run_export(run, tmp_path / "best").model.origin.iter == best
    with pytest.raises(UserError, match="has no checkpoint @2000"):
        run_export(f"{run}@2000", tmp_path / "none")


def test_without_transformers_our_own_model_reads_the_files_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for kind in ("char", "byte", "bpe", "gpt2"):
        done = run_export(root / "runs" / kind, tmp_path / kind)
        assert done.check.loaded_by == "GlassGPT, from the files"
        assert done.check.max_difference <= done.check.tolerance
        assert done.check.round_trip_ids > 20


@pytest.mark.parametrize("installed", [True, False])
def test_an_export_that_computes_something_else_is_not_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    def slightly_wrong(*arguments: Any) -> dict[str, Tensor]:
        state = to_transformers(*arguments)
        positions = state["transformer.wpe.weight"].clone()
        positions[CONTEXT - 1, 3] += 1e-2  # one number of all
        return state | {"transformer.wpe.weight": positions}

    monkeypatch.setattr(export_formats, "to_transformers", slightly_wrong)
    if not installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"the export is wrong: .* its logits differ by up to .* nothing was"):
        run_export(root / "runs" / "char", tmp_path / "a" / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["hf", "glass", "nanogpt"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_as_such(
    root: Path, tmp_path: Path, to: str, number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    run_export(root / "runs" / "char", tmp_path / "whole", "glass")
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"][3, 2] = number
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    (tmp_path / "whole" / EXPORT_RECORD_FILE).unlink()  # else the file is not the recorded one
    assert main(["export", str(tmp_path / "whole"), f"--to={to}", f"--out={tmp_path / 'out'}"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "not finite (NaN or infinity in 1 tensor, the first is transformer.h.1.mlp.c_fc.weight):" in said
    assert "the export is wrong" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_logits_that_overflow_are_refused_as_such(root: Path, tmp_path: Path) -> None:
    run_export(root / "runs" / "char", tmp_path / "whole", "glass")
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    weights["transformer.ln_f.weight"] += 3e38
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    (tmp_path / "whole" / EXPORT_RECORD_FILE).unlink()  # else the file is not the recorded one
    with pytest.raises(UserError, match=r"the logits of .*whole are not finite, nothing was written"):
        run_export(tmp_path / "whole", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_reads_differently_is_not_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = load_exportable_model(str(root / "runs" / "char")).tokenizer
    wrong = dump_tokenizer(CharTokenizer(right.decode(range(right.vocab_size))[::-1]))
    monkeypatch.setattr(export_formats, "dump_tokenizer", lambda tokenizer: wrong)
    with pytest.raises(UserError, match="does not encode and decode text identically"):
        run_export(root / "runs" / "char", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_modern_goes_out_as_nanochat_and_comes_back(root: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    data = root / "char" / "data" / "char"
    shapes: list[dict[str, Any]] = [
        {"n_head": 2},
        {"n_head": 4, "tie_embeddings": False, "activation": "gelu", "dropout": 0.1},
    ]
    for number, changes in enumerate(shapes):
        run, out = tmp_path / f"run{number}", tmp_path / f"out{number}"
        train_run(run, data, arch="modern", learning_rate=0.03, **changes)
        done = run_export(run, out)
        assert done.check.loaded_by == f"transformers {transformers.__version__}"
        tokens = some_tokens(20)
        expected = own_logits(run, tokens)
        torch.testing.assert_close(their_logits(out, tokens), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(own_logits(out, tokens), expected, atol=1e-5, rtol=0)
        config = transformers.AutoConfig.from_pretrained(out)
        assert (config.model_type, config.pad_token_id, config.tie_word_embeddings) == (
            "nanochat",
            None,
            False,
        )
        notes = {note.name: note.value for note in done.notes}
        assert notes["layout"] == "NanoChat"
        assert ("head" in notes, "dropout" in notes) == (
            "tie_embeddings" not in changes,
            "dropout" in changes,
        )


def test_with_a_transformers_that_has_no_nanochat_our_own_model_reads_it_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert (
        run_export(root / "runs" / "modern", tmp_path / "out").check.loaded_by == "GlassGPT, from the files"
    )


def test_what_nanogpt_cannot_compute_is_refused_with_the_way_that_works(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(root / "runs" / "modern"), "--to=nanogpt", f"--out={tmp_path / 'out'}"]
    assert main(words) == 2
    assert "arch=modern" in (said := capsys.readouterr().err)
    assert "--to=hf" in said
    assert list(tmp_path.iterdir()) == []


# --- our own layout ---


@pytest.mark.parametrize("kind", ["modern", "char", "byte", "bpe"])
def test_our_own_layout_is_read_back_as_it_was(root: Path, tmp_path: Path, kind: str) -> None:
    run = root / "runs" / kind
    done = run_export(run, tmp_path / "out", "glass")
    tokens = some_tokens(done.model.shape.vocab_size)
    assert torch.equal(own_logits(tmp_path / "out", tokens), own_logits(run, tokens))
    ours = load_exportable_model(str(tmp_path / "out")).tokenizer
    assert ours.encode(LINE).tolist() == done.model.tokenizer.encode(LINE).tolist()


@pytest.mark.parametrize("change", [{"n_head": 3}, {"arch": "llama"}, {"n_layer": "2"}, {"bias": 1}])
def test_a_changed_config_of_ours_is_refused(root: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    run_export(root / "runs" / "modern", tmp_path / "out", "glass")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (tmp_path / "out" / EXPORT_RECORD_FILE).unlink()  # else the file is not the recorded one
    with pytest.raises(UserError, match=rf"config\.json: it.* {next(iter(change))}="):
        read_pretrained(tmp_path / "out")


def test_a_run_can_begin_from_an_export(root: Path, tmp_path: Path) -> None:
    """The tokens are compared: as many others are refused."""
    data = root / "char" / "data" / "char"
    for name in ("modern", "char"):
        run_export(root / "runs" / name, tmp_path / "out")
        run = train_run(tmp_path / name, data, init_from=str(tmp_path / "out"), max_iters=1)
        before = next(
            record["loss"]
            for record in journal.read(run / journal.FILE_NAME)
            if record["kind"] == "eval" and record["iter"] == 0 and record["split"] == "val"
        )
        assert before == pytest.approx(load_init_from(str(root / "runs" / name), "best").val_loss, abs=1e-5)
    with pytest.raises(UserError, match="has a vocabulary of 256"):
        train_run(tmp_path / "other", root / "byte" / "data" / "byte", init_from=str(tmp_path / "out"))


def test_a_damaged_file_of_an_export_is_not_read(root: Path, tmp_path: Path) -> None:
    """Every file with a recorded digest; one flipped bit of a weight changes nothing that could be seen."""
    for to in ("hf", "glass"):
        out = run_export(root / "runs" / "char", tmp_path / to, to).out_dir
        for name in ("config.json", "model.safetensors", "tokenizer.json", EXPORT_RECORD_FILE):
            content = (out / name).read_bytes()
            (out / name).write_bytes(flipped(content))
            with pytest.raises(UserError, match=rf"{name} is damaged"):
                load_exportable_model(str(out))
            (out / name).write_bytes(content)
        load_exportable_model(str(out))
    (out / "model.safetensors").write_bytes(flipped((out / "model.safetensors").read_bytes()))
    (out / EXPORT_RECORD_FILE).unlink()  # as the message says: nothing is known about the files then
    load_exportable_model(str(out))
    out = run_export(root / "runs" / "char", tmp_path / "nanogpt", "nanogpt").out_dir
    (out / "meta.pkl").write_bytes(flipped((out / "meta.pkl").read_bytes()))
    with pytest.raises(UserError, match=r"meta\.pkl is damaged"):
        read_meta(out / "meta.pkl")


def flipped(content: bytes) -> bytes:
    place = len(content) * 2 // 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_an_export_of_before_there_was_a_digest_of_its_marker(root: Path, tmp_path: Path) -> None:
    out = run_export(root / "runs" / "char", tmp_path / "out").out_dir
    marker = json.loads((out / EXPORT_RECORD_FILE).read_text())
    del marker["digest"]
    (out / EXPORT_RECORD_FILE).write_text(json.dumps(marker))
    load_exportable_model(str(out))
    wrong: list[Any] = [{"../config.json": ""}, {"config.json": 3}, []]
    for bad in wrong:
        (out / EXPORT_RECORD_FILE).write_text(json.dumps(marker | {"sha256": bad}))
        with pytest.raises(UserError, match=rf"{EXPORT_RECORD_FILE} is damaged"):
            load_exportable_model(str(out))
    (out / EXPORT_RECORD_FILE).unlink()
    (out / EXPORT_RECORD_FILE).symlink_to(
        "nowhere"
    )  # which is not the same as none: what it said is not known
    with pytest.raises(UserError, match=rf"{EXPORT_RECORD_FILE} is damaged"):
        load_exportable_model(str(out))


# --- the place ---


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_is_replaced_and_nothing_else(root: Path, tmp_path: Path) -> None:
    run, out = root / "runs" / "char", tmp_path / "out"
    run_export(f"{run}@1", out)
    run_export(f"{run}@last", out)
    assert json.loads((out / EXPORT_RECORD_FILE).read_text())["model"] == "char@3"
    (out / "README.md").write_text("my own words")
    before = snapshot(out)
    with pytest.raises(UserError, match=r"was changed since it was written \(README.md\)"):
        run_export(run, out)
    assert snapshot(out) == before
    shutil.copy(root / "char" / "char.txt", out / "mine.txt")
    with pytest.raises(UserError, match=r"\(README.md, mine.txt\)"):
        run_export(run, out)


@pytest.mark.parametrize("marker", [None, "{", "[]", '{"written_by": 3}', '{"written_by": "glass export"}'])
def test_a_folder_of_somebody_else_is_left_alone(root: Path, tmp_path: Path, marker: str | None) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    if marker is not None:
        (tmp_path / EXPORT_RECORD_FILE).write_text(marker)
    before = snapshot(tmp_path)
    if marker is None:
        os.mkfifo(tmp_path / EXPORT_RECORD_FILE)  # which is not waited for
    with pytest.raises(UserError, match="contains files that `glass export` did not write"):
        run_export(root / "runs" / "char", tmp_path)
    if marker is None:
        (tmp_path / EXPORT_RECORD_FILE).unlink()
    assert snapshot(tmp_path) == before


def test_a_file_or_a_link_in_its_place_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(UserError, match="is not a folder: choose another --out"):
            run_export(root / "runs" / "char", tmp_path / name)
    with pytest.raises(UserError, match="cannot be written, because of"):
        run_export(root / "runs" / "char", tmp_path / "file" / "below")


def test_a_crash_on_the_way_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = root / "runs" / "char", tmp_path / "a" / "out"
    run_export(run, out)
    before = snapshot(out)

    def crash(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logit_check, "check_huggingface", crash)
    with pytest.raises(UserError, match=r"could not be written \(.*No space left.*\): choose another --out$"):
        run_export(run, out)
    assert snapshot(out) == before
    assert list(out.parent.iterdir()) == [out]


def test_its_usual_place(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(str(root / "runs" / "char"), ExportOptions(to="glass")).out_dir == Path(
        "exports/char-glass"
    )


# --- the command ---


def test_the_command_says_what_it_did(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(root / "runs" / "char"), "--to", "nanogpt", f"--out={tmp_path / 'o'}"]) == 0
    said = capsys.readouterr().out
    assert "check         read back by GlassGPT, from the file: logits are bitwise equal" in said
    assert f"python sample.py --out_dir={tmp_path / 'o'}" in said
    assert f"cp {tmp_path / 'o'}/meta.pkl data/char/" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which run to export"),
        (["a", "b"], "say which run to export"),
        (["nothing-there"], "nothing-there is neither a run"),
        (["nope/nope"], "no run or folder nope/nope is here (`glass runs` lists all runs), and of"),
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
    folder = run_export(root / "runs" / "char", tmp_path / "exported").out_dir
    known = json.loads((root / "char" / "data" / "char" / "manifest.json").read_text())["vocab_size"]
    other = prepare_dataset(tmp_path, "char", "".join(chr(0x3041 + i) for i in range(known)) * 40)
    complaint = r"which needs the dataset that it was trained on: its tokenizer is char"
    with pytest.raises(UserError, match=complaint):
        train_run(tmp_path / "run", other, init_from=str(folder), arch="gpt2")


def test_the_tolerance_is_of_the_largest_logit_or_of_one() -> None:
    for max_logit, tolerance in ((0.0, 1e-5), (0.25, 1e-5), (1.0, 1e-5), (40.0, 4e-4)):
        check = logit_check.LogitCheck("GlassGPT", 8, 0.0, max_logit, 0)
        assert check.tolerance == pytest.approx(tolerance), max_logit


@pytest.mark.parametrize("to", ["hf", "nanogpt", "glass"])
def test_a_full_disk_is_said_and_leaves_nothing(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    """The libraries that write tensors do not call it an OSError."""
    resource = pytest.importorskip("resource")  # this system has no limit on the size of files
    words = ["export", str(root / "runs" / "char"), f"--to={to}", f"--out={tmp_path / 'there'}"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
        exit_code = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert exit_code == 2
    error = capsys.readouterr().err
    assert f"error: {tmp_path / 'there'} could not be written (the disk may be full; " in error
    assert list(tmp_path.iterdir()) == []
