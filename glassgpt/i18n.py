"""Messages: sentences by key, in a catalogue per language.

    message = say("eval-spikes.title.spikes", ratio=35.2)
    str(message)   # Iterations that evaluate take 35 times as long as others

`locale/LANG/LC_MESSAGES/glassgpt.po` holds the sentences, English too; the code holds keys and values.
A value's format is in the sentence: `{ratio:ratio}`, `{share:percent}`, `{count:,}`. A sentence without a
translation is shown in English. In a right-to-left language each value is isolated by direction marks, so
that `12.5%` or `--eval_interval=2000` is shown in order.
"""

from __future__ import annotations

import gettext
import os
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from glassgpt import format as formats

LANGUAGES = {"en": "English", "hi": "हिन्दी", "ar": "العربية"}
RIGHT_TO_LEFT = frozenset({"ar"})

# What may follow the colon of a placeholder, besides Python's own format codes.
VALUE_FORMATS: dict[str, Callable[[Any], str]] = {
    "bytes": formats.format_bytes,
    "count": formats.format_count,
    "duration": formats.format_duration,
    "factor": formats.format_factor,
    "flops": formats.format_flops,
    "flops_per_s": formats.format_flops_per_s,
    "integer": formats.format_integer,
    "loss": formats.format_loss,
    "loss_difference": formats.format_loss_difference,
    "lr": formats.format_lr,
    "logged_mfu": "{:.2f}%".format,  # with two decimals, as nanoGPT prints it
    "logged_ms": "{:.2f} ms".format,
    "ms": formats.format_ms,
    "parameters": formats.format_parameters,
    "rough_duration": formats.format_rough_duration,
    "percent": formats.format_percent,  # of a share between 0 and 1
    "percent_value": formats.format_percent_value,  # of a number of percent
    "ratio": formats.format_ratio,
}

# --gpu={name}, max_iters=1000, {order}-grams, and code in backticks: isolated as one piece, which reads from
# left to right.
_CODE_PATTERN = re.compile(
    r"`[^`]+`|(?<![\w{:])-{0,2}[A-Za-z][\w.]*=(?:\{\w+(?::[^}]*)?\}|[\w.]+)|(?<![\w-])--[a-z][\w.]*"
    r"|\{\w+\}-[a-z]+"
)
_LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT ISOLATE}"
_ISOLATE, _POP = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"

_language: ContextVar[str] = ContextVar("language", default="en")


@dataclass(frozen=True)
class Message:
    """A sentence of the catalogue with its values. `str()` renders it in the current language."""

    key: str
    values: Mapping[str, object]

    def __str__(self) -> str:
        language = _language.get()
        template = _catalogue(language).gettext(self.key)
        if language in RIGHT_TO_LEFT:
            template = _CODE_PATTERN.sub(f"{_LEFT_TO_RIGHT}\\g<0>{_POP}", template)
            return _IsolatingFormatter().vformat(template, (), self.values)
        return _MessageFormatter().vformat(template, (), self.values)

    def with_values(self, **values: object) -> Message:
        return Message(self.key, {**self.values, **values})

    def __hash__(self) -> int:
        return hash(self.key)  # the values are a dict


Text = tuple[Message, ...]  # sentences that follow each other


def say(key: str, /, **values: object) -> Message:
    return Message(key, values)


def translate(key: str, /, **values: object) -> str:
    """The sentence in the current language, with the values inserted."""
    return str(Message(key, values))


def verbatim(text: str) -> Message:
    """Text that is not in a catalogue, such as a finding stored in an old journal."""
    return Message(VERBATIM, {"text": text})


VERBATIM = "verbatim"


def make_text(messages: Message | Iterable[Message | None] | None) -> Text:
    """The sentences that are not None."""
    if messages is None or isinstance(messages, Message):
        return (messages,) if messages else ()
    return tuple(message for message in messages if message)


def render_text(text: Iterable[Message]) -> str:
    return " ".join(rendered for message in text if (rendered := str(message)))


def message_values(text: Iterable[Message]) -> dict[str, object]:
    """What the sentences say, by name, for JSON; also the values of messages inside of messages."""
    values: dict[str, object] = {}
    for message in text:
        if message.key == VERBATIM:
            continue
        for name, value in message.values.items():
            if isinstance(value, Message):
                values = message_values([value]) | values
            else:
                values.setdefault(name, _json_value(value))
    return values


def _json_value(value: object) -> object:
    """NumPy's scalars as Python's."""
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, Message):
        return str(value)
    return value.item() if hasattr(value, "item") else value


class _MessageFormatter(string.Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        if isinstance(value, list | tuple):
            return ", ".join(self.format_value(item, format_spec) for item in value)
        return self.format_value(value, format_spec)

    def format_value(self, value: object, format_spec: str) -> str:
        if isinstance(value, Message | str):
            return str(value)
        if format_spec in VALUE_FORMATS:
            return VALUE_FORMATS[format_spec](value)
        return format(value, format_spec)


class _IsolatingFormatter(_MessageFormatter):
    def format_field(self, value: object, format_spec: str) -> str:
        return f"{_ISOLATE}{super().format_field(value, format_spec)}{_POP}"


def current_language() -> str:
    return _language.get()


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Messages are rendered in this language inside the block."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def preferred_language() -> str:
    """The language of the locale, if there is a catalogue for it.

    As with gettext, the list in LANGUAGE comes first, except in the C locale, which scripts set to get
    English.
    """
    settings = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    locale = next((value for value in settings if value), "C")
    if _language_of_locale(locale) in ("c", "posix"):
        return "en"
    locales = [*os.environ.get("LANGUAGE", "").split(":"), locale]
    return next((language for language in map(_language_of_locale, locales) if language in LANGUAGES), "en")


def _language_of_locale(locale: str) -> str:
    """hi of hi_IN.UTF-8"""
    return re.split(r"[_.@]", locale, maxsplit=1)[0].lower()


def check_language(name: str, problems: list[str]) -> None:
    if name and name not in LANGUAGES:
        problems.append(f"--lang={name} is not one of {', '.join(LANGUAGES)}")


def has_message(key: str) -> bool:
    return _catalogue("en").gettext(key) != key


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    """Without missing and stale translations; those fall back to English."""
    path = resources.files("glassgpt") / "locale" / language / "LC_MESSAGES" / "glassgpt.mo"
    with path.open("rb") as file:
        translations = gettext.GNUTranslations(file)
    if language != "en":
        translations.add_fallback(_catalogue("en"))
    return translations
