"""What the record says about the machine, how old the process is, how much memory it has."""

from __future__ import annotations

import json
import mmap
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from glassgpt.record import machine
from glassgpt.record.machine import (
    CpuTimes,
    cores_used_by_others,
    cpu_model,
    process_age_s,
    read_cpu_times,
    source_commit,
    start_since_boot_s,
    unified_memory_bytes,
    usable_memory,
)
from glassgpt.training.probe import describe_machine, memory_now
from glassgpt.version import VERSION

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_the_description_is_json_and_names_the_versions() -> None:
    import numpy
    import torch

    described = json.loads(json.dumps(describe_machine("cpu")))
    assert described["glassgpt"] == VERSION
    assert described["torch"] == torch.__version__
    assert described["numpy"] == numpy.__version__
    assert described["python"] == platform.python_version()
    assert described["cpu"]["model"]
    assert 0 < described["cpu"]["usable_cores"] <= described["cpu"]["logical_cores"]
    assert described["cpu"]["torch_threads"] == torch.get_num_threads()
    assert 0 < described["memory"]["available"] <= described["memory"]["total"]
    assert described["device"] == {"type": "cpu", "name": described["cpu"]["model"]}


def test_the_description_keeps_host_and_paths_to_itself() -> None:
    text = json.dumps(describe_machine("cpu"))
    assert str(Path(__file__).parents[2]) not in text
    if len(platform.node()) > 4:  # a host called "vm" is part of many words
        assert platform.node() not in text


@pytest.mark.gpu
def test_a_gpu_is_described_and_its_memory_counted() -> None:
    import torch

    device = json.loads(json.dumps(describe_machine("cuda")))["device"]
    assert device["name"] == torch.cuda.get_device_name()
    assert device["driver"]
    assert device["capability"].count(".") == 1
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.ones(1 << 20, device="cuda")
    memory = memory_now("cuda")
    assert memory["allocated_peak"] >= allocated.nbytes
    assert memory["reserved"] >= memory["allocated_peak"]


def test_reading_this_module_does_not_import_torch() -> None:
    code = "import sys, glassgpt.record.machine as m; m.resident_bytes(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- CPU


def test_the_cpu_model_is_the_first_named_one() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core\nflags\t: fpu\n") == (
        "AMD EPYC 9654 96-Core"
    )
    assert cpu_model("") != ""  # ARM Linux names no model


@linux_only
def test_usable_memory_is_no_more_than_the_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    for limit, usable in ((None, (total, False)), (2**20, (2**20, True)), (2**55, (total, False))):
        monkeypatch.setattr(machine, "memory_limit_bytes", lambda own, root, limit=limit: limit)
        assert usable_memory() == usable


def test_apples_memory_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine, "command_output", lambda *command: "25769803776" if command[0] == "sysctl" else ""
    )
    assert unified_memory_bytes() == 24 * 2**30
    monkeypatch.setattr(machine, "command_output", lambda *command: None)
    assert unified_memory_bytes() == psutil.virtual_memory().total


# --- the source


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", *who, "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    assert source_commit(tmp_path) is None
    git(tmp_path, "init")
    assert source_commit(tmp_path) is None  # nothing committed yet
    installed = tmp_path / "site-packages/file"
    installed.parent.mkdir()
    installed.write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert source_commit(tmp_path) == commit
    assert source_commit(tmp_path / "site-packages") is None  # installed inside someone else's repository
    installed.write_text("2")
    assert source_commit(tmp_path) == commit + "-dirty"


# --- the process


def test_start_time_survives_a_strange_process_name() -> None:
    fields = " ".join(str(number) for number in range(4, 53))  # field 22 is starttime
    assert start_since_boot_s(f"17 (a) b (c)) S {fields}", 100) == 0.22


def test_the_age_of_this_process_grows_with_the_clock() -> None:
    before, started = process_age_s(), time.perf_counter()
    time.sleep(0.05)
    grown, passed = process_age_s() - before, time.perf_counter() - started
    assert before > 0
    assert grown == pytest.approx(passed, abs=0.02)


@linux_only
@pytest.mark.parametrize("pause_s", [0.0, 0.33])
def test_the_age_of_a_new_process_is_right_to_a_tick(pause_s: float) -> None:
    code = (
        "import time; from glassgpt.record.machine import process_age_s; "
        f"time.sleep({pause_s}); print(process_age_s(), time.monotonic())"
    )
    before = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    after = time.monotonic()  # Popen returns once the child is created and has started the interpreter
    age, measured_at = map(float, child.communicate()[0].split())
    assert measured_at - after - 0.005 <= age <= measured_at - before + 0.015


def test_memory_now_is_the_process_in_bytes() -> None:
    before = memory_now("cpu")["rss"]
    assert before > 5_000_000
    with mmap.mmap(-1, 50_000_000) as fresh:  # malloc may hand out pages that are resident already
        fresh.write(b"x" * len(fresh))
        assert memory_now("cpu")["rss"] - before > 0.9 * len(fresh)
    assert set(memory_now("cpu")) == {"rss"}


def test_memory_now_is_cheap_enough_for_every_log_line() -> None:
    memory_now("cpu")
    times = []
    for _ in range(200):
        start = time.perf_counter()
        memory_now("cpu")
        times.append(time.perf_counter() - start)
    assert min(times) < 50e-6


def test_a_command_may_print_anything() -> None:
    output = machine.command_output(sys.executable, "-c", "import os; os.write(1, bytes([255, 254, 65]))")
    assert output is not None
    assert output.endswith("A")


def test_cores_of_others_are_what_this_process_did_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CpuTimes(wall_s=100.0, busy_s=50.0, own_s=7.0)
    assert cores_used_by_others(before, CpuTimes(102.0, 54.0, 9.0)) == pytest.approx(1.0)
    assert cores_used_by_others(before, CpuTimes(102.0, 51.9, 9.0)) == 0.0  # both are rounded
    spent = read_cpu_times()
    assert cores_used_by_others(spent, spent) == 0.0
    # A quota of 4 cores on a host of 64, of which 30 or 62 are busy.
    monkeypatch.setattr("glassgpt.record.machine.usable_cores", lambda: 4.0)
    assert cores_used_by_others(before, CpuTimes(102.0, 110.0, 7.0, cores=64)) == 0.0
    assert cores_used_by_others(before, CpuTimes(102.0, 174.0, 7.0, cores=64)) == pytest.approx(2.0)
    assert spent.busy_s > spent.own_s > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's count of a peak can start anew")
def test_the_peak_of_what_was_freed_is_forgotten() -> None:
    program = (
        "from glassgpt.record.machine import peak_resident_bytes, release_freed_memory\n"
        "blocks = [bytes(1000) for _ in range(300_000)]; kept = blocks[::1000]; del blocks\n"
        "before = peak_resident_bytes(); release_freed_memory(); print(before - peak_resident_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 200 * 2**20
