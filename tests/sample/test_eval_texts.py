"""`glass eval`: against transformers, against the run's own evaluation, and two models against each other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import write_gpt2
from small_runs import CONTEXT, LINE, prepare_dataset, train_run

from glassgpt.cli import main
from glassgpt.data.dataset import open_dataset
from glassgpt.record import journal

TEXT = "".join(f"{number} {LINE}" for number in range(40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on one text with three tokenizers, whose checkpoints are all kept."""
    folder = tmp_path_factory.mktemp("eval")
    for name in ("char", "byte", "bpe"):
        data = prepare_dataset(folder, name, "bpe:300" if name == "bpe" else name, val_fraction=0.3)
        train_run(folder / "runs" / name, data, max_iters=30, eval_interval=10, eval_tokens=None)
    (folder / "my.txt").write_text(LINE * 30, encoding="utf-8")
    return folder


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def evaluate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["eval", *words, "--json", "--device=cpu"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def errors(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["eval", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


# --- one model ---


@pytest.mark.parametrize("stride", [31, 16, 1])
def test_perplexity_of_a_gpt2_is_that_of_transformers(
    here: Path, capsys: pytest.CaptureFixture[str], stride: int
) -> None:
    """The loop of transformers' guide to the perplexity of models with a fixed length. Its window of 32
    tokens, targets included, is a context of 31."""
    transformers = pytest.importorskip("transformers")
    (here / "my.txt").write_text(TEXT[:700], encoding="utf-8")
    folder = write_gpt2(here / "little-gpt2")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = tokenizer(TEXT[:700], return_tensors="pt").input_ids
    length, max_length, previous_end = ids.shape[1], 32, 0
    nats, count = 0.0, 0
    for begin in range(0, length, stride):
        end = min(begin + max_length, length)
        window = ids[:, begin:end]
        labels = window.clone()
        labels[:, : -(end - previous_end)] = -100
        with torch.no_grad():
            loss = model(window, labels=labels).loss
        valid = int((labels[:, 1:] != -100).sum())
        nats, count, previous_end = nats + float(loss) * valid, count + valid, end
        if end == length:
            break
    document = evaluate(capsys, str(folder), "my.txt", "--context=31", f"--stride={stride}")
    (text,) = document["models"][0]["texts"]
    assert text["tokens"] == count == length - 1
    assert text["bytes"] == len(TEXT[:700].encode()) - 1
    assert text["perplexity"]["value"] == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert text["loss"]["value"] == pytest.approx(nats / count, abs=1e-5)


def test_a_run_on_its_own_dataset_has_the_loss_of_its_evaluation(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("char", "byte", "bpe"):
        evals = [r for r in journal.read(inside / "runs" / name / journal.FILE_NAME) if r["kind"] == "eval"]
        (last,) = [r for r in evals if r["iter"] == 30 and r["split"] == "val"]
        assert last["whole_split"]
        document = evaluate(capsys, f"{name}@last", f"data/{name}")
        (model,) = document["models"]
        (text,) = model["texts"]
        assert (model["context"], model["stride"], text["name"]) == (CONTEXT, CONTEXT, f"data/{name}")
        assert (
            text["tokens"]
            == last["tokens"]
            == open_dataset(inside / "data" / name).manifest.tokens["val"] - 1
        )
        assert text["loss"]["value"] == pytest.approx(last["loss"], abs=1e-6)
        assert text["perplexity"]["value"] == pytest.approx(last["perplexity"], abs=1e-5)
        # That of the run spreads the bytes of all tokens over the predicted ones.
        assert text["bits_per_byte"]["value"] == pytest.approx(last["bits_per_byte"], rel=0.01)
        assert text["loss"]["low"] < text["loss"]["value"] < text["loss"]["high"]
        assert evaluate(capsys, f"{name}@last", name) == document, "by its name in data/"


def test_bits_per_byte_of_bytes_is_the_loss_in_bits(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = evaluate(capsys, "byte", "my.txt")["models"][0]["texts"]
    assert text["tokens"] == text["bytes"] == len((LINE * 30).encode()) - 1
    for bound in ("value", "low", "high"):
        assert text["bits_per_byte"][bound] == pytest.approx(text["loss"][bound] / math.log(2))


def test_several_texts_are_evaluated_apart_and_together(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "texts/deeper").mkdir(parents=True, exist_ok=True)
    (inside / "texts/a.txt").write_text(LINE * 2, encoding="utf-8")
    (inside / "texts/deeper/b.txt").write_text(LINE[:7], encoding="utf-8")
    one, two, both = evaluate(capsys, "char", "texts", "my.txt")["models"][0]["texts"]
    assert [one["name"], two["name"], both["name"]] == ["texts", "my.txt", None]
    assert one["tokens"] == 2 * len(LINE) - 1 + 6, "the first token of each file is not predicted"
    nats = sum(text["loss"]["value"] * text["tokens"] for text in (one, two))
    assert both["loss"]["value"] == pytest.approx(nats / (one["tokens"] + two["tokens"]))
    assert both["blocks"] == one["blocks"] + two["blocks"]
    assert (one["loss"]["low"], one["blocks"]) == (None, 7), "too short for an interval"


def test_a_dataset_of_another_tokenizer_is_decoded_and_cut_at_the_ends_of_texts(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(9):
        (inside / "many").mkdir(exist_ok=True)
        (inside / f"many/{number}.txt").write_text(LINE * (number + 1), encoding="utf-8")
    data = inside / "data/many"
    assert main(["prepare", "many", "--tokenizer=bpe:300", f"--out_dir={data}", "--val_fraction=0.5"]) == 0
    capsys.readouterr()
    dataset = open_dataset(data)
    ids = np.asarray(dataset.tokens("val"))
    separators = int((ids == dataset.manifest.vocab_size - 1).sum())
    assert separators > 0
    (text,) = evaluate(capsys, "byte", "data/many")["models"][0]["texts"]
    assert text["bytes"] == dataset.manifest.text_bytes["val"] - separators - 1


# --- two models ---


def test_a_model_does_not_differ_from_itself(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = evaluate(capsys, "char", "my.txt", "--against=char")["comparison"]
    assert comparison["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert comparison["better"] is None
    assert comparison["pieces"] > 50


@pytest.mark.parametrize(
    ("model", "against"), [("char@30", "char@10"), ("bpe@30", "char@10"), ("byte@10", "bpe@30")]
)
def test_the_better_model_is_found_also_across_tokenizers(
    inside: Path, capsys: pytest.CaptureFixture[str], model: str, against: str
) -> None:
    document = evaluate(capsys, model, "my.txt", f"--against={against}")
    comparison, models = document["comparison"], document["models"]
    first, other = comparison["bits_per_byte"]
    assert comparison["difference"]["value"] == pytest.approx(first - other)
    assert comparison["better"] == models[0 if first < other else 1]["model"]
    assert comparison["better"].endswith("00000030")
    low, high = comparison["difference"]["low"], comparison["difference"]["high"]
    assert low <= first - other <= high
    assert low * high > 0
    # All bytes but those of the longer first token, nearly as each model alone has them.
    assert 0 <= min(one["texts"][0]["bytes"] for one in models) - comparison["bytes"] < 20
    for value, one in zip((first, other), models, strict=True):
        assert value == pytest.approx(one["texts"][0]["bits_per_byte"]["value"], rel=0.01)


def test_the_verdict_is_printed(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "char@30", "my.txt", "--against=char@10", "--device=cpu"]) == 0
    captured = capsys.readouterr()
    assert "verdict       runs/char/checkpoints/00000030 is better, beyond noise: " in captured.out
    assert captured.out.count("\nbits per byte ") == 2
    assert captured.err.count("model  ") == 2
    assert main(["eval", "char", "my.txt", "--against=char", "--device=cpu", "--lang=en"]) == 0
    assert "verdict       no difference beyond noise" in capsys.readouterr().out
    Path("short.txt").write_text(LINE, encoding="utf-8")
    assert main(["eval", "char", "short.txt", "--against=bpe", "--device=cpu"]) == 0
    out = capsys.readouterr().out
    assert "No interval: the text is 3 windows of 12 tokens long, and it takes 10." in out
    assert "verdict       unknown: the text has only " in out


# --- mistakes ---


def test_mistakes_name_the_flag_and_the_fix(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "glass eval RUN my.txt" in errors(capsys, "char")
    message = errors(capsys, "char", "my.txt", "--context=0", "--stride=-1", "--device=gpu", "--lang=xx")
    assert [line.split()[1].partition("=")[0] for line in message.splitlines()] == [
        *("--context", "--stride", "--device", "--lang")
    ]
    assert "--stride=9 skips text between windows of --context=8" in errors(
        capsys, "char", "my.txt", "--stride=9", "--context=8"
    )
    assert f"at most {CONTEXT}\n" in errors(capsys, "char", "my.txt", "--context=99", "--device=cpu")
    assert f"at most {CONTEXT}, its context" in errors(
        capsys, "char", "my.txt", "--stride=99", "--device=cpu"
    )
    assert "nothing.txt is neither a text file, nor a folder, nor a dataset" in errors(
        capsys, "char", "nothing.txt"
    )
    assert "glass prepare shakespeare_char makes a dataset" in errors(capsys, "char", "shakespeare_char")
    Path("lines.jsonl").write_text('{"text": "a"}\n')
    assert "run  glass prepare lines.jsonl" in errors(capsys, "char", "lines.jsonl")
    Path("other.txt").write_text("glass Ж\n", encoding="utf-8")
    assert "other.txt: the char tokenizer of this dataset has no 'Ж'" in errors(capsys, "char", "other.txt")
    Path("one.txt").write_text("g")
    assert "one.txt is too short: a loss needs at least 2 tokens" in errors(capsys, "char", "one.txt")
    assert "none is neither a run" in errors(capsys, "char", "my.txt", "--against=none")
