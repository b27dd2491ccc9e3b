"""Compares two corpora that make.py wrote.

    python tests/snapshots/compare.py BEFORE AFTER             # exit code 1 if something is different
    python tests/snapshots/compare.py BEFORE AFTER --wording   # also print sentences that changed

Each file is one of:
    identical
    same values, other wording   numbers in order, finding ids, JSON keys and plain values are equal
    different                    printed as a unified diff
Of --help only the set of flags counts. Wall times are shown and never counted as different.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IDENTICAL, WORDING, DIFFERENT = "identical", "same values, other wording", "different"
# A number with what is attached to it: 1,234  0.5%  10.65M  3e-4. Not part of a name such as A100.
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?:[kMBT%](?!\w))?")
_FINDING = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]")
_SEVERITY = re.compile(r"(?m)^(problem|warning|advice|info)\b")
_FLAG = re.compile(r"(?<!\w)--[a-z][\w.]*")
# Strings that are values, not prose, even where they hold a space.
_EXACT = {
    "id", "severity", "kind", "name", "format", "ended", "value", "values", "group", "decides",
    "label", "moment", "device_type", "path", "config", "tokenizer", "dtype", "optimizer", "arch",
}  # fmt: skip


def numbers(text: str) -> list[str]:
    return _NUMBER.findall(text)


def judge(name: str, before: str, after: str) -> str:
    """How the two contents of one file differ."""
    if before == after:
        return IDENTICAL
    if name == "start/times.json":
        return WORDING
    if name.startswith("help/"):
        same = set(_FLAG.findall(before)) == set(_FLAG.findall(after))
    elif name.endswith(".json"):
        same = not list(json_differences(json.loads(before), json.loads(after)))
    elif name.endswith(".toml"):
        same = tomllib.loads(before) == tomllib.loads(after)
    elif name.endswith(".txt"):
        same = all(find.findall(before) == find.findall(after) for find in (_NUMBER, _FINDING, _SEVERITY))
    else:
        same = False
    return WORDING if same else DIFFERENT


def json_differences(before: Any, after: Any, place: str = "", exact: bool = False) -> Iterator[str]:
    """Places whose values differ; a sentence that only says the same in other words is none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            inside = f"{place}.{key}"
            if key not in before or key not in after:
                yield f"{inside}: {'added' if key in after else 'missing'}"
            else:
                yield from json_differences(before[key], after[key], inside, exact or key in _EXACT)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{place}: {len(before)} -> {len(after)} entries"
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from json_differences(one, other, f"{place}[{index}]", exact)
    elif isinstance(before, str) and isinstance(after, str) and " " in before + after and not exact:
        if numbers(before) != numbers(after):
            yield f"{place}: numbers {numbers(before)} -> {numbers(after)}"
    elif type(before) is not type(after) or before != after:
        yield f"{place}: {before!r} -> {after!r}"


def files(folder: Path) -> dict[str, str]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def diff(name: str, before: str, after: str, lines: int) -> str:
    compared = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"before/{name}", f"after/{name}", lineterm="", n=1
    )
    shown = list(compared)
    return "\n".join(shown[:lines] + ([f"... {len(shown) - lines} more lines"] if len(shown) > lines else []))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--wording", action="store_true", help="print the sentences that changed")
    parser.add_argument("--lines", type=int, default=60, help="of a diff, at most")
    parser.add_argument("--list", action="store_true", help="name identical files too")
    given = parser.parse_args()
    before, after = files(given.before), files(given.after)
    if not before or not after:
        parser.error("one of the folders is empty")
    counts = dict.fromkeys((IDENTICAL, WORDING, DIFFERENT), 0)
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            if name == "start/times.json":  # made with --no-timing
                continue
            verdict, shown = DIFFERENT, f"only in {'before' if name in before else 'after'}"
        else:
            verdict = judge(name, before[name], after[name])
            shown = diff(name, before[name], after[name], given.lines)
        counts[verdict] += 1
        if verdict != IDENTICAL or given.list:
            print(f"{verdict:27} {name}")
        if verdict == DIFFERENT and name in before and name in after and name.endswith(".json"):
            places = list(json_differences(json.loads(before[name]), json.loads(after[name])))
            print("\n".join(f"    {place}" for place in places[:20]))
        if verdict == DIFFERENT or (verdict == WORDING and (given.wording or name.endswith("times.json"))):
            print(shown)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(counts[DIFFERENT] > 0)


if __name__ == "__main__":
    sys.exit(main())
