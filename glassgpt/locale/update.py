"""Updates the message catalogues after a change of code or of a sentence, and lists what to translate.

    make words

English is a catalogue too: write a new sentence, or a better one, in en/LC_MESSAGES/glassgpt.po, under the
key that the code passes to `say` or `translate`. The other languages may follow later: a translation stores
a hash of the English sentence that it was made from. When that changes, the translation is marked `fuzzy`
and the program shows English, until a translator has mended it and removed the mark.

Messages that no code names are removed; the catalogues are compiled to the .mo files that the program reads.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

LOCALE_DIR = Path(__file__).resolve().parent
CATALOG_DATE = datetime(2026, 11, 15, tzinfo=UTC)
TRANSLATED = {"ar": "Arabic", "hi": "Hindi"}
HASH_COMMENT = "english: "
WITHOUT_CALL = ("verbatim",)  # used by i18n itself


def extract_keys() -> list[str]:
    """The first arguments of all calls of `say` and `translate`, in the page's scripts too, sorted."""
    messages = extract_from_dir(
        str(LOCALE_DIR.parent),
        [("**.py", "python"), ("**.js", "javascript")],
        {"**.js": {"parse_template_string": True}},
        keywords={"say": None, "translate": None},
        comment_tags=(),
    )
    return sorted({str(message) for _, _, message, *_ in messages} | set(WITHOUT_CALL))


def read_sentences(catalog: Catalog) -> dict[str, str]:
    return {str(message.id): str(message.string or "") for message in catalog if message.id}


def hash_english(sentence: str) -> str:
    return hashlib.sha256(sentence.encode()).hexdigest()[:8]


def update_english(keys: Iterable[str], old: Catalog) -> Catalog:
    catalog = _empty_catalog("en", "# GlassGPT in English: the sentences of all messages, by key.")
    sentences = read_sentences(old)
    for key in keys:
        catalog.add(key, sentences.get(key, ""))
    return catalog


def update_translation(language: str, english: dict[str, str], old: Catalog) -> Catalog:
    header = f"# GlassGPT in {TRANSLATED[language]}; `make words` keeps the keys up to date."
    catalog = _empty_catalog(language, header)
    for key, sentence in english.items():
        message, current = old.get(key), HASH_COMMENT + hash_english(sentence)
        if message is None or not message.string:
            catalog.add(key, "")
            continue
        is_stale = message.fuzzy or (bool(message.auto_comments) and current not in message.auto_comments)
        flags = ("fuzzy",) if is_stale else ()
        catalog.add(key, str(message.string), flags=flags, auto_comments=[current])
    return catalog


def _empty_catalog(language: str, header: str) -> Catalog:
    return Catalog(
        language,
        project="glassgpt",
        version="1",
        header_comment=header,
        msgid_bugs_address="none",
        last_translator="GlassGPT",
        language_team="GlassGPT",
        creation_date=CATALOG_DATE,  # fixed: today's date would change the file at every update
        revision_date=CATALOG_DATE,
        fuzzy=False,
    )


def compile_catalog(catalog: Catalog) -> bytes:
    """Without empty and fuzzy messages."""
    compiled = io.BytesIO()
    write_mo(compiled, catalog)
    return compiled.getvalue()


def _update_files(language: str, update: Catalog) -> None:
    folder = LOCALE_DIR / language / "LC_MESSAGES"
    text = io.BytesIO()
    write_po(text, update, width=110)
    (folder / "glassgpt.po").write_bytes(text.getvalue())
    (folder / "glassgpt.mo").write_bytes(compile_catalog(update))


def read_catalog(language: str) -> Catalog:
    with (LOCALE_DIR / language / "LC_MESSAGES" / "glassgpt.po").open("rb") as file:
        return read_po(file, language)


def main() -> int:
    english = update_english(extract_keys(), read_catalog("en"))
    _update_files("en", english)
    unwritten = [key for key, sentence in read_sentences(english).items() if not sentence]
    print(f"English: {len(english)} messages, {len(unwritten)} without a sentence")
    for key in unwritten:
        print(f"  {key}")
    for language, name in TRANSLATED.items():
        catalog = update_translation(language, read_sentences(english), read_catalog(language))
        _update_files(language, catalog)
        messages = [message for message in catalog if message.id]
        missing = [str(message.id) for message in messages if not message.string]
        stale = [str(message.id) for message in messages if message.string and message.fuzzy]
        print(f"{name}: {len(missing)} without a translation, {len(stale)} stale")
        for key, problem in [*((key, "missing") for key in missing), *((key, "stale") for key in stale)]:
            print(f"  {key} ({problem})")
    return 1 if unwritten else 0


if __name__ == "__main__":
    sys.exit(main())
