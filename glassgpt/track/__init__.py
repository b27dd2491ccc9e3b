"""Trackers: a run's numbers, told to the tools that people already use.

    glass train --track=csv,tensorboard

Each adapter reads the journal's records and nothing else. They run in threads of their own (record/sink.py),
so none of them can stop or slow a run. docs/track.md has the names of all metrics.
"""
