"""Models and runs handed over: to other programs (`glass export`), and from them (`glass import`)."""
