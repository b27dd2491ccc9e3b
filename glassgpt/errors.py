"""The one exception for mistakes a user can fix; and anybody's exception in one line.

It carries every problem found, each a sentence that names the flag and the fix. The command line prints
them one per line and exits with code 2; nothing has been written by then. Bugs raise anything else.
"""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """One or more problems the user can fix."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def first_line(error: Exception) -> str:
    """Its kind, and how its message begins."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__
