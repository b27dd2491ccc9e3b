"""Numbers as trainers print them: 0.8176, 1e-05, 4,883, nan, -inf, 10.65M."""

from __future__ import annotations

# A number that is followed by dots ("loss...") or cut short by nothing is left to the patterns around it.
NUMBER = (
    r"([-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|nan\b|inf(?:inity)?\b))"
)

_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "m": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def parse_number(text: str) -> float:
    return float(text.replace(",", "") if "," in text else text)


def parse_count(text: str) -> int:
    """10.65M, 124,475,904, 1.1B. Raises ValueError where it is none."""
    text = text.strip()
    unit = _UNITS.get(text[-1:], 1.0)
    value = parse_number(text[:-1].strip() if unit != 1.0 else text) * unit
    if not 0 <= value < 1e18:
        raise ValueError(text)
    return round(value)
