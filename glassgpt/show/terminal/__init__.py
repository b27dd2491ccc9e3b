"""What the terminal shows: one view for each command."""
