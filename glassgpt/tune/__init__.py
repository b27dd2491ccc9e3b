"""Which settings make a run fastest on this machine: measured, not guessed.

search.py      what to try next, within the budget; knows no torch and no clock but the one it is given
workshop.py    the process that does the trials; one that fails is replaced
worker.py      that process: stage.py sets it up, trying.py does one trial
outcome.py     what was found: the choice, a verdict on each trial, why
"""
