"""What `import glassgpt` offers: plain functions, cheap to import, and the old addresses for one release."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeConfig

import glassgpt
from glassgpt.record import journal


def test_train_is_a_plain_function_with_its_real_signature() -> None:
    assert inspect.isfunction(glassgpt.train)
    assert list(inspect.signature(glassgpt.train).parameters) == ["config", "name", "listeners", "changes"]
    assert pickle.loads(pickle.dumps(glassgpt.train)) is glassgpt.train  # noqa: S301 - our own function
    assert set(glassgpt.__all__) <= set(dir(glassgpt))
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = glassgpt.no_such_thing


def test_importing_it_imports_neither_torch_nor_typing() -> None:
    code = "import sys, glassgpt; print(sorted({'torch', 'typing', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": str(Path(glassgpt.__file__).parents[1])})  # fmt: skip
    assert done.stdout == "[]\n"


def test_a_journal_is_read_from_a_folder_or_a_file(tiny: MakeConfig) -> None:
    run = glassgpt.train(tiny(max_iters=4, eval_interval=2, log_interval=1))
    run = glassgpt.resume(run.out_dir, max_iters=6)
    records = glassgpt.read_journal(run.out_dir)
    assert records == glassgpt.read_journal(str(run.out_dir / journal.FILE_NAME))
    assert [record["iter"] for record in records if record["kind"] == "step"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("old", "name", "home"),
    [
        ("glassgpt.account", "journal", "glassgpt.record.journal"),
        ("glassgpt.show.console", "RunConsole", "glassgpt.show.terminal.run_console"),
    ],
)
def test_the_old_addresses_warn_and_work(old: str, name: str, home: str) -> None:
    code = f"from {old} import {name} as it; print(getattr(it, '__module__', it.__name__))"
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == home
    assert "DeprecationWarning" in done.stderr
