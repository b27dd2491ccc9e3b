"""`glass plan`: memory, time and loss of a run, estimated before it starts. Nothing here imports torch."""
