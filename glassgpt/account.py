"""The old address of the journal, kept for one release."""

import warnings

from glassgpt.record import journal

__all__ = ["journal"]

_ADVICE = "glassgpt.account.journal has moved: use glassgpt.read_journal"
warnings.warn(_ADVICE, DeprecationWarning, stacklevel=2)
