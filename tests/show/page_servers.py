"""A page server in the test's process, a client of it, and a real one on a port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from starlette.testclient import TestClient

from glassgpt.show.page.access import cookie_name
from glassgpt.show.page.run_folder import RunFolder
from glassgpt.show.page.server import PageServer

TOKEN = "a-token-of-this-test"
HOST = "127.0.0.1:8421"


def make_server(*sources: Path | str) -> PageServer:
    return PageServer(RunFolder([str(source) for source in sources]), TOKEN)


def client_of(server: PageServer, token: str | None = TOKEN) -> TestClient:
    """`token`: of its cookie; None: without one."""
    client = TestClient(
        server.app, base_url=f"http://{HOST}", follow_redirects=False, raise_server_exceptions=False
    )
    if token is not None:
        client.cookies.set(cookie_name(TOKEN), token)
    return client


POST_HEADERS = {"Origin": f"http://{HOST}"}


@contextmanager
def real_page(*words: str | Path, cwd: Path, seconds: str = "20s") -> Iterator[httpx.Client]:
    """`glass page`, and a client that has visited its URL. It ends by itself soon after the client."""
    command = [sys.executable, "-m", "glassgpt", "page", *map(str, words), "--open=no", f"--idle={seconds}"]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
        with httpx.Client(base_url=url.partition("?")[0], timeout=30) as client:
            assert client.get(url).status_code == 303
            yield client
    finally:
        process.kill()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()
