"""Who may read the page: only a browser of this machine's user, who has the token of the printed address.

The server listens on 127.0.0.1, but any web page in the same browser can send requests there, and a name of
an attacker's can be made to point there (DNS rebinding). So every request must name this machine as its
Host, must not come from another origin, and must have the token: in the first address, then as a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from html import escape
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassgpt.show.page.html import LIVE_POLICY

# `ssh -L` changes the port, so any port will do.
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE | re.ASCII)
_HEADERS = {
    "Content-Security-Policy": LIVE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NEEDS_TOKEN = (
    "403: this page needs its token; open the address that glass printed, with ?token=… at its end, "
    "or run `glass page` for another"
)


def cookie_name(token: str) -> str:
    """Cookies of 127.0.0.1 are shared by all its ports: each server has a name of its own."""
    return f"glass_{hashlib.sha256(token.encode()).hexdigest()[:16]}"


class Access:
    """Wraps the application: refuses what may not pass, and adds its headers to every response."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie_name(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """A refusal, or the cookie for a token; None: the application answers."""
        refusal = _foreign_refusal(request)
        if refusal:
            return PlainTextResponse(f"{refusal}\n", 403)
        given = request.query_params.get("token")
        has_cookie = self._is_token(request.cookies.get(self._cookie))
        if request.method == "POST":  # by the page itself, which has its cookie
            if not has_cookie:
                return PlainTextResponse(f"{_NEEDS_TOKEN}\n", 403)
            if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return PlainTextResponse("415: the body must be application/json\n", 415)
            return None
        if given is None:
            return None if has_cookie else PlainTextResponse(f"{_NEEDS_TOKEN}\n", 403)
        if not self._is_token(given):
            return PlainTextResponse(f"{_NEEDS_TOKEN}\n", 403)
        if request.url.path != "/":
            return None  # a script that reads one document
        others = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        # Without the token, which should not stay in the address bar. After a link on another site, browsers
        # do not send a strict cookie to where they are redirected; to where a page of ours leads, they do.
        target = f"/?{urlencode(others)}" if others else "/"
        response: Response = RedirectResponse(target, 303)
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            refresh = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(target)}">'
            response = Response(refresh, media_type="text/html")
        response.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return response

    def _is_token(self, text: str | None) -> bool:
        return text is not None and hmac.compare_digest(text.encode(), self._token.encode())


def _foreign_refusal(request: Request) -> str:
    """Why a request may come from another site; empty if it cannot."""
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return "403: the Host of a request must be 127.0.0.1, localhost or [::1]"
    origins = request.headers.getlist("origin")
    # The browser's own address of this page, also behind `ssh -L`, is the Host that it sends.
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
        return "403: requests from another origin are refused"
    site = request.headers.get("sec-fetch-site", "none")
    is_visit = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
    if site not in ("same-origin", "none") and not (is_visit and request.url.path == "/"):
        return "403: requests from another site are refused"
    if request.method == "POST" and not origins and site != "same-origin":
        return "403: a request that changes something must name its Origin"
    return ""
