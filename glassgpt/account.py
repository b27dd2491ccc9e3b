"""The old name of the journal module, importable for one more release."""

import warnings

from glassgpt.record import journal

__all__ = ["journal"]

_DEPRECATION = "glassgpt.account.journal has moved: use glassgpt.read_journal"
warnings.warn(_DEPRECATION, DeprecationWarning, stacklevel=2)
