"""Translated messages: English sentences are the keys of the Hindi and Arabic catalogues.

    say("{n} iterations took {time} each", n=5, time="168 ms")

`locale/LANG/LC_MESSAGES/glassgpt.po` holds the translations. Numbers, names and code are inserted after
translating. In a right-to-left language each is isolated by direction marks, so that `12.5%` or
`--eval_interval=2000` is shown in order.
"""

from __future__ import annotations

import gettext
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import resources

LANGUAGES = {"en": "English", "hi": "हिन्दी", "ar": "العربية"}
RIGHT_TO_LEFT = frozenset({"ar"})

# `--gpu={name}` or `max_iters=1000`: isolated as one piece, which reads from left to right.
_CODE_PATTERN = re.compile(r"(?<![\w{])-{0,2}[A-Za-z][\w.]*=(?:\{\w+\}|[\w.]+)|(?<![\w-])--[a-z][\w.]*")
_LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT ISOLATE}"
_ISOLATE, _POP = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"

_language: ContextVar[str] = ContextVar("language", default="en")


def say(sentence: str, **values: object) -> str:
    """The sentence in the current language, with the values inserted."""
    language = _language.get()
    text = sentence if language == "en" else _catalogue(language).gettext(sentence)
    if language in RIGHT_TO_LEFT:
        text = _CODE_PATTERN.sub(f"{_LEFT_TO_RIGHT}\\g<0>{_POP}", text)
        values = {name: f"{_ISOLATE}{value}{_POP}" for name, value in values.items()}
    return text.format(**values) if values else text


def current_language() -> str:
    return _language.get()


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """`say` uses this language inside the block."""
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


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    path = resources.files("glassgpt") / "locale" / language / "LC_MESSAGES" / "glassgpt.mo"
    with path.open("rb") as file:
        return gettext.GNUTranslations(file)
