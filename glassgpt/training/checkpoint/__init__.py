"""Checkpoints: their files, writing them in the background, reading them back, nanoGPT's ckpt.pt."""
