"""What a run will need and reach, computed from tables and formulas: FLOPs, memory, speed, loss. No torch."""
