"""Updates the translation catalogues from the `say(...)` calls in the package.

    make words

New sentences are added without a translation and printed, unused ones are removed, and the catalogues are
compiled to the .mo files that the program reads. A test fails while a translation is missing.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

LOCALE_DIR = Path(__file__).resolve().parent
CATALOG_DATE = datetime(2026, 11, 15, tzinfo=UTC)
LANGUAGES = {"ar": "Arabic", "hi": "Hindi"}


def extract_messages() -> list[str]:
    """The first arguments of all `say` calls, in the order of the files."""
    messages = extract_from_dir(str(LOCALE_DIR.parent), keywords={"say": None}, comment_tags=())
    return list(dict.fromkeys(str(message) for _, _, message, *_ in messages))


def update_catalog(language: str, sentences: list[str], old: Catalog) -> Catalog:
    header = f"# GlassGPT in {LANGUAGES[language]}; `make words` keeps the keys up to date."
    catalog = Catalog(
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
    for sentence in sentences:
        message = old.get(sentence)
        catalog.add(sentence, str(message.string) if message and message.string else "")
    return catalog


def main() -> None:
    sentences = extract_messages()
    for language in LANGUAGES:
        folder = LOCALE_DIR / language / "LC_MESSAGES"
        with (folder / "glassgpt.po").open("rb") as file:
            catalog = update_catalog(language, sentences, read_po(file, language))
        text, compiled = io.BytesIO(), io.BytesIO()
        write_po(text, catalog, width=100)
        write_mo(compiled, catalog)
        (folder / "glassgpt.po").write_bytes(text.getvalue())
        (folder / "glassgpt.mo").write_bytes(compiled.getvalue())
        missing = [message.id for message in catalog if message.id and not message.string]
        print(f"{LANGUAGES[language]}: {len(sentences)} sentences, {len(missing)} without a translation")
        for sentence in missing:
            print(f"  {sentence}")


if __name__ == "__main__":
    main()
