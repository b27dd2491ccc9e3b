"""What nvidia-smi tells about a card: clock, temperature, power, what slows it down, who uses it.

    states, complaint = read_card_states(run_command)

Its fields differ between drivers, and a card may answer "[N/A]" to any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glassgpt.doctor.isolate import CommandOutput

RunCommand = Callable[..., CommandOutput | None]

# Newer drivers call them events, older ones know only the second name, and the oldest neither.
_THROTTLE_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", "")
_QUERY_FIELDS = (
    "uuid", "name", "temperature.gpu", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit",
    "power.default_limit", "utilization.gpu",
)  # fmt: skip

_STATE_FIELDS = ("temperature", "clock", "clock_max", "power", "power_limit", "power_default", "busy")

# NVML's bits.
_APPLICATION_CLOCKS_BIT, _SW_POWER_CAP_BIT = 0x2, 0x4
_HW_SLOWDOWN_BIT, _SW_THERMAL_BIT, _HW_THERMAL_BIT, _HW_POWER_BRAKE_BIT = 0x8, 0x20, 0x40, 0x80


@dataclass(frozen=True)
class CardState:
    """None: this card or driver does not tell."""

    uuid: str  # to know it by; identifies the card, so it is never shown
    name: str
    reasons: int | None = None  # for a clock below the highest, as bits
    temperature: float | None = None  # degrees Celsius
    clock: float | None = None  # MHz
    clock_max: float | None = None
    power: float | None = None  # watts
    power_limit: float | None = None
    power_default: float | None = None
    busy: float | None = None  # percent of the time

    def has_throttle_bits(self, bits: int) -> bool:
        return bool((self.reasons or 0) & bits)

    @property
    def is_too_hot(self) -> bool:
        return self.has_throttle_bits(_SW_THERMAL_BIT | _HW_THERMAL_BIT)

    @property
    def is_power_braked(self) -> bool:
        return self.has_throttle_bits(_HW_POWER_BRAKE_BIT)

    @property
    def is_slowed_by_hardware(self) -> bool:
        return self.has_throttle_bits(_HW_SLOWDOWN_BIT)

    @property
    def is_at_power_limit(self) -> bool:
        return self.has_throttle_bits(_SW_POWER_CAP_BIT)

    @property
    def has_fixed_clocks(self) -> bool:
        return self.has_throttle_bits(_APPLICATION_CLOCKS_BIT)


def read_card_states(run: RunCommand) -> tuple[list[CardState], str]:
    """The cards, and what nvidia-smi complained about. Neither: there is no nvidia-smi, or no answer."""
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
    """Lines of as many values as were asked for; other lines are warnings."""
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
    """None for [N/A], [Not Supported], [Unknown Error], ERR! and whatever else is no number."""
    try:
        return float(value)
    except ValueError:
        return None


def _bits(value: str) -> int | None:
    try:
        return int(value, 16)
    except ValueError:
        return None
