"""Any log or journal read into one form: settings, steps, evaluations, saves, how it ended. No torch."""
