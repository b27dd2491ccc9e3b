"""The presets that begin with GPT-2's weights, as people call them: weights in a cache, no network.

The models are random, as `transformers` writes them, and small; their context is GPT-2's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from little_gpt2 import transformers_loss, write_gpt2

from glassgpt.cli import main
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.record import journal
from glassgpt.record.journal import Record

TEXT = "".join(
    f"{number} glass houses have {number % 7} thin walls; {number * number}\n" for number in range(2500)
)
VOCABULARY, CONTEXT = 290, 1024
QUICK = ["--device=cpu", "--compile=off", "--probe_seconds=0", "--dtype=float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2}
    folder = tmp_path_factory.mktemp("hf") / "gpt2"
    return write_gpt2(folder, TEXT, shape, max_shard_size="30KB")  # several files


@pytest.fixture
def here(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two datasets, prepared with the model's tokenizer, and a cache with the four names."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        repository = tmp_path / "cache" / "hub" / f"models--openai-community--{name}"
        (repository / "snapshots").mkdir(parents=True)
        (repository / "snapshots" / "607a").symlink_to(model)
    (tmp_path / "text.txt").write_text(TEXT)
    for name in ("openwebtext", "shakespeare"):
        request = PrepareOptions(
            str(tmp_path / "text.txt"), tokenizer="gpt2", tokenizer_files=str(model), out_dir=f"data/{name}"
        )
        prepare(request, print_line=lambda line: None, progress=False)
    return tmp_path


def records(run: str, kind: str) -> list[Record]:
    return [record for record in journal.read(Path(run) / journal.FILE_NAME) if record["kind"] == kind]


@pytest.mark.parametrize("preset", ["eval_gpt2", "eval_gpt2_medium", "eval_gpt2_large", "eval_gpt2_xl"])
def test_an_evaluation_of_gpt2_is_nanogpts(here: Path, model: Path, preset: str) -> None:
    assert main(["train", preset, *QUICK]) == 0
    (run,) = records(f"runs/{preset}", "run")
    config: dict[str, Any] = run["config"]
    # nanoGPT's config/eval_gpt2.py: batch_size 8, eval_iters 500, eval_only, the model's own context
    assert (config["batch_size"], config["eval_iters"], config["eval_only"]) == (8, 500, True)
    assert (config["dataset"], config["init_from"]) == ("openwebtext", preset[5:].replace("_", "-"))
    assert (run["model"]["block_size"], run["model"]["bias"], run["model"]["dropout"]) == (CONTEXT, True, 0.0)
    assert run["model"]["activation"] == "gelu_new"
    val = next(record for record in records(f"runs/{preset}", "eval") if record["split"] == "val")
    assert val["whole_split"]  # 4,096,000 tokens were asked for, and there are fewer
    tokens = torch.from_numpy(open_dataset(Path("data/openwebtext")).tokens("val").astype("int64"))
    assert val["loss"] == pytest.approx(transformers_loss(model, tokens, CONTEXT), abs=1e-5)
    assert records(f"runs/{preset}", "end")[0]["reason"] == "evaluated"
    assert records(f"runs/{preset}", "step") == []


def test_shakespeare_is_finetuned_from_the_largest(here: Path) -> None:
    flags = ["--max_iters=2", "--gradient_accumulation_steps=2", "--eval_tokens=2048", "--learning_rate=0.01"]
    assert main(["train", "finetune_shakespeare", *flags, *QUICK]) == 0
    (run,) = records("runs/finetune_shakespeare", "run")
    assert run["config"]["init_from"] == "gpt2-xl"
    losses = [r["loss"] for r in records("runs/finetune_shakespeare", "eval") if r["split"] == "val"]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("command", [["train", "shakespeare_char"], ["sample"]])
def test_a_model_of_another_architecture_is_a_mistake_and_nothing_is_made(
    here: Path, model: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = here / "llama"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    assert main([*command, f"--init_from={folder}"]) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert 'model_type is "llama", another architecture; only models of GPT-2\'s kind' in said
    assert not Path("runs").exists()
