"""What the model has learned: its document, and the panel in a real browser, offline and live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from page_servers import POST_HEADERS, client_of, make_server
from report_pages import glassgpt_run
from test_page_browser import (  # noqa: F401  fixtures
    CHROMIUM,
    PlayedServer,
    browser,
    open_live,
    open_offline,
    report_of,
    screens,
)
from test_page_server import runs  # noqa: F401  a fixture

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.checkpoint_looks import CheckpointLook
from glassgpt.runs.run_log import LoggedEvaluation, RunLog
from glassgpt.show.page.learned import learned_view
from glassgpt.show.page.view import make_view

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)")

PASSAGE = ["T", "o", " ", "be", ",", "\n", "<b>"]
RUNGS = [
    {"order": order, "loss": loss, "bits_per_byte": loss / 0.69}
    for order, loss in enumerate((4.17, 3.3, 2.5, 1.2))
]


def parts(losses: list[float]) -> dict[str, Any]:
    return {
        "by_kind": {"space": [10, losses[0]], "word_inside": [30, losses[1]]},
        "by_position": [[1, 1, 20, 3.0], [2, 3, 20, 2.0]],
        "passage_losses": losses,
    }


LOOK = CheckpointLook(
    2000, "aa", 7, (1.0,) * 7, ((("T", 0.75), ("\n", 0.125), (" ", 0.0625)),) * 7, ((0.5, 0.1),), 0.1,
    ((0.3, 0.02),), 0.02, 4.0, 1.0, known_words=0.5, val_known_words=0.98,
)  # fmt: skip


def learned_run() -> RunLog:
    run_log = glassgpt_run()
    evals = [
        LoggedEvaluation(0, 0, 4.1, stderr=0.01, parts=parts([4.0] * 7)),
        LoggedEvaluation(2000, 1, 2.2, stderr=0.01, parts=parts([0.1, 1.0, 0.2, 4.0, 6.0, 2.0, 2.0])),
    ]
    data = {**run_log.setup.data, "ladder": RUNGS, "passage": {"start": 7, "tokens": PASSAGE}}
    setup = replace(run_log.setup, data=data)
    return replace(run_log, evals=tuple(evals), setup=setup, looks=(LOOK,))


def test_the_document_has_the_ladder_each_evaluation_and_the_looks() -> None:
    view = learned_view(Analysis(learned_run()))
    assert [rung["at"] for rung in view["ladder"]["rungs"]] == [0, 2000, 2000, None]
    assert view["passage"] == PASSAGE
    assert [one["at"] for one in view["evaluations"]] == [0, 2000]
    assert [part["rows"][0][1:] for part in view["evaluations"][1]["parts"]] == [[10, 0.1], [20, 3.0]]
    assert [look["at"] for look in view["looks"]] == [2000]
    # A look at another passage is not shown beside this one.
    other = replace(learned_run(), looks=(replace(LOOK, passage_start=99),))
    assert learned_view(Analysis(other))["looks"] == []


def test_a_log_without_any_of_it_has_no_panel() -> None:
    assert learned_view(Analysis(replace(glassgpt_run(), evals=()))) == {}


def test_many_evaluations_are_thinned_and_the_last_stays() -> None:
    evals = tuple(LoggedEvaluation(at, 0, 2.0, parts=parts([1.0] * 7)) for at in range(0, 50_000, 100))
    shown = [one["at"] for one in learned_view(Analysis(replace(learned_run(), evals=evals)))["evaluations"]]
    assert (len(shown), shown[0], shown[-1]) == (60, 0, 49_900)


@needs_chromium
def test_the_report_shows_the_passage_and_what_the_model_expected(screens: Any, tmp_path: Path) -> None:  # noqa: F811
    screen = open_offline(screens(), tmp_path, report_of(learned_run()))
    page = screen.page
    levels = "() => [...document.querySelectorAll('.tokens span')].map(one => one.dataset.level).join('')"
    assert screen.ask(levels) == "0103422"
    assert page.inner_text(".tokens").replace("\n", "") == "To be,⏎<b>"
    page.hover(".tokens span:nth-child(4)")
    detail = page.inner_text(".detail")
    assert "4.00 nats, p 1.8%" in detail
    assert "75%" in detail
    # Another evaluation, then the difference to it.
    page.select_option(".against select", "0")
    assert screen.ask(levels) == "0002400"
    assert "-3.900" in page.inner_text(".parts")
    page.select_option(".against select", "")
    page.locator(".passage input[type=range]").fill("0")
    assert screen.ask(levels) == "3333333"
    assert "it expected" not in page.inner_text(".detail")
    assert page.locator(".ladder tr").count() == 5
    assert page.locator(".ladder .passed").count() == 3
    # A file has no process to ask.
    page.locator(".passage input[type=range]").fill("1")
    assert page.locator(".grid-of-heads button:disabled").count() == 4


@needs_chromium
def test_a_head_is_asked_for_its_attention(screens: Any) -> None:  # noqa: F811
    screen = screens()
    live = PlayedServer(screen)
    run_log = replace(learned_run(), live=True)
    document = make_view(Analysis(run_log), (), "run-a")
    looks = document["learned"]["looks"]
    live.documents["a"]["view"] |= {"learned": {**document["learned"], "looks": []}}
    answers: list[dict[str, Any]] = [
        {"learned": {**document["learned"], "looks": looks}},
        {"rows": [[1000], [250, 750], [0, 0, 1000], [100, 200, 300, 400], *([100] * n for n in (5, 6, 7))]},
    ]
    known = live.json_of
    live.json_of = lambda path: answers.pop(0) if path.endswith("/looks") else known(path)  # type: ignore[method-assign]
    open_live(live)
    page = screen.page
    assert page.locator(".grid-of-heads").count() == 0
    page.get_by_role("button", name="Look inside").click()
    page.wait_for_selector(".grid-of-heads button")
    page.locator(".grid-of-heads button").first.click()
    page.wait_for_selector("canvas.attention:not([hidden])")
    page.hover(".tokens span:nth-child(4)")
    # For the fourth token the model looked at the three before it; the first weight is of the one before all.
    weights = screen.ask(
        "() => [...document.querySelectorAll('.tokens span')]"
        ".map(one => one.style.getPropertyValue('--attention'))"
    )
    assert weights == ["0.2", "0.3", "0.4", "", "", "", ""]
    assert [body for _, body in live.posted] == [
        {"checkpoint": 2000},
        {"checkpoint": 2000, "layer": 0, "head": 0},
    ]


def test_the_server_looks_and_answers_with_the_panels_document(runs: Path) -> None:  # noqa: F811
    server = make_server(runs, "demo:gpu")
    asked: list[Any] = []

    class Sampler:
        def look(self, run_dir: Path, request: Any) -> dict[str, Any]:
            asked.append((run_dir, request.checkpoint, request.layer, request.head))
            return {"rows": [[1000]]} if request.layer is not None else {"done": True}

        def close(self) -> None:
            pass

    server.sampler = Sampler()  # type: ignore[assignment]
    client = client_of(server)
    names = {run["name"]: run["id"] for run in client.get("/api/runs").json()["runs"]}
    place = f"/api/runs/{names['a']}/looks"
    assert "learned" in client.post(place, json={"checkpoint": 50}, headers=POST_HEADERS).json()
    body = {"checkpoint": 50, "layer": 1, "head": 2}
    assert client.post(place, json=body, headers=POST_HEADERS).json() == {"rows": [[1000]]}
    assert asked == [(runs / "a", 50, None, None), (runs / "a", 50, 1, 2)]
    for bad in (
        {},
        {"checkpoint": "50"},
        {"checkpoint": 5, "layer": 1},
        {"checkpoint": True},
        {"checkpoint": -1},
    ):
        assert client.post(place, json=bad, headers=POST_HEADERS).status_code == 422, bad
    foreign = client.post(
        f"/api/runs/{names['demo:gpu']}/looks", json={"checkpoint": 5}, headers=POST_HEADERS
    )
    assert foreign.status_code == 409
