"""The version, in a separate module so that reading it imports nothing else."""

VERSION = "0.1.0"
