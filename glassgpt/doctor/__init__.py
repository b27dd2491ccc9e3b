"""One page about this machine: what it has, how fast it is, whether training here does what it should."""
