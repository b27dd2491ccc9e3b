"""The names that moved to `cards` and `peak`, for those who still ask for them here."""

from __future__ import annotations

from glassgpt.account.cards import Card as Card
from glassgpt.account.cards import find_card as find_card
from glassgpt.account.cards import has_tensor_cores as has_tensor_cores
from glassgpt.account.cards import named_card as named_card
from glassgpt.account.peak import Peak as Peak
from glassgpt.account.peak import find_peak as find_peak
