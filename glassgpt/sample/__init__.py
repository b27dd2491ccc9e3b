"""Writing text with a trained model: which one, from what, how."""
