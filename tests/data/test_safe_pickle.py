"""Plain data comes out of a pickle as it went in; a pickle with anything else in it does nothing at all."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassgpt.data import safe_pickle
from glassgpt.data.safe_pickle import UnsafePickleError, load_safe_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
few = settings(max_examples=60, deadline=None)
keys = st.one_of(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none())
scalars = st.one_of(keys, st.floats(allow_nan=False))
plain = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(keys, inner, max_size=5))
)


class Call:
    """Pickled, this is a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


class State:
    """Pickled, this looks up a class, makes one and gives it a state."""

    def __init__(self) -> None:
        self.x = 1


def refusal_of(content: bytes) -> str:
    try:
        load_safe_pickle(content)
    except UnsafePickleError as error:
        return str(error)
    return ""


@few
@given(plain)
@example({"vocab_size": 4, "itos": {0: "\n", 1: "\\", 2: "न", 3: "م", 4: "🦊"}, "more": [None, True, 1.5]})
@example({str(i): i for i in range(300)})  # more than BINPUT can number
@example("x" * 70_000)
def test_plain_data_comes_back_from_every_protocol(value: Any) -> None:
    for protocol in PROTOCOLS:
        content = pickle.dumps(value, protocol)
        assert load_safe_pickle(content) == value
        assert load_safe_pickle(pickletools.optimize(content)) == value


def test_so_do_bytes_where_a_protocol_has_them() -> None:
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):
        assert load_safe_pickle(pickle.dumps([b"\xff", b"x" * 300], protocol)) == [b"\xff", b"x" * 300]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_call_is_named_and_never_made(tmp_path: Path, protocol: int, hidden: bool) -> None:
    made = tmp_path / "made"
    value: Any = Call(os.mkdir, str(made))
    content = pickle.dumps({"vocab_size": 65, "itos": [{1: value}]} if hidden else value, protocol)
    with pytest.raises(UnsafePickleError, match=rf"wants to call {os.mkdir.__module__}\.mkdir at byte \d+"):
        load_safe_pickle(content)
    assert not made.exists()
    pickle.loads(content)  # noqa: S301 (the test would prove nothing if this did not)
    assert made.exists()


def test_whatever_is_not_plain_is_refused(subtests: pytest.Subtests) -> None:
    for value in (State(), State, print, {1, 2}, 1j, (1, 2), bytearray(b"x")):
        with subtests.test(repr(value)):
            found = [refusal_of(pickle.dumps({"x": value}, protocol)) for protocol in PROTOCOLS]
            reason = re.compile(r"(wants to call|has the instruction) .* at byte")
            assert [protocol for protocol in PROTOCOLS if not reason.search(found[protocol])] == []


REFUSED = {
    *("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "BYTEARRAY8"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "POP", "POP_MARK", "DUP"),
}


def test_every_instruction_is_either_known_to_be_harmless_or_refused() -> None:
    arguments = {"stringnl_noescape_pair": b"os\nsystem\n", "stringnl_noescape": b"x\n", "stringnl": b"'x'\n"}
    for opcode in pickletools.opcodes:
        argument = arguments.get(opcode.arg.name, b"\0" * 8) if opcode.arg else b""
        # Enough on the stack for any of them, twice.
        content = (
            b"\x80\x02}X\x02\0\0\0osX\x06\0\0\0system((" + opcode.code.encode("latin-1") + argument + b"."
        )
        refused = refusal_of(content).startswith(
            ("wants to call os.system at", f"has the instruction {opcode.name} at")
        )
        assert refused == (opcode.name in REFUSED), opcode.name


def test_names_cannot_write_to_the_terminal() -> None:
    with pytest.raises(UnsafePickleError) as caught:
        load_safe_pickle(b"cos\x1b[2J\n" + b"x" * 1000 + b"\n.")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_the_second_lock_holds_without_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_pickle, "_check_opcodes", lambda content: None)
    for protocol in PROTOCOLS:
        with pytest.raises(UnsafePickleError, match="wants to call"):
            load_safe_pickle(pickle.dumps(Call(os.mkdir, str(tmp_path / "made")), protocol))
    with pytest.raises(UnsafePickleError, match="from elsewhere"):
        load_safe_pickle(b"Px\n.")
    assert list(tmp_path.iterdir()) == []


def test_nonsense_is_refused_at_once(subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, str]] = [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "numbers its values absurdly at byte 3"),
        (b"}p1000000000\n.", "numbers its values absurdly"),
        (b"}p-5\n.", "not a whole pickle"),
        (b"\x80\x02}j\xff\xff\xff\x7f.", "not a whole pickle"),
        (b"\x8a\x09" + b"\xff" * 8 + b"\x7f.", "absurdly large number at byte 0"),
        (b"I" + b"9" * 4000 + b"\n.", "absurdly large number"),
        (b"I" + b"9" * 1_000_000 + b"\n.", "not a whole pickle"),
        (b"\x8e" + b"\xff" * 8 + b"x.", "not a whole pickle"),
        (b"\x8d" + b"\xff" * 7 + b"\x7fx.", "not a whole pickle"),
        (b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f}.", "not a whole pickle"),
        (b"\x80\x63}.", "not a whole pickle"),
        (b"", "not a whole pickle"),
        (b".", "not a whole pickle"),
        (b"}", "not a whole pickle"),
        (b"hello, I am a text file", "has the instruction"),
        (b"}.}.", "goes on after its end at byte 1"),
        (b"]]K\x01s.", "not a whole pickle"),
    ]
    for content, message in cases:
        with subtests.test(repr(content)), pytest.raises(UnsafePickleError, match=message):
            load_safe_pickle(content)


def test_bombs_do_not_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.process_time()
    # A list that holds a list twice, which holds ...: harmless, as long as nobody walks it.
    nested = b"\x80\x02]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(200)) + b"."
    assert isinstance(load_safe_pickle(nested), list)
    # The same with tuples, as the key of a dict: hashing it would take 2^200 steps.
    tuples = b"\x80\x02)q\0" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(200))
    with pytest.raises(UnsafePickleError, match="TUPLE"):
        load_safe_pickle(b"\x80\x02}" + tuples[2:] + b"Ns.")
    # Lists, one in another: nothing recurses, not even when they are thrown away.
    deep = load_safe_pickle(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert len(deep) == 1
    del deep
    # Numbers that all hash to the same value.
    collide = b"".join(pickle.dumps(i * sys.hash_info.modulus, 2)[2:-1] + b"N" for i in range(1000))
    with pytest.raises(UnsafePickleError, match="absurdly large"):
        load_safe_pickle(b"\x80\x02}(" + collide + b"u.")
    with pytest.raises(UnsafePickleError, match="bytes"):
        load_safe_pickle(b"}" * (safe_pickle.MAX_PICKLE_BYTES + 1))
    assert time.process_time() - began < 30
    assert safe_pickle.MAX_INSTRUCTIONS == 2_000_000
    monkeypatch.setattr(safe_pickle, "MAX_INSTRUCTIONS", 2000)
    assert isinstance(load_safe_pickle(b"]" * 1000 + b"a" * 999 + b"."), list)  # and "." are 2000
    with pytest.raises(UnsafePickleError, match="instructions"):
        load_safe_pickle(b"]" * 1001 + b"a" * 999 + b".")


codes = st.sampled_from([opcode.code.encode("latin-1") for opcode in pickletools.opcodes])
snippets = st.sampled_from([b"\0", b"\x01\0\0\0x", b"1\n", b"os\n", b"system\n", struct.pack("<I", 7)])


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.lists(st.one_of(codes, snippets), max_size=40).map(b"".join)))
def test_random_bytes_are_data_or_refused(content: bytes) -> None:
    refusal = refusal_of(content + b".")
    # Without a byte it would come from the unpickler, which must never get to see a call.
    assert "wants to" not in refusal or "at byte" in refusal
