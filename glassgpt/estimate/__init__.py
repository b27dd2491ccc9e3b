"""What a run will need and bring, computed from tables and formulas: FLOPs, memory, speed, loss. No torch."""
