"""Texts that do not say whose machine it is: error messages are full of paths."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_GENERIC_NAMES = {"root", "user", "runs", "home", "tmp", "localhost"}


def redact(text: str, home: str | None = None, user: str | None = None, host: str | None = None) -> str:
    """With `~` for the home folder, and USER and HOST where a path or an address has their names."""
    home = str(Path.home()) if home is None else home
    user = Path(home).name if user is None else user
    host = platform.node() if host is None else host
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w-])", "~", text)
    for name in {user, os.environ.get("USER", ""), os.environ.get("USERNAME", "")} - {""} - _GENERIC_NAMES:
        # As a part of a path, or behind an underscore as in /tmp/torchinductor_NAME; never a word of a text.
        text = re.sub(rf"(?<=[/\\_]){re.escape(name)}(?=[/\\'\":\s]|$)", "USER", text)
    if host and host.lower() not in _GENERIC_NAMES:
        text = re.sub(rf"(?<=[@/]){re.escape(host)}(?![\w-])", "HOST", text)
    return text
