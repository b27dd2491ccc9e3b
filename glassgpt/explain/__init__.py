"""What a run's log means: findings with evidence and advice, from rules over a run that was read."""
