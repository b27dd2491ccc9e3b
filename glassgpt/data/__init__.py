"""Text in, batches out, and never torch.

A `Source` finds the text, a `Tokenizer` turns it into ids, `prepare` writes both down as a dataset folder
(`train.bin`, `val.bin`, `manifest.json`), `open_dataset` maps that folder back into memory, and `batches`
says which tokens each update sees: `glass prepare pylib`, then read the modules in that order. Folders that
nanoGPT made are opened as they are (`nanogpt`), and nothing in them is executed (`plain_pickle`).
"""
