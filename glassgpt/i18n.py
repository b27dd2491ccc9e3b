"""What the program explains, in the reader's language.

    say("{n} iterations took {time} each", n=5, time="168 ms")

The English sentence is the key; `locale/LANG/LC_MESSAGES/glassgpt.po` holds the others. Numbers, names and
code are put in after translating, as they are; in a right-to-left language each is isolated, so that `12.5%`
or `--eval_interval=2000` is not torn apart by the text around it.
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

# `--gpu={name}` or `max_iters=1000`: one piece, which reads from left to right.
_CODE_PATTERN = re.compile(r"(?<![\w{])-{0,2}[A-Za-z][\w.]*=(?:\{\w+\}|[\w.]+)|(?<![\w-])--[a-z][\w.]*")
_LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT ISOLATE}"
_ISOLATE, _POP = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"

_language: ContextVar[str] = ContextVar("language", default="en")


def say(sentence: str, **values: object) -> str:
    """The sentence in the current language, with the values in it."""
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
    """Explanations made inside are in this language."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def preferred_language() -> str:
    """The locale's language, where there is a catalogue for it.

    As with gettext, LANGUAGE is a list that counts for more, but not in the C locale, which scripts set to
    get English.
    """
    settings = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    place = next((value for value in settings if value), "C")
    if _language_in(place) in ("c", "posix"):
        return "en"
    wanted = [*os.environ.get("LANGUAGE", "").split(":"), place]
    return next((name for name in map(_language_in, wanted) if name in LANGUAGES), "en")


def _language_in(place: str) -> str:
    """hi of hi_IN.UTF-8"""
    return re.split(r"[_.@]", place, maxsplit=1)[0].lower()


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    path = resources.files("glassgpt") / "locale" / language / "LC_MESSAGES" / "glassgpt.mo"
    with path.open("rb") as file:
        return gettext.GNUTranslations(file)
