"""Messages by key in three languages: every key has its sentence, its values stay as they are."""

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
from babel.messages.catalog import Catalog, Message

from glassgpt import i18n
from glassgpt.compare import compare
from glassgpt.explain.explanation import explain
from glassgpt.i18n import (
    LANGUAGES,
    RIGHT_TO_LEFT,
    VALUE_FORMATS,
    current_language,
    message_values,
    preferred_language,
    say,
    translate,
    use_language,
    verbatim,
)
from glassgpt.locale.update import (
    WITHOUT_CALL,
    compile_catalog,
    extract_keys,
    read_catalog,
    read_sentences,
    update_english,
    update_translation,
)
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
def messages(language: str) -> dict[str, Message]:
    return {str(message.id): message for message in read_catalog(language) if message.id}


@cache
def sentences(language: str) -> dict[str, str]:
    return {key: str(message.string) for key, message in messages(language).items() if message.string}


def placeholders(text: str) -> set[tuple[str, str]]:
    """The values of a sentence with their formats."""
    parts = [(name, form, conversion) for _, name, form, conversion in string.Formatter().parse(text)]
    assert not any(conversion for _, _, conversion in parts), text
    return {(name, form or "") for name, form, _ in parts if name is not None}


def names(text: str) -> set[str]:
    return {name for name, _ in placeholders(text)}


# --- the code ---


def calls(path: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("say", "translate")
    ]


def test_every_key_is_literal_and_gets_the_values_of_its_sentence() -> None:
    wrong, keys = [], set(WITHOUT_CALL)
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in calls(path):
            match call.args:
                case [ast.Constant(value=str(key))] if key in sentences("en"):
                    keys.add(key)
                    needed, given = names(sentences("en")[key]), {keyword.arg for keyword in call.keywords}
                    # The names of **values are known only at run time, and a rule adds values to a trainer's
                    # messages. What a sentence does not show may be given all the same, for JSON.
                    if not (None in given or needed <= given or path.parent.name == "trainers"):
                        wrong.append(f"{path}:{call.lineno} lacks {sorted(needed - given)}")
                case _:
                    wrong.append(f"{path}:{call.lineno} has no message")
    for path in PACKAGE.rglob("*.js"):
        keys |= set(re.findall(r'\bsay\("([\w.]+)"\)', path.read_text()))
    assert wrong == []
    assert sorted(keys) == extract_keys() == sorted(messages("en")), "run `make words`"
    assert len(keys) > 600


# --- the catalogues ---


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_catalogues_are_as_make_words_writes_them(language: str) -> None:
    old = read_catalog(language)
    if language == "en":
        new = update_english(extract_keys(), old)
        assert set(sentences("en")) == set(messages("en")), "each key has an English sentence"
    else:
        new = update_translation(language, sentences("en"), old)
    assert {m.id: (m.string, m.fuzzy, m.auto_comments) for m in new} == {
        m.id: (m.string, m.fuzzy, m.auto_comments) for m in old
    }, "run `make words`"
    compiled = PACKAGE / "locale" / language / "LC_MESSAGES" / "glassgpt.mo"
    assert compiled.read_bytes() == compile_catalog(old), "run `make words`"


def test_formats_are_known() -> None:
    for key, sentence in sentences("en").items():
        for name, form in placeholders(sentence):
            assert form in VALUE_FORMATS or format(1.5, form), (key, name)


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_has_the_same_values_and_code(language: str) -> None:
    code = re.compile(r"`[^`]+`|--[a-z]\w*|\b[a-z]+_[a-z_]+\b(?![^{]*\})|\b\w+\.\w+\(\)")
    for key, translated in sentences(language).items():
        if messages(language)[key].fuzzy:
            continue
        original = sentences("en")[key]
        assert placeholders(original) == placeholders(translated), key
        assert set(code.findall(original)) <= set(code.findall(translated)), key
        assert not re.search(r"^ | $", original + "\n" + translated), key


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_is_clean_text(language: str) -> None:
    script = {"hi": "DEVANAGARI", "ar": "ARABIC"}[language]
    for key, text in sentences(language).items():
        for character in text:
            category = unicodedata.category(character)
            assert character in "\n\u200c\u200d" or category not in ("Cc", "Cf", "Co", "Cs"), ascii(text)
            # Numbers stay ASCII, so that they can be found in the log.
            assert category != "Nd" or character in string.digits, text
        has_words = re.search(r"(?<![\w{:])[A-Za-z]?[a-z]{4,}(?![\w}=:])", sentences("en")[key])
        if text.startswith("MFU ("):  # a name and what it is short for
            continue
        letters = [character for character in text if character.isalpha()]
        assert not has_words or any(script in unicodedata.name(letter) for letter in letters), text


def test_the_catalogues_are_installed() -> None:
    import tomllib

    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["glassgpt"]
    wanted = {path.relative_to(PACKAGE) for path in PACKAGE.glob("locale/*/LC_MESSAGES/*.mo")}
    assert len(wanted) == len(LANGUAGES)
    assert all(any(path.match(pattern) for pattern in patterns) for path in wanted)


def catalog_of(language: str, **sentences: str) -> Catalog:
    catalog = Catalog(language)
    for key, sentence in sentences.items():
        catalog.add(key, sentence)
    return catalog


def test_a_translation_of_an_older_sentence_is_stale_until_it_is_mended() -> None:
    english = {"a": "The loss is {loss:loss}", "b": "An update", "c": "New"}
    first = update_translation("hi", english, catalog_of("hi", a="लॉस {loss:loss}", b="अपडेट", gone="x"))
    assert read_sentences(first) == {"a": "लॉस {loss:loss}", "b": "अपडेट", "c": ""}
    assert not any(message.fuzzy for message in first if message.id)

    english["a"] = "The loss was {loss:loss}"
    second = update_translation("hi", english, first)
    assert {m.id: m.fuzzy for m in second if m.id} == {"a": True, "b": False, "c": False}
    compiled = gettext.GNUTranslations(io.BytesIO(compile_catalog(second)))
    assert compiled.gettext("a") == "a", "so that English is shown"
    assert compiled.gettext("b") == "अपडेट"
    # It stays stale, whatever else is updated, until a translator removes the mark.
    third = update_translation("hi", english, second)
    assert third["a"].fuzzy
    third["a"].flags.discard("fuzzy")
    assert not update_translation("hi", english, third)["a"].fuzzy


# --- rendering ---


class Marked(gettext.NullTranslations):
    """A language of its own: every word of a sentence becomes stars."""

    def gettext(self, message: str) -> str:
        english = sentences("en")[message]
        return re.sub(r"\{[^}]+\}|\w+", lambda part: part[0] if "{" in part[0] else "*", english)


def spoken(language: str, path: Path) -> str:
    """Everything that is said about a log."""
    with use_language(language):
        explanation = explain(read_run_log(str(path)))
        parts = list(explanation.verdict)
        for finding in explanation.findings:
            parts += [finding.title, finding.evidence, finding.explanation, finding.advice, finding.more]
        parts += [entry.meaning for entry in glossary(explanation.log, explanation.facts)]
        comparison = compare([read_run_log(str(path)) for path in LOGS])
        for claim in comparison.verdict:
            parts += [claim.sentence, *claim.details]
    return "\n".join(parts)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_all_that_is_said_can_be_translated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i18n, "_catalogue", lambda language: Marked())
    text = spoken("hi", path)
    assert text.count("*") > 200
    assert not ENGLISH.findall(text)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_numbers_stay_in_every_language(path: Path) -> None:
    def numbers(language: str) -> set[str]:
        text = re.sub(f"[{ISOLATES}{POP}]", " ", spoken(language, path))
        return set(re.findall(r"(?<![A-Za-z\d_.])\d[\d,.]*\d(?![A-Za-z\d_])", text))

    english = numbers("en")
    assert len(english) > 50
    for language in TRANSLATED:
        assert english - numbers(language) == set()


def test_values_are_formatted_by_their_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_of(
        "en",
        one="{share:percent} of {count:,} in {times:ms}: {rest}",
        inner="{ratio:ratio} times",
        verbatim="{text}",
    )
    compiled = gettext.GNUTranslations(io.BytesIO(compile_catalog(catalog)))
    monkeypatch.setattr(i18n, "_catalogue", lambda language: compiled)
    message = say("one", share=0.054, count=12345, times=[1.5, 168], rest=say("inner", ratio=35.2))
    assert str(message) == "5.4% of 12,345 in 1.50 ms, 168.0 ms: 35 times"
    assert message_values([message]) == {"share": 0.054, "count": 12345, "times": [1.5, 168], "ratio": 35.2}
    assert str(verbatim("{x} as it is")) == "{x} as it is"
    assert message_values([verbatim("text")]) == {}


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_missing_translation_is_english(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "verdict.most_important"
    with use_language(language):
        assert "Most important" not in translate(key, title="x")
    without = gettext.GNUTranslations(io.BytesIO(compile_catalog(catalog_of(language))))
    without.add_fallback(i18n._catalogue("en"))
    monkeypatch.setattr(i18n, "_catalogue", lambda language: without)
    with use_language(language):
        assert re.sub(f"[{ISOLATES}{POP}]", "", translate(key, title="x")) == "Most important: x."


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
        text = translate("verdict.most_important", title=value)
    assert value in text
    assert "Most" not in text
    if language in RIGHT_TO_LEFT:
        assert any(f"{mark}{value}{POP}" in text for mark in ISOLATES)
        assert sum(map(text.count, ISOLATES)) == text.count(POP)
    else:
        assert not any(mark in text for mark in ISOLATES + POP)


def test_isolates_are_balanced_in_every_sentence() -> None:
    with use_language("ar"):
        for key, sentence in sentences("en").items():
            text = str(i18n.Message(key, dict.fromkeys(names(sentence), "1")))
            depth = 0
            for character in text:
                depth += (character in ISOLATES) - (character == POP)
                assert depth >= 0, key
            assert depth == 0, key


def test_code_in_backticks_reads_from_left_to_right() -> None:
    with use_language("ar"):
        text = translate("hangup.advice", pid=7, run_dir="runs/a b")
    first, second = (f"\N{FIRST STRONG ISOLATE}{value}{POP}" for value in (7, "runs/a b"))
    for code in (f"`kill {first}`", f"`glass show {second}`"):
        assert f"\N{LEFT-TO-RIGHT ISOLATE}{code}{POP}" in text


def test_a_value_and_its_noun_read_from_left_to_right() -> None:
    with use_language("ar"):
        text = translate("ladder.knows.ngrams", order=4)
    assert f"\N{LEFT-TO-RIGHT ISOLATE}\N{FIRST STRONG ISOLATE}4{POP}-grams{POP}" in text


def test_a_message_in_a_message_is_isolated_as_one() -> None:
    with use_language("ar"):
        inner = say("verdict.most_important", title="12.5%")
        outer = translate("verdict.most_important", title=inner)
        assert any(f"{mark}{inner}{POP}" in outer for mark in ISOLATES)


# --- which language ---

VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")


def test_the_locale_chooses_the_language(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
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
    ]
    for environment, language in cases:
        with subtests.test(repr(environment)):
            for name in VARIABLES:
                monkeypatch.delenv(name, raising=False)
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            assert preferred_language() == language
