"""Text to tokens to shards to batches, without torch.

    glass prepare pylib

sources, corpus, hub       find the text: a known name, files, Hugging Face
tokenizers, bpe            text to ids and back
split                      which documents are for validation
prepare, prepare_bulk      write a dataset folder: train.bin, val.bin, manifest.json
dataset, shards            open that folder as memory-mapped token ids
batches                    which tokens each update sees

Folders that nanoGPT made are opened as they are (nanogpt_bin), and nothing in them is executed (safe_pickle).
"""
