"""The sweep that tune's choice is held against: bench/tune.py."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tune_machines import GIB, FakeMachine, cpu_machine, gpu_machine, saturating_speed

from bench import tune as bench
from glassgpt.tune.speed_settings import SpeedSettings
from glassgpt.tune.trial_runner import TrialRunner


class ScriptedTrialRunner(TrialRunner):
    """A runner that measures a fake machine."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine

    def measure(self, setting: SpeedSettings, limit_s: float):  # type: ignore[no-untyped-def]  # noqa: ANN201
        return self.machine.measure(setting, limit_s)


def test_the_grid_has_every_combination() -> None:
    context = gpu_machine()
    assert [one.micro_batch for one in bench.grid_settings(context, ["micro_batch"], (4, 8, 7, 32))] == [
        4,
        8,
        32,
    ]
    assert (
        len(bench.grid_settings(context, ["micro_batch", "attention", "kernels", "graph"], ()))
        == 24 * 3 * 2 * 2
    )
    compiled = [
        one for one in bench.grid_settings(context, ["kernels", "graph", "compile"], ()) if one.compile
    ]
    assert [(one.kernels, one.graph) for one in compiled] == [(False, False)]
    threads = bench.grid_settings(cpu_machine(), ["threads", "attention", "graph"], ())
    assert {(one.threads, one.attention, one.graph) for one in threads} == {
        (threads, how, False) for threads in (None, 1) for how in ("sdpa", "manual")
    }


def test_a_setting_without_headroom_is_not_the_best() -> None:
    context = gpu_machine(free_bytes=50 * GIB)
    machine = FakeMachine(context, saturating_speed(), peak=lambda setting: setting.micro_batch * GIB)
    found = bench.measure_grid(
        ScriptedTrialRunner(machine),
        context,
        bench.grid_settings(context, ["micro_batch"], (4, 32, 60)),
        1000,
    )
    assert [point.tokens_per_s > 0 for point in found] == [True, True, False]


def test_choice_and_best_are_remeasured_in_alternation() -> None:
    context = gpu_machine()
    machine = FakeMachine(context, saturating_speed(half=4.0))
    one, other = context.automatic_setting_at(4), context.automatic_setting_at(12)
    speeds = bench.measure_in_turns(ScriptedTrialRunner(machine), context, [one, other, one], 2)
    assert speeds[one] / speeds[other] == pytest.approx(0.5 / 0.75)
    assert machine.measured_settings == [one, other, other, one]


def test_table_and_document() -> None:
    context = gpu_machine()
    machine = FakeMachine(
        context, lambda setting: 614_400.0, ends=lambda one: "crashed" if one.micro_batch == 8 else "ran"
    )
    found = bench.measure_grid(
        ScriptedTrialRunner(machine), context, bench.grid_settings(context, ["micro_batch"], (4, 8)), 1000
    )
    lines = bench.grid_table(context, found).splitlines()
    assert lines[2] == "| micro-batch 4 | 614k | 800.0 ms | 53.1% | 1.0 GiB |"
    assert lines[3] == "| micro-batch 8 | crashed | | | |"
    document = json.loads(
        json.dumps(bench.grid_document(context, None, found, {found[0].setting: 614_400.0}, 0.99))
    )
    assert (document["ratio"], document["settings"]) == (0.99, 2)
    assert document["points"][0]["tokens_per_s"] == pytest.approx(614_400)
    assert document["best"] == dataclasses.asdict(found[0].setting)
