"""The server of the page: its routes, in a process of its own that only reads the runs.

    GET  /                                the page; page.js, charts.js, style.css
    GET  /api/runs                        the list
    GET  /api/runs/{id}/view              all about one run, and the cursor to go on from
    GET  /api/runs/{id}/events?cursor=C   what is new, as server-sent events
    GET  /api/runs/{id}/rows              another zoom
    GET  /api/runs/{id}/series.csv        every logged row; ?series=NAME: of a chart
    GET  /api/runs/{id}/report.html
    GET  /api/compare?run=A&run=B
    POST /api/runs/{id}/requests          ask the run to stop, or to save
    POST /api/runs/{id}/samples           generate text with a checkpoint

access.py decides who may ask. Files are found by the ids of run_folder.py, never by a path from the address.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, get_args

from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from glassgpt.compare.comparison import Comparison, compare
from glassgpt.errors import UserError, describe_os_error, error_type_and_message
from glassgpt.i18n import translate
from glassgpt.record import journal
from glassgpt.record.run_requests import Action, write_request
from glassgpt.runs.run_list import is_running
from glassgpt.runs.run_log import RunLog
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_line
from glassgpt.show.page.access import Access
from glassgpt.show.page.html import ASSETS, asset, live_html, offline_html
from glassgpt.show.page.opened_runs import TICK_S, LiveRun, OpenedRun, OpenedRuns, Reader, encode_event
from glassgpt.show.page.run_folder import RunEntry, RunFolder
from glassgpt.show.page.sampling import PageSampler, parse_look_request, parse_sample_request
from glassgpt.show.page.series import csv_lines, rows_of
from glassgpt.show.page.stream import PageEvent

MAX_BODY_BYTES = 1 << 16
MAX_READERS = 32  # event streams
MAX_COMPARED = 8
_MIN_POINTS, _MAX_POINTS = 2, 5000
_KEEP_ALIVE_S = 15.0


class PageServer:
    """The runs, what is open of them, and the answers. `app` is the ASGI application. `clock`: of
    `last_request_at`."""

    def __init__(
        self,
        folder: RunFolder,
        token: str,
        sampler: PageSampler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.runs, self.sampler = folder, OpenedRuns(), sampler or PageSampler()
        self._clock = clock
        self.last_request_at = clock()
        self.is_closing = asyncio.Event()
        run = "/api/runs/{id:str}"
        routes = [
            Route("/", self._page),
            Route("/{name:str}", self._asset),
            Route("/api/runs", self._list),
            Route(f"{run}/view", self._view),
            Route(f"{run}/rows", self._rows),
            Route(f"{run}/events", self._events),
            Route(f"{run}/series.csv", self._csv),
            Route(f"{run}/report.html", self._report),
            Route("/api/compare", self._compare),
            Route(f"{run}/requests", self._request, methods=["POST"]),
            Route(f"{run}/samples", self._sample, methods=["POST"]),
            Route(f"{run}/looks", self._look, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {
            HTTPException: _http_problem,
            UserError: _user_problem,
            OSError: _file_problem,
            Exception: _bug,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        self.app = Access(app, token)

    async def read_ahead(self) -> None:
        """What the page shows first, while the browser starts. Who asks for it gets its problems, too."""
        listing = await run_in_threadpool(self.folder.listing)
        if selected := self.folder.find(listing["selected"] or ""):
            with suppress(UserError, OSError):
                await self.runs.open(selected).ask(LiveRun.document)

    def close(self) -> None:
        self.is_closing.set()
        self.runs.close()
        self.sampler.close()

    # --- the page ---

    async def _page(self, request: Request) -> Response:
        self.last_request_at = self._clock()
        return Response(live_html(), media_type="text/html")

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            raise HTTPException(404)
        return Response(asset(name), headers={"Content-Type": ASSETS[name]})

    # --- reading ---

    async def _list(self, request: Request) -> Response:
        self.last_request_at = self._clock()
        return _json(await run_in_threadpool(self.folder.listing))

    async def _view(self, request: Request) -> Response:
        content = await self._open(request).ask(lambda run: (run.is_read, _encode(run.document())))
        return Response(content[1], 200 if content[0] else 202, media_type="application/json")

    async def _rows(self, request: Request) -> Response:
        first, last = _number(request, "first"), _number(request, "last")
        points = _number(request, "points")
        wanted = 1500 if points is None else int(min(max(points, _MIN_POINTS), _MAX_POINTS))
        run_log = await self._run_log(request)
        rows = await run_in_threadpool(rows_of, run_log, first, last, wanted)
        return _json({"rows": rows})

    async def _events(self, request: Request) -> Response:
        if self.runs.readers >= MAX_READERS:
            return _json({"error": translate("page_server.too_many_tabs", tabs=MAX_READERS)}, 503)
        run = self._open(request)
        cursor = request.headers.get("last-event-id") or request.query_params.get("cursor", "")
        return StreamingResponse(self._event_lines(run, cursor), media_type="text/event-stream")

    async def _event_lines(self, run: OpenedRun, cursor: str) -> AsyncIterator[bytes]:
        """Nothing is made before the reader has taken what came before: a slow one costs no memory."""
        reader = Reader(cursor)
        run.readers += 1
        sent_at, has_failed = 0.0, False
        try:
            while not self.is_closing.is_set():
                self.last_request_at = self._clock()
                run.used_at = now = time.monotonic()
                try:
                    content = b"" if has_failed else await run.ask(reader.tick)
                except (UserError, OSError) as error:  # removed, or not readable any more: the page stays
                    has_failed = True
                    content = encode_event(PageEvent("end", {"reason": _problem(error)}))
                if not content and now - sent_at >= _KEEP_ALIVE_S:
                    content = b": still here\n\n"
                if content:
                    yield content
                    sent_at = now
                await self._wait(TICK_S)
        finally:
            run.readers -= 1
            run.used_at = time.monotonic()

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.is_closing.wait(), seconds)
        except TimeoutError:
            return

    async def _csv(self, request: Request) -> Response:
        run_log = await self._run_log(request)
        series = request.query_params.getlist("series")
        headers = _attachment("-".join([self._entry(request).name, *series[:1]]), "csv")
        return StreamingResponse(csv_lines(run_log, series), media_type="text/csv", headers=headers)

    async def _report(self, request: Request) -> Response:
        def page(run: LiveRun) -> str | None:
            run.explain()
            return offline_html(run.document()) if run.is_read else None

        content = await self._open(request).ask(page)
        if content is None:
            raise HTTPException(404, translate("page_server.nothing_yet"))
        headers = _attachment(self._entry(request).name, "html")
        return Response(content, media_type="text/html", headers=headers)

    async def _compare(self, request: Request) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(ids) <= MAX_COMPARED:
            return _json({"error": translate("page_server.how_many_to_compare", runs=MAX_COMPARED)}, 400)
        run_logs = [await self._run_log(request, id) for id in ids]
        return _json(await run_in_threadpool(lambda: _comparison(compare(run_logs))))

    # --- asking ---

    async def _request(self, request: Request) -> Response:
        body = await _body(request)
        action: Action = body.get("action")  # type: ignore[assignment]  # checked here
        entry = self._entry(request)
        if action not in get_args(Action):
            return _json({"error": f"action must be one of {', '.join(get_args(Action))}"}, 400)
        if entry.run_dir is None:
            return _json({"error": translate("page_server.not_ours")}, 409)
        if not await run_in_threadpool(is_running, entry.run_dir):
            return _json({"error": translate("page_server.not_running")}, 409)
        identifier = await run_in_threadpool(write_request, entry.run_dir, action, "page")
        return _json({"id": identifier}, 202)

    async def _sample(self, request: Request) -> Response:
        body = await _body(request)
        run_dir = self._entry(request).run_dir
        if run_dir is None:
            return _json({"error": translate("page_server.no_checkpoint")}, 409)
        messages = self.sampler.stream(run_dir, parse_sample_request(body))

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for message in iterate_in_threadpool(messages):
                    self.last_request_at = self._clock()
                    yield _encode(message) + b"\n"
            finally:
                await run_in_threadpool(messages.close)  # the next sample need not wait for this one

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _look(self, request: Request) -> Response:
        """Looks into a checkpoint: the panel's document with what was seen, or the attention of one head."""
        wanted = parse_look_request(await _body(request))
        run_dir = self._entry(request).run_dir
        if run_dir is None:
            return _json({"error": translate("page_server.no_checkpoint")}, 409)
        answer = await run_in_threadpool(self.sampler.look, run_dir, wanted)
        if "error" in answer or wanted.layer is not None:
            return _json(answer)
        return _json(await self._open(request).ask(LiveRun.learned))

    # --- runs by their ids ---

    def _entry(self, request: Request, id: str | None = None) -> RunEntry:
        self.last_request_at = self._clock()
        entry = self.folder.find(request.path_params["id"] if id is None else id)
        if entry is None:
            raise HTTPException(404, translate("page_server.no_such_run"))
        return entry

    def _open(self, request: Request, id: str | None = None) -> OpenedRun:
        return self.runs.open(self._entry(request, id))

    async def _run_log(self, request: Request, id: str | None = None) -> RunLog:
        run_log = await self._open(request, id).ask(lambda run: run.followed.run_log if run.is_read else None)
        if run_log is None:
            raise HTTPException(404, translate("page_server.nothing_yet"))
        return run_log


def _comparison(comparison: Comparison) -> dict[str, Any]:
    """Its sentences call the runs A, B, …"""
    sentences: dict[bool, list[str]] = {True: [], False: []}
    for claim in comparison.verdict:
        text = " ".join((claim.sentence, *claim.details))
        sentences[claim.is_about_causes].append(sanitize_keeping_bidi(text))
    return {
        "sentences": sentences[False],
        "causes": sentences[True],
        "differences": [
            {"name": sanitize_line(one.name), "values": [_shown(value) for value in one.values]}
            for one in comparison.differences
        ],
    }


def _shown(value: object) -> object:
    return sanitize_line(value) if isinstance(value, str) else value


# --- requests ---


async def _body(request: Request) -> dict[str, Any]:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a request may have {MAX_BODY_BYTES:,} bytes")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return body


def _number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, f"{name} must be a number")
    return value


# --- answers ---


def _encode(value: Any) -> bytes:
    return journal.dumps(value).encode()


def _json(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


def _attachment(name: str, ending: str) -> dict[str, str]:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:80] or "run"
    return {"Content-Disposition": f'attachment; filename="{safe}.{ending}"'}


def _problem(error: Exception) -> str:
    if isinstance(error, UserError):
        return sanitize_line("; ".join(error.problems))
    return sanitize_line(describe_os_error(error) if isinstance(error, OSError) else str(error))


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _user_problem(request: Request, error: Exception) -> Response:
    return _json({"error": _problem(error)}, 422)


async def _file_problem(request: Request, error: Exception) -> Response:
    return _json({"error": _problem(error)}, 404)


async def _bug(request: Request, error: Exception) -> Response:
    return _json({"error": f"a bug of the page: {sanitize_line(error_type_and_message(error))}"}, 500)
