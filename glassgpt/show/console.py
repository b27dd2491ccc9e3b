"""The old import path of `RunConsole`, kept for one release."""

import warnings

from glassgpt.show.terminal.run_console import RunConsole

__all__ = ["RunConsole"]

_ADVICE = "glassgpt.show.console has moved: use glassgpt.show.terminal.run_console"
warnings.warn(_ADVICE, DeprecationWarning, stacklevel=2)
