"""The state of each card, from nvidia-smi: clock, temperature, power, throttle reasons, utilisation.

    states, complaint = read_card_states(run_command)

The fields differ between drivers, and the value of any of them may be "[N/A]".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glassgpt.doctor.isolate import CommandOutput

RunCommand = Callable[..., CommandOutput | None]

# The first name is that of newer drivers, the second that of older ones; the oldest have neither.
_THROTTLE_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", "")
_QUERY_FIELDS = (
    "uuid", "name", "temperature.gpu", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit",
    "power.default_limit", "utilization.gpu",
)  # fmt: skip

_STATE_FIELDS = ("temperature", "clock", "clock_max", "power", "power_limit", "power_default", "busy")

# Bits of `reasons`, as NVML defines them.
APPLICATION_CLOCKS, SW_POWER_CAP, HW_SLOWDOWN, HW_POWER_BRAKE = 0x2, 0x4, 0x8, 0x80
THERMAL_SLOWDOWN = 0x20 | 0x40  # by software, by hardware


@dataclass(frozen=True)
class CardState:
    """None: this card or driver does not report it."""

    uuid: str  # matches it with torch's device; never shown, because it identifies the machine
    name: str
    reasons: int | None = None  # bits: why the clock is below its maximum
    temperature: float | None = None  # degrees Celsius
    clock: float | None = None  # MHz
    clock_max: float | None = None
    power: float | None = None  # watts
    power_limit: float | None = None
    power_default: float | None = None
    busy: float | None = None  # percent of the time

    def is_throttled_by(self, bits: int) -> bool:
        return bool((self.reasons or 0) & bits)


def read_card_states(run: RunCommand) -> tuple[list[CardState], str]:
    """The cards, and nvidia-smi's error message. Both empty: there is no nvidia-smi, or it timed out."""
    complaint = ""
    for reasons in _THROTTLE_REASON_FIELDS:
        fields = [*_QUERY_FIELDS, reasons] if reasons else list(_QUERY_FIELDS)
        output = run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        if output is None:
            return [], ""
        if output.exit_code == 0:
            return parse_card_states(output.text), ""
        complaint = (output.text.splitlines() or [f"exit code {output.exit_code}"])[0]
        if "not a valid field" not in output.text:
            break
    return [], complaint


def parse_card_states(text: str) -> list[CardState]:
    """One card per line of as many values as were queried; other lines are warnings."""
    cards = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) not in (len(_QUERY_FIELDS), len(_QUERY_FIELDS) + 1):
            continue
        uuid, name, *numbers = values[: len(_QUERY_FIELDS)]
        reasons = values[len(_QUERY_FIELDS)] if len(values) > len(_QUERY_FIELDS) else ""
        values_by_field = {name: _number(value) for name, value in zip(_STATE_FIELDS, numbers, strict=True)}
        cards.append(CardState(uuid.removeprefix("GPU-"), name, reasons=_bits(reasons), **values_by_field))
    return cards


def _number(value: str) -> float | None:
    """None for [N/A], [Not Supported], [Unknown Error], ERR! and anything else that is not a number."""
    try:
        return float(value)
    except ValueError:
        return None


def _bits(value: str) -> int | None:
    try:
        return int(value, 16)
    except ValueError:
        return None
