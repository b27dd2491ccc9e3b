"""Random and hostile tables: an answer or a UserError, soon, in little memory."""

from __future__ import annotations

import io
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import TABLES

from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain
from glassgpt.runs.lines import read_texts, whole_lines
from glassgpt.runs.recognise import read_logs
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.table_files import read_tables

CELLS = [
    "",
    "0",
    "-1",
    "3.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 50,
    "true",
    "null",
    "0:00:01",
    "x",
    '"',
    "\x00",
    "1e-320",
]
NAMES = [
    "step", "_step", "epoch", "loss", "val_loss", "lr", "mfu", "dt", "time", "_timestamp", "elapsed_time",
    "tokens", "total_steps", "split", "eval_runtime", "step_ms", "", "a - loss", "b - loss", "x",
]  # fmt: skip


def read(data: bytes) -> tuple[RunLog, ...]:
    """As the command does, explanation included; anything but a UserError is a fault."""
    try:
        run_logs, texts = read_tables(read_texts(io.BytesIO(data)), "table.csv")
        run_logs = run_logs or read_logs(whole_lines(texts), "table.csv")
    except UserError:
        return ()
    for run_log in run_logs:
        json.dumps(explain(run_log).as_dict(), default=str)
    return run_logs


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=8),
    st.lists(st.lists(st.sampled_from(CELLS), max_size=9), max_size=30),
    st.sampled_from([",", "\t", ";"]),
)
def test_csv_of_any_cells(names: list[str], rows: list[list[str]], delimiter: str) -> None:
    read("\n".join(delimiter.join(row) for row in [names, *rows]).encode())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from(CELLS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), json_values, max_size=6), max_size=12), st.integers(0, 4)
)
def test_json_of_any_values(rows: list[dict[str, object]], form: int) -> None:
    texts = [
        "\n".join(map(json.dumps, rows)),
        json.dumps(rows),
        json.dumps({"log_history": rows, "global_step": rows and rows[0].get("step"), "max_steps": 3}),
        json.dumps(rows[0] if rows else {}),
        json.dumps({name: [row.get(name) for row in rows] for name in NAMES}),
    ]
    read(texts[form].encode())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(TABLES)), st.integers(0, 10**6))
def test_tables_with_random_damage(name: str, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(TABLES[name].encode())
    for _ in range(dice.randrange(1, 40)):
        at = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[at] = dice.randrange(256)
            case 1:
                del data[at : at + dice.randrange(40)]
            case 2:
                data[at:at] = dice.choice(
                    [b'"', b",", b"\n", b"{", b"]", b"nan", b"9" * 400, b"\xff\xfe", b"\x00", b"[" * 50]
                )
            case _:
                other = dice.randrange(len(data))
                data[at:at] = data[other : other + 200]
    read(bytes(data))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "many columns": lambda: (
        ("step,loss," + ",".join(f"c{at}_loss" for at in range(100_000)) + "\n").encode()
        + b"".join(b"%d,3.0,%s\n" % (at, b"1," * 100_000) for at in range(3))
    ),
    "many runs": lambda: (
        ("Step," + ",".join(f"r{at} - loss" for at in range(20_000)) + "\n").encode()
        + b"".join(b"%d,%s\n" % (at, b"1," * 20_000) for at in range(5))
    ),
    "a huge field": lambda: b"step,loss\n1,3.0\n2," + b"9" * (1 << 22) + b"\n3,3.0\n",
    "an open quote": lambda: b'step,loss\n1,3.0\n2,"' + b"3.0\n" * (1 << 17),
    "deep JSON": lambda: b'{"step": 1, "loss": 2, "x": ' + b"[" * 200_000 + b"\n",
    "deep objects": lambda: b'{"log_history": ' + b'[{"a":' * 100_000,
    "a deep array": lambda: b"[" * (1 << 20),
    "keys": lambda: (
        (json.dumps({f"k{at}": at for at in range(50_000)} | {"step": 1, "loss": 2.0}) + "\n").encode() * 3
    ),
    "new keys in every row": lambda: b"".join(
        b'{"step": %d, "loss": 3.0, "k%d_loss": 1}\n' % (at, at) for at in range(10_000)
    ),
    "digits": lambda: b'{"step": ' + b"9" * 100_000 + b', "loss": 3}\n{"step": 1, "loss": 3.0}\n',
    "spaces in JSON": lambda: b'{"log_history"' + b" " * (1 << 20) + b":" + b" " * (1 << 20) + b"[",
    "commas": lambda: b"[" + b"," * (1 << 20),
    "slashes": lambda: ("step," + "/" * 60_000 + "loss\n1,2\n").encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tables_take_seconds_and_megabytes(name: str) -> None:
    data = HOSTILE[name]()
    begun = time.perf_counter()
    tracemalloc.start()
    read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.perf_counter() - begun < 30  # it takes 3; a machine may be busy, and tracing is slow
    assert peak < 200 << 20


def test_a_long_table_is_read_in_bounded_memory() -> None:
    """Rows are held as numbers, not as texts."""

    def texts() -> Iterator[str]:
        yield "step,loss,lr\n"
        for at in range(20):
            yield "".join(f"{at * 1000 + row},3.{row},0.001\n" for row in range(1000))

    tracemalloc.start()
    run_logs, _ = read_tables(texts(), "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run_logs[0].steps) == 20_000
    assert peak < 12 << 20
