"""What the page's server answers, and what it costs to be read."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import finished_run, step_record, write_run
from page_servers import POST_HEADERS, client_of, make_server, real_page
from starlette.testclient import TestClient

from glassgpt.record import journal
from glassgpt.record.run_dir import LockedRunDir
from glassgpt.runs.reading import read_run_log
from glassgpt.show.page import opened_runs


def ids(client: TestClient | httpx.Client) -> dict[str, str]:
    return {row["name"]: row["id"] for row in client.get("/api/runs").json()["runs"]}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs/a", finished_run())
    write_run(tmp_path / "runs/b", finished_run()[:-4])
    return tmp_path / "runs"


def test_the_page_and_its_scripts(runs: Path) -> None:
    client = client_of(make_server(runs))
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name, kind in {
        "page.js": "text/javascript",
        "charts.js": "text/javascript",
        "style.css": "text/css",
    }.items():
        assert name in page.text
        response = client.get(f"/{name}")
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert len(response.text) > 1000


def test_the_view_of_a_run(runs: Path) -> None:
    client = client_of(make_server(runs / "a"))
    listing = client.get("/api/runs").json()
    assert listing["selected"] == ids(client)["a"]
    assert set(ids(client)) == {"a", "b"}, "the others of its folder are listed"
    document = client.get(f"/api/runs/{listing['selected']}/view").json()
    assert set(document) == {"view", "rows", "cursor"}
    assert document["view"]["name"] == "a"
    assert document["rows"]["loss"] == [[at, 4.0 - at / 50] for at in range(10, 101, 10)]
    assert document["view"]["can_request"] is False


def test_the_selected_run_is_read_before_anybody_asks(runs: Path) -> None:
    def opened(source: Path) -> int:
        server = make_server(source)
        with ThreadPoolExecutor(1) as other_thread:  # in ours, playwright may have a loop that runs
            other_thread.submit(asyncio.run, server.read_ahead()).result(timeout=60)
        return len(server.runs)

    assert (opened(runs / "a"), opened(runs)) == (1, 0)
    (runs / "a" / journal.FILE_NAME).write_text("no journal")
    assert opened(runs / "a") == 1  # who asks for it is told what is wrong


def test_a_zoom(runs: Path) -> None:
    client = client_of(make_server(runs))
    place = f"/api/runs/{ids(client)['a']}/rows"
    rows = client.get(f"{place}?first=35&last=55&points=100").json()["rows"]
    assert [row[0] for row in rows["loss"]] == [30, 40, 50, 60]  # one more on each side
    few = client.get(f"{place}?points=4").json()["rows"]["loss"]
    assert len(few) <= 4
    assert min(row[2] if len(row) > 2 else row[1] for row in few) == 2.0
    for query in ("first=x", "first=nan", "last=inf", "points=1e400", "first="):
        assert client.get(f"{place}?{query}").status_code == 400, query
    assert client.get(f"{place}?points=-5&first=1e300&last=-1e300").status_code == 200


def test_every_row_as_csv(runs: Path) -> None:
    client = client_of(make_server(runs))
    response = client.get(f"/api/runs/{ids(client)['a']}/series.csv")
    assert response.headers["content-disposition"] == 'attachment; filename="a.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [int(row["iteration"]) for row in rows] == list(range(0, 101, 10))
    assert [float(row["loss"]) for row in rows[1:]] == [4.0 - at / 50 for at in range(10, 101, 10)]
    assert {row["iteration"]: float(row["val_loss"]) for row in rows if row["val_loss"]} == {
        "0": 4.2, "50": 3.0, "100": 2.1
    }  # fmt: skip
    assert rows[0]["loss"] == ""  # evaluated, not logged
    assert rows[1]["val_loss"] == ""


def test_csv_of_any_log_has_all_its_lines() -> None:
    client = client_of(make_server("demo:gpu"))
    response = client.get(f"/api/runs/{ids(client)['demo:gpu']}/series.csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    steps = read_run_log("demo:gpu").steps
    assert [float(row["loss"]) for row in rows if row["loss"]] == steps.loss.tolist()
    assert [float(row["step_ms"]) for row in rows if row["step_ms"]] == steps.ms.tolist()


def test_csv_of_a_chart_has_its_series(runs: Path) -> None:
    client = client_of(make_server(runs))
    place = f"/api/runs/{ids(client)['a']}/series.csv"
    losses = client.get(f"{place}?series=loss&series=val&series=train_eval")
    assert losses.headers["content-disposition"] == 'attachment; filename="a-loss.csv"'
    rows = list(csv.DictReader(io.StringIO(losses.text)))
    assert list(rows[0]) == ["iteration", "process", "loss", "train_eval_loss", "val_loss", "val_stderr"]
    whole = list(csv.DictReader(io.StringIO(client.get(place).text)))
    assert rows == [{name: row[name] for name in rows[0]} for row in whole]
    evaluated = list(csv.DictReader(io.StringIO(client.get(f"{place}?series=val").text)))
    assert [row["iteration"] for row in evaluated] == ["0", "50", "100"]  # no line without a value
    times = client.get(f"{place}?series=step_ms&series=step_ms_eval").text.splitlines()
    assert times[0] == "iteration,process,step_ms"
    assert client.get(f"{place}?series=../../etc").text == "iteration,process\n"


def test_the_offline_file(runs: Path) -> None:
    client = client_of(make_server(runs))
    response = client.get(f"/api/runs/{ids(client)['a']}/report.html")
    assert response.headers["content-disposition"] == 'attachment; filename="a.html"'
    assert response.text.startswith("<!DOCTYPE html>")
    assert len(response.content) < 1 << 20


def test_a_comparison(runs: Path) -> None:
    client = client_of(make_server("demo:cpu", "demo:gpu"))
    names = ids(client)
    chosen = [names["demo:gpu"], names["demo:cpu"]]
    found = client.get("/api/compare", params={"run": chosen}).json()
    differences = {one["name"]: one["values"] for one in found["differences"]}
    assert differences["n_layer"] == [6, 4]
    assert any("faster" in sentence for sentence in found["sentences"])
    assert any(sentence.startswith("Hardware is not the cause") for sentence in found["causes"])
    assert client.get("/api/compare", params={"run": chosen[:1] * 2}).status_code == 400
    assert client.get("/api/compare", params={"run": [chosen[0], "x"]}).status_code == 404
    assert client.get("/api/compare", params={"run": [str(at) for at in range(9)]}).status_code == 400


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    for name, content in {
        "empty.log": b"",
        "binary.log": b"\x00\x01\x02" * 1000,
        "prose.log": b"hello\n",
    }.items():
        (tmp_path / name).write_bytes(content)
    client = client_of(make_server(tmp_path))
    found = ids(client)
    assert set(found) == {"empty.log", "binary.log", "prose.log"}
    for name, id in found.items():
        response = client.get(f"/api/runs/{id}/view")
        assert response.status_code in (202, 422), name
        assert set(response.json()) in ({"error"}, {"reading"}), name
        assert "Traceback" not in response.text
    (tmp_path / "prose.log").unlink()
    assert client.get(f"/api/runs/{found['prose.log']}/view").status_code in (202, 404, 422)


# --- requests and samples ---


def test_a_run_is_asked_to_stop(runs: Path) -> None:
    client = client_of(make_server(runs, "demo:gpu"))
    names = ids(client)
    place = f"/api/runs/{names['a']}/requests"
    response = client.post(place, json={"action": "stop"}, headers=POST_HEADERS)
    assert response.status_code == 409
    assert not (runs / "a/requests").exists()
    lock = LockedRunDir(runs / "a")
    try:
        for action in ("stop", "save"):
            assert client.post(place, json={"action": action}, headers=POST_HEADERS).status_code == 202
        for body in ({}, {"action": "delete"}, {"action": ["stop"]}, {"action": None}):
            assert client.post(place, json=body, headers=POST_HEADERS).status_code == 400, body
    finally:
        lock.close()
    asked = sorted(
        (json.loads(path.read_text()) for path in (runs / "a/requests").iterdir()),
        key=lambda one: one["time"],
    )
    assert [(one["action"], one["by"]) for one in asked] == [("stop", "page"), ("save", "page")]
    foreign = client.post(
        f"/api/runs/{names['demo:gpu']}/requests", json={"action": "stop"}, headers=POST_HEADERS
    )
    assert (foreign.status_code, "GlassGPT" in foreign.json()["error"]) == (409, True)


def test_a_sample_is_streamed(runs: Path) -> None:
    server = make_server(runs, "demo:gpu")
    asked: list[Any] = []

    class Sampler:
        def stream(self, run_dir: Path, request: Any) -> Any:
            asked.append((run_dir, request.prompt, request.checkpoint))
            yield {"next": [{"token": " a", "p": 0.5}]}
            yield {"text": " a\u2028<b>"}
            yield {"done": True}

        def close(self) -> None:
            pass

    server.sampler = Sampler()  # type: ignore[assignment]
    client = client_of(server)
    names = ids(client)
    body = {"prompt": "Once", "checkpoint": 50}
    response = client.post(f"/api/runs/{names['a']}/samples", json=body, headers=POST_HEADERS)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.split("\n") if line]
    assert lines == [{"next": [{"token": " a", "p": 0.5}]}, {"text": " a\u2028<b>"}, {"done": True}]
    assert asked == [(runs / "a", "Once", 50)]
    bad = client.post(f"/api/runs/{names['a']}/samples", json={"temperature": -1}, headers=POST_HEADERS)
    assert bad.status_code == 422
    foreign = client.post(f"/api/runs/{names['demo:gpu']}/samples", json=body, headers=POST_HEADERS)
    assert foreign.status_code == 409


# --- a run that grows ---


def append(run_dir: Path, records: list[journal.Record]) -> None:
    with (run_dir / journal.FILE_NAME).open("ab") as file:
        file.write(b"".join(map(journal.encode_line, records)))


def read_events(lines: Any) -> Any:
    """(name, data, id) of each event."""
    event: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            event[name] = value
        elif "event" in event:
            yield event["event"], json.loads(event["data"]), event.get("id", "")
            event = {}


def test_a_live_run_is_followed(tmp_path: Path) -> None:
    """Rows arrive without a new request; a connection that was lost goes on where it stopped."""
    run_dir = write_run(tmp_path / "run", finished_run()[:6])
    lock = LockedRunDir(run_dir)
    try:
        with real_page(run_dir, cwd=tmp_path) as client:
            place = f"/api/runs/{ids(client)['run']}"
            document = client.get(f"{place}/view").json()
            assert document["view"]["can_request"] is True
            assert document["rows"]["loss"][-1] == [30, 3.4]
            cursor = document["cursor"]
            with client.stream("GET", f"{place}/events", params={"cursor": cursor}) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                events = read_events(stream.iter_lines())
                append(run_dir, [step_record(40, 3.2)])
                _, data, cursor = next(
                    one for one in events if one[0] == "append" and one[1]["series"] == "loss"
                )
                assert data["rows"] == [[40, 3.2]]
            append(run_dir, [step_record(50, 3.0)])
            with client.stream("GET", f"{place}/events", headers={"Last-Event-ID": cursor}) as stream:
                events = read_events(stream.iter_lines())
                _, data, _ = next(one for one in events if one[0] == "append" and one[1]["series"] == "loss")
                assert data["rows"] == [[50, 3.0]]
                lock.close()
                assert next(one for one in events if one[0] == "end")
    finally:
        lock.close()


def test_a_log_that_is_gone_is_said_and_followed_when_it_is_back(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = "".join(f"iter {at}: loss {4 - at / 100:.4f}, time 100.00ms\n" for at in range(0, 100, 10))
    log.write_text(lines)
    with real_page(log, cwd=tmp_path) as client:
        place = f"/api/runs/{ids(client)['train.log']}"
        cursor = client.get(f"{place}/view").json()["cursor"]
        with client.stream("GET", f"{place}/events", params={"cursor": cursor}) as stream:
            summaries = (
                data for kind, data, _ in read_events(stream.iter_lines()) if kind == "summary"
            )  # fmt: skip
            log.rename(tmp_path / "moved")
            gone = next(data for data in summaries if "sentence" in data)
            assert gone["sentence"] == f"{log} cannot be read: No such file or directory."
            assert gone["live"] is False
            (tmp_path / "moved").rename(log)
            back = next(data for data in summaries if "sentence" in data)
            assert back["sentence"].startswith("Training: iteration 90")
            assert back["live"] is True


def test_a_log_without_a_line_of_a_run_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("compiling the model... (takes a ~minute)\n")
    client = client_of(make_server(log))
    place = f"/api/runs/{ids(client)['train.log']}/view"
    response = client.get(place)
    assert (response.status_code, response.json()) == (202, {"reading": 1.0})


def test_a_reader_that_does_not_read_costs_nothing(tmp_path: Path) -> None:
    """Its connection stays open and full; others are answered, and the server's memory stays."""
    run_dir = write_run(tmp_path / "run", finished_run()[:6])
    lock = LockedRunDir(run_dir)
    try:
        with real_page(run_dir, cwd=tmp_path) as client:
            place = f"/api/runs/{ids(client)['run']}"
            client.get(f"{place}/view")
            with client.stream("GET", f"{place}/events"):  # never read
                append(run_dir, [step_record(at, 3.0) for at in range(40, 20_000)])
                deadline = time.monotonic() + 60
                while client.get(f"{place}/view").json()["rows"]["loss"][-1][0] < 19_000:
                    assert time.monotonic() < deadline
                start = time.perf_counter()
                assert client.get("/api/runs").status_code == 200
                assert time.perf_counter() - start < 5
    finally:
        lock.close()


def test_a_slow_reading_does_not_block_the_others(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has its own thread: while one is read for long, the list and other runs answer."""
    may_read, is_reading = threading.Event(), threading.Event()
    look = opened_runs.LiveRun.look

    def slow_look(run: opened_runs.LiveRun) -> None:
        if run.followed.source.endswith("b"):
            is_reading.set()
            assert may_read.wait(60)
        look(run)

    monkeypatch.setattr(opened_runs.LiveRun, "look", slow_look)
    with client_of(make_server(runs)) as client:
        found = ids(client)
        slow: list[int] = []
        thread = threading.Thread(
            target=lambda: slow.append(client.get(f"/api/runs/{found['b']}/view").status_code)
        )
        thread.start()
        assert is_reading.wait(60)
        assert client.get(f"/api/runs/{found['a']}/view").status_code == 200
        assert slow == []
        may_read.set()
        thread.join(60)
        assert slow == [200]


def test_runs_that_nobody_looks_at_are_closed(tmp_path: Path) -> None:
    for number in range(6):
        write_run(tmp_path / f"runs/{number}", finished_run())
    server = make_server(tmp_path / "runs")
    with client_of(server) as client:
        for id in ids(client).values():
            client.get(f"/api/runs/{id}/view")
        assert len(server.runs) == 4
        server.runs.close_idle(now=time.monotonic() + 100)
        assert len(server.runs) == 0


def test_too_many_tabs_are_refused(runs: Path) -> None:
    server = make_server(runs)
    client = client_of(server)
    id = ids(client)["a"]
    server.runs.open(server.folder.find(id)).readers = 32  # type: ignore[arg-type]
    response = client.get(f"/api/runs/{id}/events")
    assert (response.status_code, "close one" in response.json()["error"]) == (503, True)


def test_a_bug_is_an_answer(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.show.page.run_folder.RunFolder.listing", lambda folder: 1 / 0)
    response = client_of(make_server(runs)).get("/api/runs")
    assert (response.status_code, response.json()) == (
        500,
        {"error": "a bug of the page: ZeroDivisionError: division by zero"},
    )


def test_the_server_needs_no_torch_and_other_commands_no_server(tmp_path: Path) -> None:
    """Importing torch takes seconds, and not everybody has the extra."""
    code = "import sys, glassgpt.show.page.server; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"
    code = (
        "import sys; from glassgpt.cli import main\n"
        "lines = '--help', 'runs', 'explain demo:gpu', 'page --help', 'train --help'\n"
        "for line in lines: main(line.split())\n"
        "assert not {'starlette', 'uvicorn'} & set(sys.modules), 'imported'"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, env={**os.environ}
    )
