"""A finding in the journal: its values, its English text, and the same in another language."""

from __future__ import annotations

import json

import pytest

from glassgpt.i18n import say, use_language, verbatim
from glassgpt.record.finding import finding_record, read_finding
from glassgpt.record.journal import Record


def straggler() -> Record:
    return finding_record(
        40,
        "straggler",
        "advice",
        title=say("straggler.title", rank=3),
        evidence=say("straggler.evidence", waiting_share=0.25),
        explanation=verbatim("as it is"),
        advice=say("straggler.advice", rank=3),
    )


def test_a_record_has_values_and_english_text_in_any_language() -> None:
    with use_language("hi"):
        record = straggler()
    assert record == straggler()
    assert (record["iter"], record["at"], record["values"]) == (40, 40, {"rank": 3, "waiting_share": 0.25})
    assert "25%" in record["evidence"]
    assert record["messages"]["title"] == ["straggler.title"]


def test_it_is_read_in_the_language_of_the_reader() -> None:
    record = json.loads(json.dumps(straggler()))
    finding = read_finding(record)
    assert (finding.title, finding.explanation) == (record["title"], "as it is")
    with use_language("hi"):
        assert finding.title != record["title"]
        assert finding.explanation == "as it is"


@pytest.mark.parametrize(
    "change",
    [
        {"values": {}},
        {"values": {"rank": 4, "waiting_share": 0.25}},
        {"values": {"rank": 3, "waiting_share": 10**400}},
        {"values": {"rank": 3, "waiting_share": [[]]}},
        {"values": 5},
        {"messages": {"title": ["of.another.version"], "evidence": [5], "advice": "straggler.advice"}},
        {"messages": None},
    ],
    ids=str,
)
def test_the_stored_text_is_kept_where_the_messages_do_not_give_it(change: Record) -> None:
    record = straggler()
    finding = read_finding(record | change)
    for part in ("title", "evidence", "explanation", "advice"):
        assert getattr(finding, part) == record[part]
