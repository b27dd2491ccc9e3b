"""`python -m glassgpt` is `glass`."""

from glassgpt.cli import run

run()
