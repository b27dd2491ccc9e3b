"""The honest numbers: where the time went, how many FLOPs that was, on which machine, and the record."""
