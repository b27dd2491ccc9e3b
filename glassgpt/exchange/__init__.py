"""Models for other programs (`glass export`), and runs from them (`glass import`)."""
