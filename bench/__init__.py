"""Side-by-side benchmarks: GlassGPT and its peers in one command, on the same data and machine."""
