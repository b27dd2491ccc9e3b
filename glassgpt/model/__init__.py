"""The model: one GPT, its loss and kernels, generation, and the names its weights have elsewhere."""
