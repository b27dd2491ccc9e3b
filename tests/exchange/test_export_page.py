"""docs/export.md's loaders do what the page says; docs/journal.md has every field of an imported run."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_runs import TEXT, prepare_dataset, train_run
from safetensors.torch import load_file, save_file

from glassgpt.exchange.exchange_options import ExportOptions
from glassgpt.exchange.export import export
from glassgpt.exchange.export_formats import load_exportable_model

DOCS = Path(__file__).parents[2] / "docs"
LOADERS = re.findall(r"^```python\n(.*?)^```$", (DOCS / "export.md").read_text(encoding="utf-8"), re.S | re.M)


def test_the_loaders_of_the_page_compute_what_the_run_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = LOADERS
    data = prepare_dataset(tmp_path, "char")
    expected = {}
    for name in ("tied", "untied"):
        place = tmp_path / name
        options = {"arch": "modern", "tie_embeddings": name == "tied", "n_embd": 24, "learning_rate": 0.01}
        run = train_run(place / "run", data, **options)
        export(str(run), ExportOptions(to="glass", out=str(place / "exports" / "tiny")))
        exportable = load_exportable_model(str(run))
        tokens = torch.randint(
            exportable.shape.vocab_size, (2, 12), generator=torch.Generator().manual_seed(1)
        )
        save_file({"tokens": tokens}, place / "tokens.safetensors")
        monkeypatch.chdir(place)
        scope: dict[str, Any] = {}
        exec(ours, scope)  # noqa: S102 - as a reader of the page does
        with torch.no_grad():
            expected[name] = exportable.model()(tokens)
        assert expected[name].abs().max() > 0.1
        torch.testing.assert_close(scope["model"](tokens).detach(), expected[name], atol=1e-5, rtol=0)
    # The second loader must do without us.
    code = (
        "import os, sys\nsys.modules['glassgpt'] = None\n"
        "from safetensors.torch import load_file, save_file\n"
        "for place in ('tied', 'untied'):\n"
        "    os.chdir(f'{sys.argv[1]}/{place}')\n"
        "    scope = {}\n"
        "    exec(sys.argv[2], scope)\n"
        "    logits = scope['logits'](load_file('tokens.safetensors')['tokens']).detach()\n"
        "    save_file({'logits': logits}, 'logits.safetensors')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), theirs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name, logits in expected.items():
        found = load_file(tmp_path / name / "logits.safetensors")["logits"]
        torch.testing.assert_close(found, logits, atol=1e-5, rtol=0)


def test_the_page_names_every_tensor_and_its_shape(tmp_path: Path) -> None:
    """For both architectures: no other tensors, and these shapes."""
    page = (DOCS / "export.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(transformer\.[\w.]+|lm_head\.weight)` \| ([^|]+) \|", page, re.M))
    data = prepare_dataset(tmp_path, "char")
    for arch in ("gpt2", "modern"):
        run = train_run(tmp_path / arch, data, arch=arch, tie_embeddings=False)
        out = export(str(run), ExportOptions(to="glass", out=str(tmp_path / f"{arch}-out"))).out_dir
        tensors = load_file(out / "model.safetensors")
        vocabulary = load_exportable_model(str(run)).shape.vocab_size
        sizes = {"V": vocabulary, "C": 16, "3C": 48, "4C": 64, "`block_size`": 12}
        for name, tensor in tensors.items():
            said = rows[re.sub(r"\.h\.\d+\.", ".h.L.", name)]
            assert tuple(tensor.shape) == tuple(sizes[size] for size in said.split(" x ")), name
        named = {re.sub(r"\.h\.\d+\.", ".h.L.", name) for name in tensors}
        assert rows.keys() - named == (set() if arch == "gpt2" else {"transformer.wpe.weight"})


@pytest.fixture(scope="module", params=["char", "char without a new line", "byte", "bpe:300", "ids"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    if request.param == "ids":
        return train_run(folder / "run", ids_alone(folder / "data"))
    kind, _, without = request.param.partition(" without")
    return train_run(
        folder / "run", prepare_dataset(folder, kind, TEXT.replace("\n", '"') if without else TEXT)
    )


def ids_alone(folder: Path) -> Path:
    """nanoGPT's, whose meta.pkl says how many there are and not what they stand for."""
    folder.mkdir()
    ids = np.random.default_rng(0).integers(0, 40, 2000, dtype=np.uint16)
    for split in ("train", "val"):
        ids.tofile(folder / f"{split}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 40}))
    return folder


def test_the_example_of_a_card_writes_a_text(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a start that the tokenizer knows, and no longer than the context, 12 tokens here."""
    pytest.importorskip("transformers")
    out = export(str(run), ExportOptions(out=str(tmp_path / "out"))).out_dir
    card = (out / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", card, re.S | re.M)
    scope: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(example.replace("FOLDER", str(out)), scope)  # noqa: S102 - as a reader of the card does
    assert scope["start"]["input_ids"].shape == (1, 1)
    assert "max_new_tokens=11," in example
    assert len(capsys.readouterr().out) > 1  # more than the end of a line
