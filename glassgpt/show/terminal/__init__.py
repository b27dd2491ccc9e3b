"""Terminal output: one view for each command."""
