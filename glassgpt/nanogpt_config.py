"""nanoGPT's config files: Python syntax, which is parsed and never executed.

    glass train config/train_shakespeare_char.py

A line is `name = value`. A value is a number, a string, True, False, None, or arithmetic on these and on
names assigned before. Imports are accepted and import nothing. Everything else is refused with its line.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.config import ConfigValue
from glassgpt.errors import UserError
from glassgpt.files import regular_file_opener


@dataclass(frozen=True)
class FileSetting:
    value: ConfigValue
    line: int


@dataclass(frozen=True)
class LineProblem:
    """A problem, and its line, by which problems are sorted."""

    line: int
    text: str


# Far above any real config file; they stop files made to exhaust the parser or the memory.
_MAX_FILE_BYTES = 100_000
_MAX_INT_BITS = 256
_MAX_TEXT_CHARS = 1000
_MAX_QUOTE_CHARS = 60

# People put the time of day into these names. Nothing depends on them, so they keep the expression as text.
_SETTINGS_KEPT_AS_SOURCE = ("wandb_run_name", "wandb_project")

# Error messages, after the quoted line.
_NEEDS_EXECUTION = "would have to be executed, and a config file is only parsed"
_TOO_LARGE = "is too large"
_TOO_DEEP = "is nested too deeply"
_FIX_HINT = "write the value itself, or leave the line out"

_LARGE_WIDTH = re.compile(r"\d{4}")
_CONVERSIONS: dict[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}
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
    path: Path, defaults: Mapping[str, ConfigValue]
) -> tuple[dict[str, FileSetting], list[LineProblem]]:
    """The settings of the file, known or not, and a problem for every line that is not a setting.

    `defaults` has all known settings, with the values that a file can use before it sets them. Other names
    are helpers if a later line uses them or if they start with `_`. The rest are mistakes; they are returned
    with the settings, for the caller to refuse.
    """
    source = _read_source(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as for an invalid escape sequence in a string
            statements = ast.parse(source).body
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno or 1}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{path} {_TOO_DEEP}") from None
    reader = _ConfigFileReader(path, source, defaults)
    for statement in statements:
        reader.read(statement)
    return reader.settings(), reader.problems


# --- from bytes to statements ---


def _read_source(path: Path) -> str:
    """The text of the file, with the line ends that Python counts."""
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
        bad_byte = data.find(b"\0")
    except UnicodeDecodeError as error:
        bad_byte = error.start
    if bad_byte >= 0:
        line = data.count(b"\n", 0, bad_byte) + 1
        raise UserError(f"{path}, line {line}: this is not text in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- from statements to settings ---


class _ConfigFileReader:
    """Reads statement by statement and keeps the value of each name."""

    def __init__(self, path: Path, source: str, defaults: Mapping[str, ConfigValue]) -> None:
        self.path = path
        self.lines = source.encode().split(b"\n")
        self.known = defaults.keys()
        self.values = dict(defaults)
        self.assigned: dict[str, FileSetting] = {}
        self.used: set[str] = set()
        self.problems: list[LineProblem] = []

    def settings(self) -> dict[str, FileSetting]:
        """All assigned names but the helpers."""
        return {
            name: setting
            for name, setting in self.assigned.items()
            if name in self.known or not (name in self.used or name.startswith("_"))
        }

    def read(self, statement: ast.stmt) -> None:
        self.used |= self.assigned.keys() & {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value, statement)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._assign(name, value, statement)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                # Nothing is imported. But an import that would have set a setting must not be lost silently.
                imported = {alias.asname or alias.name.partition(".")[0] for alias in names}
                if "*" in imported or imported & self.known:
                    self._refuse(statement, "would take settings from another file, and nothing is imported")
                for name in imported:
                    self.values.pop(name, None)
            case ast.Expr(value=ast.Constant(value=str())):
                pass  # a docstring
            case _:
                self._refuse(statement, _NEEDS_EXECUTION)

    def _assign(self, name: str, value: ast.expr, statement: ast.stmt) -> None:
        line = statement.lineno
        try:
            result = self.values[name] = _evaluate(value, self.values)
        except (UserError, RecursionError) as error:
            self.values.pop(name, None)  # later lines must not use its old value
            if name in _SETTINGS_KEPT_AS_SOURCE:
                self.assigned[name] = FileSetting(_short(self._source(value), _MAX_TEXT_CHARS), line)
                return
            self._refuse(statement, str(error) if isinstance(error, UserError) else _TOO_DEEP)
            if name in self.known:
                return
            result = None
        self.assigned[name] = FileSetting(result, line)

    def _refuse(self, statement: ast.stmt, reason: str) -> None:
        quote = _short(self._source(statement), _MAX_QUOTE_CHARS)
        text = f"{self.path}, line {statement.lineno}: `{quote}` {reason}; {_FIX_HINT}"
        self.problems.append(LineProblem(statement.lineno, text))

    def _source(self, node: ast.stmt | ast.expr) -> str:
        """The source of a node, on one line. (ast.get_source_segment splits the whole file each time.)"""
        last = node.end_lineno or node.lineno
        lines = self.lines[node.lineno - 1 : last]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode().split())


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- from expressions to values ---


def _evaluate(node: ast.expr, names: Mapping[str, ConfigValue]) -> ConfigValue:
    """The value of the expression as in Python; UserError with the reason if it is not accepted."""
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
            return _evaluate_binary(sign, _evaluate(left, names), _evaluate(right, names))
        case ast.FormattedValue(value=inner, conversion=conversion, format_spec=format_spec):
            value = _evaluate(inner, names)
            if conversion != -1:
                value = _CONVERSIONS[chr(conversion)](value)
            spec = "" if format_spec is None else str(_evaluate(format_spec, names))
            if _LARGE_WIDTH.search(spec):
                raise UserError(_TOO_LARGE)
            try:
                return format(value, spec)
            except (ValueError, TypeError, OverflowError) as error:
                raise UserError(f"has an invalid format: {error}") from None
        case ast.JoinedStr(values=parts):
            return _check_bounds("".join(str(_evaluate(part, names)) for part in parts))
    raise UserError(_NEEDS_EXECUTION)


def _evaluate_binary(sign: ast.operator, left: ConfigValue, right: ConfigValue) -> ConfigValue:
    if isinstance(left, str) and isinstance(right, str) and isinstance(sign, ast.Add):
        return _check_bounds(left + right)
    a, b = _number(left), _number(right)
    # Checked before it is computed: a large integer power takes all memory. (A float overflows.)
    is_int_power = isinstance(sign, ast.Pow) and isinstance(a, int) and isinstance(b, int)
    if is_int_power and int(a).bit_length() * b > _MAX_INT_BITS:
        raise UserError(_TOO_LARGE)
    try:
        return _check_bounds(_BINARY_OPERATORS[type(sign)](a, b))
    except ZeroDivisionError:
        raise UserError("divides by zero") from None
    except OverflowError:
        raise UserError(_TOO_LARGE) from None


def _number(value: ConfigValue) -> int | float:
    if not isinstance(value, int | float):
        raise UserError("does arithmetic on something that is not a number")
    return value


def _check_bounds(value: Any) -> ConfigValue:
    """The value, if a setting can have its type and size."""
    if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        raise UserError(_TOO_LARGE)
    if isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
        raise UserError(_TOO_LARGE)
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(f"makes a {type(value).__name__}, which no setting takes")
