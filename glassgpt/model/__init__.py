"""The model: one GPT, what its weights are called elsewhere, and how it writes text."""
