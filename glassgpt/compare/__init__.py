"""Runs side by side: what differs, which is faster, which is better, and why."""

from glassgpt.compare.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
