"""Trackers: a run's metrics in csv, TensorBoard, trackio and Weights & Biases.

    glass train --track=csv,tensorboard
    glass track runs/quickstart --to=wandb

Each adapter reads the journal's records and nothing else. Each runs in a separate thread (record/sink.py), so
none of them can stop or slow down a run. docs/track.md lists the names of all metrics.
"""
