"""What a run will need and yield, estimated before it starts: `glass plan`. Nothing here imports torch."""
