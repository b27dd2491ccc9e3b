"""nanoGPT's config files: Python by their looks, read here as text and never run.

    glass train config/train_shakespeare_char.py

A line is `name = value`. A value is a number, a text, True, False, None, or arithmetic on these and on names
that have a value already. Imports are let through and import nothing. All else is refused with its line.
"""

from __future__ import annotations

import ast
import bisect
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.config import ConfigValue
from glassgpt.errors import UserError
from glassgpt.paths import regular_file_opener


@dataclass(frozen=True)
class FileSetting:
    """What a file says about a setting, and on which line."""

    value: ConfigValue
    line: int


@dataclass(frozen=True)
class LineProblem:
    """Something to fix, and its line, so that problems found later on can be sorted in."""

    line: int
    text: str


# Files of settings are far below these; files made to keep a parser or a machine busy are above.
_MAX_FILE_BYTES = 100_000
_MAX_INT_BITS = 256
_MAX_TEXT_CHARS = 1000
_MAX_QUOTE_CHARS = 60

# People put the time of day into these. Nothing depends on them, so the expression itself will do.
_SETTINGS_KEPT_AS_SOURCE = ("wandb_run_name", "wandb_project")

# What is said about a line, after its quote.
_NEEDS_EXECUTION = "would have to be run, and a config file is only read"
_TOO_LARGE = "is beyond all bounds"
_TOO_DEEP = "is nested too deeply"
_FIX_HINT = "write the value itself, or leave the line out"

_UNARY_OPERATORS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_BINARY_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def read_python_settings(
    path: Path, before: Mapping[str, ConfigValue]
) -> tuple[dict[str, FileSetting], list[LineProblem]]:
    """The settings of the file, known or not, and every line that is more than a setting.

    `before` has all settings there are, with what they are worth to a file that uses them without setting
    them. Other names are helpers if a later line uses them or if they start with `_`, else mistakes; these
    are among the settings for the caller to refuse.
    """
    source = _read_source(path)
    reader = _ConfigFileReader(path, source, before)
    for statement in _parse(source, path):
        reader.read(statement)
    return reader.settings(), reader.problems


# --- from bytes to statements ---


def _read_source(path: Path) -> str:
    try:
        with open(path, "rb", opener=regular_file_opener) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"there is no config file {path}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UserError(f"{path} is too large for a config file: above {_MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
        broken = data.find(b"\0")
    except UnicodeDecodeError as error:
        broken = error.start
    if broken >= 0:
        line = data.count(b"\n", 0, broken) + 1
        raise UserError(f"{path}, line {line}: this is not text in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # the line ends that Python counts


def _parse(source: str, path: Path) -> list[ast.stmt]:
    try:
        return _parse_quietly(source)
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno or 1}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{path}, line {_find_too_deep_line(source)}: this {_TOO_DEEP}") from None


def _parse_quietly(source: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a backslash too many in a text is not our business
        return ast.parse(source).body


def _find_too_deep_line(source: str) -> int:
    """The line that makes the parser give up, which does not say so itself."""
    lines = source.split("\n")

    def is_too_deep(count: int) -> bool:
        try:
            _parse_quietly("\n".join(lines[:count]))
        except SyntaxError:  # cut in the middle
            return False
        except (RecursionError, MemoryError):
            return True
        return False

    return bisect.bisect_left(range(len(lines)), True, key=is_too_deep)


# --- from statements to settings ---


class _ConfigFileReader:
    """Goes down a file and remembers what each name is worth."""

    def __init__(self, path: Path, source: str, before: Mapping[str, ConfigValue]) -> None:
        self.path = path
        self.lines = source.encode().split(b"\n")
        self.known = before.keys()
        self.values = dict(before)
        self.assigned: dict[str, FileSetting] = {}
        self.used: set[str] = set()
        self.problems: list[LineProblem] = []

    def settings(self) -> dict[str, FileSetting]:
        return {name: setting for name, setting in self.assigned.items() if not self._is_helper(name)}

    def _is_helper(self, name: str) -> bool:
        return name not in self.known and (name in self.used or name.startswith("_"))

    def read(self, statement: ast.stmt) -> None:
        self.used |= _names_in(statement) & self.assigned.keys()
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value, statement)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._assign(name, value, statement)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                self._pass_import(names, statement)
            case ast.Expr(value=ast.Constant(value=str())):
                pass  # a text that nobody uses is a comment
            case _:
                self._refuse(statement, _NEEDS_EXECUTION)

    def _assign(self, name: str, value: ast.expr, statement: ast.stmt) -> None:
        line = statement.lineno
        try:
            folded = self.values[name] = _fold_within_depth(value, self.values)
        except UserError as error:
            self.values.pop(name, None)  # later lines must not take what it was before
            if name in _SETTINGS_KEPT_AS_SOURCE:
                self.assigned[name] = FileSetting(_short(self._source(value), _MAX_TEXT_CHARS), line)
                return
            self._refuse(statement, str(error))
            if name in self.known:
                return
            folded = None
        self.assigned[name] = FileSetting(folded, line)

    def _pass_import(self, names: list[ast.alias], statement: ast.stmt) -> None:
        """Nothing is imported; an import that would have set a setting must not get lost, though."""
        bound = {alias.asname or alias.name.partition(".")[0] for alias in names}
        if "*" in bound or bound & self.known:
            self._refuse(statement, "would take settings from another file, and nothing is imported")
        for name in bound:
            self.values.pop(name, None)

    def _refuse(self, statement: ast.stmt, reason: str) -> None:
        quote = _short(self._source(statement), _MAX_QUOTE_CHARS)
        text = f"{self.path}, line {statement.lineno}: `{quote}` {reason}; {_FIX_HINT}"
        self.problems.append(LineProblem(statement.lineno, text))

    def _source(self, node: ast.stmt | ast.expr) -> str:
        """The node as the file has it, on one line. (ast's own way splits the whole file each time.)"""
        last = node.end_lineno or node.lineno
        lines = self.lines[node.lineno - 1 : last]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode().split())


def _names_in(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- from expressions to values ---


def _fold_within_depth(node: ast.expr, names: Mapping[str, ConfigValue]) -> ConfigValue:
    try:
        return _evaluate(node, names)
    except RecursionError:
        raise UserError(_TOO_DEEP) from None


def _evaluate(node: ast.expr, names: Mapping[str, ConfigValue]) -> ConfigValue:
    """What Python would make of the expression; raises with the reason if it is none that we take."""
    match node:
        case ast.Constant(value=value):
            return _check_bounds(value)
        case ast.Name(id=name):
            if name not in names:
                raise UserError(
                    f"needs the value of `{_short(name, _MAX_QUOTE_CHARS)}`, which is not known here"
                )
            return names[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, names)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY_OPERATORS:
            return _check_bounds(_UNARY_OPERATORS[type(sign)](_number(_evaluate(operand, names))))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY_OPERATORS:
            return _calculate(sign, _evaluate(left, names), _evaluate(right, names))
        case ast.JoinedStr(values=parts):
            return _check_bounds("".join(_evaluate_fstring_part(part, names) for part in parts))
    raise UserError(_NEEDS_EXECUTION)


def _calculate(sign: ast.operator, left: ConfigValue, right: ConfigValue) -> ConfigValue:
    if isinstance(left, str) and isinstance(right, str) and isinstance(sign, ast.Add):
        return _check_bounds(left + right)
    a, b = _number(left), _number(right)
    if isinstance(sign, ast.Pow) and _is_large_power(a, b):
        raise UserError(_TOO_LARGE)  # before it is worked out, which may take years
    try:
        return _check_bounds(_BINARY_OPERATORS[type(sign)](a, b))
    except ZeroDivisionError:
        raise UserError("divides by zero") from None
    except OverflowError:
        raise UserError(_TOO_LARGE) from None


def _is_large_power(base: int | float, exponent: int | float) -> bool:
    """Floats end in an OverflowError by themselves; whole numbers grow for as long as there is memory."""
    return (
        isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MAX_INT_BITS
    )


def _number(value: ConfigValue) -> int | float:
    if not isinstance(value, int | float):
        raise UserError("does arithmetic with what is no number")
    return value


def _check_bounds(value: Any) -> ConfigValue:
    """The value, if it is of a kind and size that a setting can have."""
    if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        raise UserError(_TOO_LARGE)
    if isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
        raise UserError(_TOO_LARGE)
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(f"makes a {type(value).__name__}, which no setting takes")


_LARGE_WIDTH = re.compile(r"\d{4}")
_CONVERSIONS: dict[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}


def _evaluate_fstring_part(part: ast.expr, names: Mapping[str, ConfigValue]) -> str:
    """The text of an f-string between its braces, or around them."""
    if not isinstance(part, ast.FormattedValue):
        return str(_evaluate(part, names))
    value = _evaluate(part.value, names)
    if part.conversion != -1:
        value = _CONVERSIONS[chr(part.conversion)](value)
    form = "" if part.format_spec is None else str(_evaluate(part.format_spec, names))
    if _LARGE_WIDTH.search(form):
        raise UserError(_TOO_LARGE)
    try:
        return format(value, form)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"has a form that does not work: {error}") from None
