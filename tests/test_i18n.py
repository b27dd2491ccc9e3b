"""Explanations in three languages: every sentence has its translation, its values stay as they are."""

from __future__ import annotations

import ast
import gettext
import io
import re
import string
import unicodedata
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

from glassgpt import i18n
from glassgpt.compare import compare
from glassgpt.explain.explanation import explain
from glassgpt.i18n import LANGUAGES, RIGHT_TO_LEFT, current_language, preferred_language, say, use_language
from glassgpt.runs.glossary import glossary
from glassgpt.runs.reading import DEMO_LOGS, read_run_log

PACKAGE = Path(str(resources.files("glassgpt")))
TRANSLATED = sorted(set(LANGUAGES) - {"en"})
LOGS = sorted(DEMO_LOGS.values())

ISOLATES = "\N{FIRST STRONG ISOLATE}\N{LEFT-TO-RIGHT ISOLATE}"
POP = "\N{POP DIRECTIONAL ISOLATE}"
# Three words in a row that are no names, settings or units.
ENGLISH = re.compile(r"(?<![\w=.`-])[A-Za-z][a-z]+ [a-z]{2,} [a-z]{2,}(?![\w=`-])")


@cache
def catalogue(language: str) -> Catalog:
    with folder(language).joinpath("glassgpt.po").open("rb") as file:
        return read_po(file, locale=language)


def folder(language: str) -> Path:
    return PACKAGE / "locale" / language / "LC_MESSAGES"


@cache
def sentences() -> frozenset[str]:
    """Every one that the program can say, as `make words` finds them."""
    found = extract_from_dir(PACKAGE, method_map=[("**.py", "python")], keywords={"say": None})
    texts = [message for _, _, message, _, _ in found]
    assert all(isinstance(text, str) for text in texts)
    return frozenset(str(text) for text in texts)


def placeholders(text: str) -> set[str]:
    parts = [(name, form, conversion) for _, name, form, conversion in string.Formatter().parse(text)]
    assert all(not form and not conversion for _, form, conversion in parts), "values come formatted"
    return {name for name, _, _ in parts if name is not None}


# --- the code ---


def speaking_modules() -> list[Path]:
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"i18n import .*\bsay\b", path.read_text())
    ]


def calls(path: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say"
    ]


def test_every_sentence_is_literal_and_gets_the_values_it_names() -> None:
    wrong = []
    for path in speaking_modules():
        assert calls(path), path
        for call in calls(path):
            match call.args:
                case [ast.Constant(value=str(sentence))]:
                    named = placeholders(sentence)
                    given = {keyword.arg for keyword in call.keywords}
                    # **values, which only a run of it can tell, have no name.
                    if not (given - {None} <= named if None in given else given == named):
                        wrong.append(f"{path}:{call.lineno}")
                case _:
                    wrong.append(f"{path}:{call.lineno}")
    assert wrong == []


def test_babel_finds_every_sentence() -> None:
    """It does not look into f-strings."""
    spoken = {ast.literal_eval(call.args[0]) for path in speaking_modules() for call in calls(path)}
    assert spoken == sentences()


def test_there_is_much_to_say() -> None:
    assert len(speaking_modules()) > 20
    assert len(sentences()) > 400


# --- the catalogues ---


@pytest.mark.parametrize("language", TRANSLATED)
def test_every_sentence_is_translated(language: str) -> None:
    there = {str(message.id): message for message in catalogue(language) if message.id}
    missing = sentences() - set(there)
    gone = set(there) - sentences()
    empty = {text for text, message in there.items() if not message.string}
    assert not missing, f"`make words` adds {len(missing)}"
    assert not gone, f"`make words` removes {len(gone)}"
    assert not empty, f"{len(empty)} of {len(there)} are not translated"
    assert not catalogue(language).obsolete
    assert not any(message.fuzzy for message in there.values())


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_has_the_same_values_and_code(language: str) -> None:
    code = re.compile(r"`[^`]+`|--[a-z]\w*|\b[a-z]+_[a-z_]+\b|\b\w+\.\w+\(\)")
    for message in catalogue(language):
        if not message.id or not message.string:
            continue
        original, translated = str(message.id), str(message.string)
        assert placeholders(original) == placeholders(translated), translated
        assert set(code.findall(original)) <= set(code.findall(translated)), translated
        assert original.startswith(" ") == translated.startswith(" "), translated
        assert original.endswith(" ") == translated.endswith(" "), translated


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_is_clean_text(language: str) -> None:
    script = {"hi": "DEVANAGARI", "ar": "ARABIC"}[language]
    for message in catalogue(language):
        if not message.id or not message.string:
            continue
        text = str(message.string)
        for character in text:
            category = unicodedata.category(character)
            assert character in "\n\u200c\u200d" or category not in ("Cc", "Cf", "Co", "Cs"), ascii(text)
            # Numbers stay ASCII, so that they can be found in the log.
            assert category != "Nd" or character in string.digits, text
        has_words = re.search(r"(?<![\w{])[A-Za-z]?[a-z]{4,}(?![\w}=])", str(message.id))
        if text.startswith("MFU ("):  # a name and what it is short for
            continue
        letters = [character for character in text if character.isalpha()]
        assert not has_words or any(script in unicodedata.name(letter) for letter in letters), text


@pytest.mark.parametrize("language", TRANSLATED)
def test_what_is_installed_is_what_was_translated(language: str) -> None:
    compiled = io.BytesIO()
    write_mo(compiled, catalogue(language))
    assert folder(language).joinpath("glassgpt.mo").read_bytes() == compiled.getvalue(), "`make words`"


def test_the_catalogues_are_installed() -> None:
    import tomllib

    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["glassgpt"]
    wanted = {path.relative_to(PACKAGE) for path in PACKAGE.glob("locale/*/LC_MESSAGES/*.mo")}
    assert len(wanted) == len(TRANSLATED)
    assert all(any(path.match(pattern) for pattern in patterns) for path in wanted)


# --- saying ---


class Marked(gettext.NullTranslations):
    """A language of its own: every word of a sentence becomes stars."""

    def gettext(self, message: str) -> str:
        return re.sub(r"\{\w+\}|\w+", lambda part: part[0] if "{" in part[0] else "*", message)


def spoken(language: str, path: Path) -> str:
    """Everything that is said about a log."""
    with use_language(language):
        explanation = explain(read_run_log(str(path)))
        parts = list(explanation.verdict)
        for finding in explanation.findings:
            parts += [finding.title, finding.evidence, finding.explanation, finding.advice]
        parts += [entry.meaning for entry in glossary(explanation.log, explanation.facts)]
        comparison = compare([read_run_log(str(path)) for path in LOGS])
        for conclusion in comparison.verdict:
            parts += [conclusion.sentence, *conclusion.details]
    return "\n".join(parts)


def test_there_are_logs_to_speak_about() -> None:
    assert LOGS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_all_that_is_said_can_be_translated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i18n, "_catalogue", lambda language: Marked())
    text = spoken("hi", path)
    assert text.count("*") > 200
    assert not ENGLISH.findall(text)


@pytest.mark.parametrize("language", TRANSLATED)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_no_english_is_left(path: Path, language: str) -> None:
    assert not ENGLISH.findall(spoken(language, path))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_numbers_stay_in_every_language(path: Path) -> None:
    def numbers(language: str) -> set[str]:
        text = re.sub(f"[{ISOLATES}{POP}]", " ", spoken(language, path))
        return set(re.findall(r"(?<![A-Za-z\d_.])\d[\d,.]*\d(?![A-Za-z\d_])", text))

    english = numbers("en")
    assert len(english) > 50
    for language in TRANSLATED:
        assert english - numbers(language) == set()


def test_english_is_as_it_is_written() -> None:
    assert current_language() == "en"
    assert say("{n} iterations took {time} each", n=5, time="168 ms") == "5 iterations took 168 ms each"
    assert say("no values, {braces} stay") == "no values, {braces} stay"


def test_a_sentence_without_a_translation_is_english() -> None:
    with use_language("hi"):
        assert say("nobody ever said {this}", this="that") == "nobody ever said that"


@pytest.mark.parametrize("language", TRANSLATED)
def test_the_language_holds_only_inside(language: str) -> None:
    with use_language(language):
        assert current_language() == language
        with use_language("en"):
            assert current_language() == "en"
        assert current_language() == language
    with pytest.raises(ZeroDivisionError), use_language(language):
        raise ZeroDivisionError
    assert current_language() == "en"


@pytest.mark.parametrize("language", TRANSLATED)
def test_values_are_put_in_as_they_are(language: str) -> None:
    value = "{x} %s --eval_interval=2000 12.5%"
    with use_language(language):
        text = say("Most important: {title}.", title=value)
    assert value in text
    assert "Most" not in text
    if language in RIGHT_TO_LEFT:
        assert any(f"{mark}{value}{POP}" in text for mark in ISOLATES)
        assert sum(map(text.count, ISOLATES)) == text.count(POP)
    else:
        assert not any(mark in text for mark in ISOLATES + POP)


def test_isolates_are_balanced_in_every_sentence() -> None:
    with use_language("ar"):
        for sentence in sorted(sentences()):
            text = say(sentence, **dict.fromkeys(placeholders(sentence), "1"))
            depth = 0
            for character in text:
                depth += (character in ISOLATES) - (character == POP)
                assert depth >= 0, sentence
            assert depth == 0, sentence


def test_a_value_that_was_said_itself_is_isolated_as_one() -> None:
    with use_language("ar"):
        inner = say("Most important: {title}.", title="12.5%")
        outer = say("Most important: {title}.", title=inner)
    assert any(f"{mark}{inner}{POP}" in outer for mark in ISOLATES)


# --- which language ---

VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": ""}, "en"),
        ({"LANG": "hi_IN.UTF-8"}, "hi"),
        ({"LANG": "hi_IN"}, "hi"),
        ({"LANG": "hi"}, "hi"),
        ({"LANG": "ar_EG.UTF-8"}, "ar"),
        ({"LANG": "ar_SA@calendar=islamic"}, "ar"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "POSIX"}, "en"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "../../../etc"}, "en"),
        ({"LANG": "\udcff\n"}, "en"),
        ({"LC_ALL": "ar_EG.UTF-8", "LANG": "hi_IN.UTF-8"}, "ar"),
        ({"LC_MESSAGES": "hi_IN.UTF-8", "LANG": "en_US.UTF-8"}, "hi"),
        ({"LC_ALL": "C", "LANG": "hi_IN.UTF-8"}, "en"),
        ({"LC_ALL": "", "LANG": "hi_IN.UTF-8"}, "hi"),
        ({"LANGUAGE": "hi", "LANG": "en_US.UTF-8"}, "hi"),
        ({"LANGUAGE": "en:hi", "LANG": "hi_IN.UTF-8"}, "en"),
        # As gettext does: the first language that there is a catalogue for, and none of them in the C locale.
        ({"LANGUAGE": "de:hi:ar", "LANG": "de_DE.UTF-8"}, "hi"),
        ({"LANGUAGE": "hi", "LC_ALL": "C"}, "en"),
    ],
    ids=str,
)
def test_the_locale_chooses_the_language(
    environment: dict[str, str], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert preferred_language() == language
