"""Nobody reads the page, or asks a run to stop, but a browser with the token of the printed address."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from commands import finished_run, write_run
from page_servers import HOST, POST_HEADERS, TOKEN, client_of, make_server, real_page
from starlette.testclient import TestClient

from glassgpt.show.page.access import cookie_name

REQUIRED_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    write_run(tmp_path / "runs/mine", finished_run())
    (tmp_path / "secret.txt").write_text("a secret")
    return client_of(make_server(tmp_path / "runs"))


def run_id(client: TestClient) -> str:
    return str(client.get("/api/runs").json()["runs"][0]["id"])


def test_the_first_visit_trades_the_token_for_a_cookie(client: TestClient) -> None:
    visitor = TestClient(client.app, base_url=f"http://{HOST}", follow_redirects=False)
    response = visitor.get(f"/?token={TOKEN}&x=1")
    assert (response.status_code, response.headers["location"]) == (303, "/?x=1")
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"{cookie_name(TOKEN)}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Domain" not in cookie
    assert visitor.get("/").status_code == 200  # by the cookie
    assert TOKEN not in cookie_name(TOKEN)


def test_a_link_on_another_site_leads_to_the_page_too(client: TestClient) -> None:
    """A strict cookie is not sent along a redirect there, but from a page of ours."""
    visitor = TestClient(client.app, base_url=f"http://{HOST}", follow_redirects=False)
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    response = visitor.get(f"/?token={TOKEN}&x=%22%3E%3Cscript%3E", headers=visit)
    assert response.status_code == 200
    assert 'content="0; url=/?x=%22%3E%3Cscript%3E"' in response.text
    assert "set-cookie" in response.headers


def test_without_the_token_nothing(client: TestClient) -> None:
    place = f"/api/runs/{run_id(client)}"
    paths = [
        "/",
        "/page.js",
        "/api/runs",
        "/api/nothing",
        f"{place}/view",
        f"{place}/events",
        f"{place}/series.csv",
    ]
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
        visitor = client_of_token(client, token)
        for path in paths:
            for response in (visitor.get(path), visitor.get(f"{path}?token={token or 'x'}")):
                assert response.status_code == 403, (token, path)
                assert len(response.text.splitlines()) == 1
                assert "token" in response.text
                assert TOKEN not in response.text
        response = visitor.post(
            f"{place}/requests?token={TOKEN}", json={"action": "stop"}, headers=POST_HEADERS
        )
        assert response.status_code == 403, "a POST needs the cookie"


def client_of_token(client: TestClient, token: str | None) -> TestClient:
    visitor = TestClient(client.app, base_url=f"http://{HOST}", follow_redirects=False)
    if token is not None:
        visitor.headers["cookie"] = f"{cookie_name(TOKEN)}={token}"
    return visitor


def test_a_script_may_read_with_the_token(client: TestClient) -> None:
    script = TestClient(client.app, base_url=f"http://{HOST}")
    assert script.get(f"/api/runs?token={TOKEN}").status_code == 200


def test_another_host_is_refused(client: TestClient) -> None:
    for host in ("evil.example", "evil.example:8421", "127.0.0.1.evil.example", "localhost.evil.example", "",
                 "127.0.0.1@evil.example", "127.0.0.1:8421:80", "127.0.0.1:", "[::2]:8421", "127.0.0.1\t",
                 "0.0.0.0:8421", "localhost:x"):  # fmt: skip
        response = client.get("/api/runs", headers={"Host": host})
        assert response.status_code == 403, host
        assert response.text == "403: the Host of a request must be 127.0.0.1, localhost or [::1]\n"


def test_this_machine_is_a_host_with_any_port(client: TestClient) -> None:
    for host in ("127.0.0.1", "127.0.0.1:9", "localhost:65000", "LOCALHOST", "[::1]:8421"):
        assert client.get("/api/runs", headers={"Host": host}).status_code == 200, host


def test_another_origin_is_refused(client: TestClient) -> None:
    for origin in ("http://evil.example", "null", f"https://{HOST}", "http://127.0.0.1:1", "http://localhost:8421",
                   f"http://{HOST}.evil.example", ""):  # fmt: skip
        response = client.get("/api/runs", headers={"Origin": origin})
        assert response.status_code == 403, origin
    assert client.get("/api/runs", headers={"Origin": f"http://{HOST}"}).status_code == 200
    tunnelled = {"Origin": "http://localhost:9999", "Host": "localhost:9999"}
    assert client.get("/api/runs", headers=tunnelled).status_code == 200
    for site, status in {"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200}.items():
        assert client.get("/api/runs", headers={"Sec-Fetch-Site": site}).status_code == status, site


def test_a_post_names_its_origin_and_is_json(client: TestClient) -> None:
    place = f"/api/runs/{run_id(client)}/requests"
    body = b'{"action": "stop"}'
    json_type = {"Content-Type": "application/json"}

    def post(headers: dict[str, str]) -> int:
        return client.post(place, content=body, headers=headers).status_code

    assert post(json_type) == 403  # neither Origin nor Sec-Fetch-Site
    assert post(json_type | {"Origin": "http://evil.example"}) == 403
    assert post(json_type | {"Sec-Fetch-Site": "none"}) == 403
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
        "application/jsonp",
    ):
        assert post(POST_HEADERS | {"Content-Type": kind}) == 415, kind
    assert post(json_type | POST_HEADERS) == 409  # it gets through: the run is not running
    assert post(json_type | {"Sec-Fetch-Site": "same-origin"}) == 409
    assert post({"Content-Type": "application/json; charset=utf-8"} | POST_HEADERS) == 409


def test_other_methods_are_refused(client: TestClient) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        for path in ("/", "/api/runs", f"/api/runs/{run_id(client)}/requests"):
            assert client.request(method, path).status_code == 405, (method, path)
    assert client.post("/api/runs", json={}, headers=POST_HEADERS).status_code == 405
    assert client.get(f"/api/runs/{run_id(client)}/requests").status_code == 405
    assert client.head("/api/runs").status_code == 200


def test_no_path_of_an_address_is_a_file(client: TestClient) -> None:
    for path in (
        "/../../etc/passwd", "/api/runs/../../etc/passwd", "/api/runs/%2e%2e/view", "/server.py", "/html.py",
        "/api/runs/..%2f..%2fetc/view", "/api/runs/%2e%2e%2f%2e%2e%2fsecret.txt/view", "/api/runs/mine/view",
        "/api/runs/%00/view", "/api/runs//view", "/api/runs/a%00b/rows",
        "/api/runs/%2Fetc%2Fpasswd/series.csv",
        "/..%2fserver.py", "/%2e%2e/server.py", "/api/runs/%ff%fe/view",
        "/api/runs/" + "a" * 20_000 + "/view",
        "/api/runs/0123456789abcdef/view", "/api", "/api/", "/favicon.ico", "/page.js%00", "//etc/passwd",
    ):  # fmt: skip
        response = client.get(path)
        assert response.status_code == 404, path
        assert not re.search("a secret|root:", response.text), path
        assert REQUIRED_HEADERS.items() <= dict(response.headers).items(), path


def test_every_response_has_the_headers(client: TestClient) -> None:
    place = f"/api/runs/{run_id(client)}"
    reads = ("view", "report.html", "series.csv", "rows?first=x")
    paths = ["/", "/style.css", "/api/runs", "/api/compare", *(f"{place}/{name}" for name in reads)]
    responses = [client.get(path) for path in paths]
    responses += [
        client_of_token(client, None).get("/"),
        client.get("/", headers={"Host": "x"}),
        client.put("/"),
    ]
    responses += [client.post(f"{place}/requests", content=b"{", headers=POST_HEADERS)]
    assert {response.status_code for response in responses} == {200, 400, 403, 405, 415}
    for response in responses:
        assert REQUIRED_HEADERS.items() <= dict(response.headers).items(), response.url
        assert "access-control-allow-origin" not in response.headers
        assert "server" not in response.headers


def test_a_large_body_is_refused(client: TestClient) -> None:
    place = f"/api/runs/{run_id(client)}"
    headers = POST_HEADERS | {"Content-Type": "application/json"}
    for name in ("requests", "samples"):
        response = client.post(f"{place}/{name}", content=b" " * (1 << 20), headers=headers)
        assert response.status_code == 413
        for body in (b"", b"[]", b"null", b"{", b"[" * 60_000, b"\xff"):
            assert client.post(f"{place}/{name}", content=body, headers=headers).status_code == 400, body[:9]


def test_two_hosts_are_refused(tmp_path: Path) -> None:
    """As no client library sends them. Also: raw paths arrive as they were sent."""
    with real_page(tmp_path, cwd=tmp_path) as page:
        address = (page.base_url.host, page.base_url.port)
        cookie = "; ".join(f"{name}={value}" for name, value in page.cookies.items())

        def status(request: str) -> int:
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall(request.encode())
                return int(connection.recv(100).split()[1])

        head = f"Host: 127.0.0.1\r\nCookie: {cookie}\r\nConnection: close\r\n"
        assert status(f"GET /api/runs HTTP/1.1\r\n{head}\r\n") == 200
        assert status(f"GET /api/runs HTTP/1.1\r\nHost: evil.example\r\n{head}\r\n") in (400, 403)
        assert status(f"GET /api/runs HTTP/1.0\r\nCookie: {cookie}\r\n\r\n") == 403  # no Host
        for path in ("/../../etc/passwd", "/api/runs/../../../etc/passwd", "/./server.py"):
            assert status(f"GET {path} HTTP/1.1\r\n{head}\r\n") == 404
        assert status(f"GET /{'a' * 200_000} HTTP/1.1\r\n{head}\r\n") in (400, 431)
        assert status("GET http://evil.example/api/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n") in (
            400,
            403,
            404,
        )
