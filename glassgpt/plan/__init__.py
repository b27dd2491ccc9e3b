"""What a run will need and bring, known before it starts. Nothing here imports torch."""
