"""Several processes training one model: the process group, its watchdog, sharded weights (FSDP2)."""
