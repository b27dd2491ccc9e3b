"""The process that samples for the page, and its client."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import sample_texts
from small_runs import prepare_dataset, train_run

from glassgpt.errors import UserError
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.runs.reading import read_run_log
from glassgpt.sample.sample_options import SampleOptions
from glassgpt.sample.sample_server import SampleServer
from glassgpt.sample.sampler import load_sampler
from glassgpt.show.page.sampling import LookRequest, PageSampler, SampleRequest, parse_sample_request


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    return train_run(folder / "runs" / "bpe", prepare_dataset(folder, "bpe", "bpe:300"))


def test_the_text_is_that_of_glass_sample_for_every_checkpoint(run_dir: Path) -> None:
    request = SampleRequest("glass", temperature=1.0, seed=5, max_new_tokens=30)
    with closing(PageSampler()) as sampler:
        for checkpoint in (1, 3, None):
            messages = list(
                sampler.stream(run_dir, parse_sample_request(vars(request) | {"checkpoint": checkpoint}))
            )
            name = f"{run_dir}@{'best' if checkpoint is None else checkpoint}"
            options = SampleOptions(num_samples=1, temperature=1.0, seed=5, max_new_tokens=30, device="cpu")
            expected = load_sampler(name, options)
            (text,) = sample_texts(expected, expected.encode("glass"), options)
            assert "".join(message.get("text", "") for message in messages) == text
            assert messages[0]["checkpoint"] == expected.checkpoint.iter
            assert messages[-1]["done"] is True
            # 10 or so of the likeliest tokens, the likeliest first.
            probabilities = [one["p"] for one in messages[0]["next"]]
            assert probabilities == sorted(probabilities, reverse=True)
            assert 0 < sum(probabilities) <= 1 + 1e-6


def test_a_newer_request_ends_the_one_before(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.show.page.sampling._PIECE_S", 0.0)  # a token at a time
    with closing(PageSampler()) as sampler:
        first = sampler.stream(run_dir, SampleRequest("glass", max_new_tokens=1000))
        assert "next" in next(first)
        rest: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: rest.extend(first))
        newer = sampler.stream(run_dir, SampleRequest("glass", max_new_tokens=5))
        waiting = threading.Thread(target=lambda: rest.append({"newer": list(newer)}))
        waiting.start()
        while sampler._requests < 2:
            time.sleep(0.01)
        reader.start()
        reader.join()
        waiting.join()
        ended = [message for message in rest if "busy" in message]
        assert len(ended) == 1
        (answers,) = [message["newer"] for message in rest if "newer" in message]
        assert answers[-1]["done"] is True


def test_a_reader_that_takes_nothing_does_not_block_others_for_ever(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassgpt.show.page.sampling._WAIT_S", 0.05)
    with closing(PageSampler()) as sampler:
        first = sampler.stream(run_dir, SampleRequest("glass", max_new_tokens=5))
        assert "next" in next(first)
        (refused,) = sampler.stream(run_dir, SampleRequest("glass"))
        assert refused["busy"] is True
        first.close()  # the reader is gone
        assert list(sampler.stream(run_dir, SampleRequest("glass", max_new_tokens=5)))[-1]["done"] is True


def test_what_goes_wrong_is_said(run_dir: Path) -> None:
    server = SampleServer()
    options = {"device": "cpu", "num_samples": 1}
    start: dict[str, Any] = {"kind": "start", "prompt": "x", "options": options}
    assert "999" in server.answer(start | {"run": f"{run_dir}@999"})["error"]
    assert "error" in server.answer(start | {"run": str(run_dir / "nothing")})
    assert server.answer({"kind": "more", "seconds": 0.1}) == {"text": "", "done": True}


def test_every_wrong_value_of_a_request_is_named() -> None:
    wrong = {
        "prompt": "x" * 9000, "checkpoint": -1, "temperature": float("nan"), "top_k": 0, "seed": 1.5,
        "max_new_tokens": True, "unknown": 1,
    }  # fmt: skip
    with pytest.raises(UserError) as caught:
        parse_sample_request(wrong)
    assert len(caught.value.problems) == 6
    assert parse_sample_request({"top_k": None, "temperature": 1}) == SampleRequest(
        top_k=None, temperature=1.0
    )


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, None, None), (0.5, 3, None), (2.0, 5, 0.6)]
)
def test_the_likeliest_tokens_have_the_shares_that_sampling_gives(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    sampler = TokenSampler(8, temperature, top_k, top_p, seed=1)
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0, 0.5, -3.0, 0.2, 1.5, 9.0])  # the last is padding
    likeliest = dict(sampler.likeliest(logits, 8))
    count = 20_000
    generators = [torch.Generator().manual_seed(1)] * count
    drawn = sampler.next_tokens(logits[None], generators)
    shares = torch.bincount(drawn, minlength=8) / count
    for token in range(8):
        assert likeliest.get(token, 0.0) == pytest.approx(float(shares[token]), abs=0.015)
    assert TokenSampler(8, 0.0).likeliest(logits, 3) == [(1, 1.0)]


# --- looks ---


def test_a_look_is_kept_and_a_heads_attention_adds_up(run_dir: Path) -> None:
    with closing(PageSampler()) as sampler:
        assert sampler.look(run_dir, LookRequest(3)) == {"done": True}
        (look,) = read_run_log(str(run_dir)).looks
        assert look.iteration == 3
        answer = sampler.look(run_dir, LookRequest(3, layer=0, head=1))
        rows = answer["rows"]
        # One row for each token to predict, over those before it, in thousandths.
        assert [len(row) for row in rows] == list(range(1, len(look.passage_losses) + 1))
        assert all(abs(sum(row) - 1000) <= len(row) for row in rows)
        assert "heads" in sampler.look(run_dir, LookRequest(3, layer=0, head=99))["error"]
        assert "@77" in sampler.look(run_dir, LookRequest(77))["error"]
