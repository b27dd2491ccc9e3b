"""Random and hostile input: an answer or a UserError, soon, and nothing raw in it."""

from __future__ import annotations

import io
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_checks import parse_facts, parse_log
from printed import SyntheticRun
from printed_more import every_trainer

from glassgpt.errors import UserError
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.exit_status import event_patterns, read_event
from glassgpt.runs.header import header_patterns, read_header
from glassgpt.runs.lines import read_lines
from glassgpt.runs.recognise import KNOWN, LOG_TRAINERS, read_log
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer

TRAINERS = every_trainer(SyntheticRun(updates=23))
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")

# What grows with the square of a line would take minutes; a busy machine is not that slow.
PATIENCE_S = 1.0


def read(data: bytes) -> RunLog | None:
    """None where it is no log; anything but a UserError is a fault."""
    try:
        run_log = read_log(read_lines(io.BytesIO(data)), "run.log")
    except UserError:
        return None
    json.dumps(Analysis(run_log).facts.as_dict())
    assert not [text for text in texts_in(run_log) if CONTROL.search(text)]
    return run_log


def texts_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.items() for text in texts_in(item)]
    if isinstance(value, tuple | list):
        return [text for item in value for text in texts_in(item)]
    if is_dataclass(value):
        return [text for field in fields(value) for text in texts_in(getattr(value, field.name))]
    return []


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2000))
def test_random_bytes(data: bytes) -> None:
    read(data)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(TRAINERS)), st.integers(0, 10**6))
def test_logs_with_random_damage(name: str, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(TRAINERS[name].text.encode())
    for _ in range(dice.randrange(1, 60)):
        at = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[at] = dice.randrange(256)
            case 1:
                del data[at : at + dice.randrange(40)]
            case 2:
                data[at:at] = dice.choice(
                    [b"\x1b[31m", b"\r", b"\n", b"\x00", b"nan", b"9" * 400, b"\xff\xfe", b"-"]
                )
            case _:
                other = dice.randrange(len(data))
                data[at:at] = data[other : other + 200]
    read(bytes(data))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(sorted({line for told in TRAINERS.values() for line in told.lines})), max_size=40
    )
)
def test_lines_of_all_trainers_in_any_order(lines: list[str]) -> None:
    read("\n".join(lines).encode())


@pytest.mark.parametrize(
    "number", ["9" * 400, "1e999", "nan", "-inf", "0", "1e-320", "1,000,000.5", "9" * 20]
)
def test_numbers_of_any_size(number: str) -> None:
    for told in every_trainer(SyntheticRun(updates=16)).values():
        for line in [part.text for part in told.parts if part.row or part.eval][-2:]:
            head = told.truncated(2 * len(told.parts) // 3).text
            read((head + re.sub(r"\d[\d.,]*", number, line) + "\n" + line + "\n").encode())
            for match in re.finditer(r"\d[\d.,]*", line):
                read(
                    (
                        head + line[: match.start()] + number + line[match.end() :] + "\n" + line + "\n"
                    ).encode()
                )


PIECES = [
    "step 1: train loss 1 val ", "step 1: train loss 1, ", "iter 1: ", "iter 1: loss 1, time 1",
    "iter 1 step 1: loss 1 ", "iter 1: loss 1, ", "step:1/1 a:b ", "step:1/1 ",
    "step 1/1 | time: 1ms | step avg:", "{'loss': ", "'loss': 1, ", "{'a': 'b', ", "100%|", "100%|a| 1/",
    "} 1%|a|1/1 [", "Saving model checkpoint to checkpoint-", "step 1 | loss: 1 ", "step 1 | loss 1 ",
    "Step 1 | Validation bpb: ", "iteration 1 train loss ", "step 1, val_loss ", "loss ", "1,111,", "1",
    "0.", " ", "\t", "= ", "a=", "--a=b .py ", "| a ", "|", "Overriding: a = ", "SIGTERM ", "Received SIG",
    "overflow ", "loss scale ", "tokens per iteration will be: 1,", "world_size ", "val loss ",
    "val loss: ", "Saved model _1", "GPU: NVIDIA a ", "real 1m", "Killed ", "a: line 1: 1 ",
    "Step 1/1 (1%) | loss: 1", "lr 1", "% MFU ", "ms", "1e", "nan", "[1] ", "> ", "**iter ", "\"", "\\n",
    "(", "wandb: ", "s:1 trl:1 ", "1 train ", "2024-01-01 00:00:00 ", "a-1 | ",
    "iter 1 | step 1: loss train ", "step: 1  loss: ", "tps: 1 ", "validate step: 1 ", "iteration 1/ 1 | ",
    "lm loss: 1 | ", "validation loss at iteration 1 | ", "Training epoch 0, iteration 1/1 | ", "lr: 1 | ",
    "[step=1/1", "a/CE loss=", "Iter 1: Train loss 1, ", "It/sec 1, ", "1 1 ▼ 1 ", "Epoch 1/1", "1/1 ━━",
    "1/1 [==", " - loss: 1", "Epoch 1: 1%|a| 1/1 [", "Epoch 1/1 ━ 1/1 1 • ", "train_loss=1, ",
    "loss=1 step=1 ", "step 1 (1.0%) | loss: 1 | remaining: 1s", "Step\tTraining Loss\t", "1\t1\t",
    "[1/1 01:01, Epoch 1/1", "Epoch:[1/1](1/1), a, ", "step=1 dt=1 ", "1 it/s ", "1ms/step ",
    "tokens per second ", "it: 1 ", "seconds: 1 ", "Epoch: 1 [1/1 (1%)] ", "1|1|Loss: 1: ",
    "epoch 1 ", "step 1 loss 1 elapsed 1 ", "train loss ", "val loss 1 train loss ",
]  # fmt: skip


def test_no_line_takes_long() -> None:
    """Lines of 4000 characters that begin to look like something again and again."""
    slow = []
    for piece, tail in product(PIECES, ("", "x", " loss 1 ms")):
        for text in {piece, piece.upper()}:
            line = (text * 4000)[: 4000 - len(tail)] + tail
            readers: list[tuple[str, Callable[[str, RunBuilder], object], Trainer]]
            readers = [(trainer.id, trainer.make_reader(), trainer) for trainer in LOG_TRAINERS]
            readers.append(("header", partial(read_header, patterns=header_patterns()), LOG_TRAINERS[0]))
            readers.append(("event", partial(read_event, patterns=event_patterns()), LOG_TRAINERS[0]))
            for name, reader, trainer in readers:
                if seconds(lambda: reader(line, RunBuilder(trainer))) > PATIENCE_S:  # noqa: B023 - called at once
                    slow.append((name, piece, tail))
    assert slow == []


def seconds(act: Callable[[], object]) -> float:
    """The better of three: the machine may be busy."""
    spent = []
    for _ in range(3):
        begun = time.perf_counter()
        act()
        spent.append(time.perf_counter() - begun)
        if spent[-1] < 0.02:
            break
    return min(spent)


# --- not a log ---

NOT_LOGS = {
    "empty": "",
    "blank": "\n\n   \n",
    "readme": "# GlassGPT\n\nTrain a small GPT. Each step has a loss: see the iter line. "
    "Loss is 2.5 at step 100, they say.\n" * 3,
    "source": "def step(loss: float) -> None:\n    print(f'iter {i}: loss {loss:.4f}, time "
    "{dt*1000:.2f}ms')\n" * 50,
    "json": json.dumps([{"step": i, "epoch": 1} for i in range(100)]),
    "csv": "name,age,city\n" + "someone,12,somewhere\n" * 100,
    "prose": "It was the best of times, it was the worst of times.\n" * 200,
    "access log": '127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /step/12 HTTP/1.0" 200 2326\n' * 100,
    "poem": "iter\nstep\nloss\n1\n2\n3\n",
}


@pytest.mark.parametrize("name", NOT_LOGS)
def test_what_is_no_log_is_refused_and_the_known_formats_named(name: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_log(NOT_LOGS[name])
    assert KNOWN in str(caught.value)
    for title in (
        "nanoGPT",
        "build-nanogpt",
        "llm.c",
        "nanochat",
        "modded-nanogpt",
        "litgpt",
        "Hugging Face",
    ):
        assert title in str(caught.value)


def test_binaries_are_refused() -> None:
    for data in (
        b"\x7fELF" + bytes(range(256)) * 40,
        b"\x89PNG\r\n\x1a\n" + bytes(5000),
        random.Random(0).randbytes(50_000),
    ):
        assert read(data) is None


def test_control_characters_do_not_reach_what_is_shown() -> None:
    text = (
        "Overriding: dataset = '\x1b[31mred\x07'\n| device | \x1b]0;evil\x07 card |\n"
        "iter 0: loss 4.2, time 1.00ms\niter 1: loss 4.2, time 1.00ms\n"
        "torch.OutOfMemoryError: CUDA out of memory \x1b[2J\x9b31m\x00\x08\n"
    )
    run_log = read(text.encode())
    assert run_log is not None
    assert len(run_log.events) == 1


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize(
    "line",
    [
        b"iter " + b"9" * 60_000 + b": loss 3.0, time 33.00ms",
        b"iter 5: loss " + b"9" * 60_000 + b", time 33.00ms",
        b"iter 5: loss 3.0, " * 3_500,
        b"Step 1 | Validation bpb: " * 2_500 + b" loss 1 ms",
        b"{'loss': 1, " * 5_000,
    ],
)
def test_a_line_of_sixty_thousand_characters(line: bytes, end: bytes) -> None:
    """Also as the last one, without a line end behind it."""
    head = b"".join(b"iter %d: loss 3.0, time 33.00ms\n" % at for at in range(5))
    begun = time.perf_counter()
    read(head + line + end)
    assert time.perf_counter() - begun < 60 * PATIENCE_S


def test_a_million_lines_take_seconds() -> None:
    """A tenth of that here; bench/ does the whole."""
    text = "".join(f"iter {at}: loss 3.1234, time 33.12ms, mfu 28.10%\n" for at in range(100_000))
    begun = time.perf_counter()
    assert parse_facts(text).iterations_logged == 100_000
    assert time.perf_counter() - begun < 60 * PATIENCE_S
