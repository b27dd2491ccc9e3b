"""Training: the loop, and what it needs. Start with loop.py; `glassgpt.train` (api.py) is the way in."""
