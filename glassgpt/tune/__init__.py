"""Which settings make a run fastest on this machine: measured, not guessed.

search.py          what to try next within the budget; no torch, and no clock but the one it is given
trial_runner.py    keeps a process that runs the trials, and replaces it when it fails
trial_server.py    that process: trial_run.py runs one trial, probe_updates.py the probe of `glass plan`
ranking.py         the result: the choice, a verdict on each trial, why
"""
