"""Checkpoints on the disk. What they hold of a run, and how a run restores it: ../save_and_restore.py.

Save, in this order:
    saver.py         copies the tensors, then writes in a thread: temporary folder, commit, verify, prune
    tensor_file.py   the tensors of one file: packed, hashed and flushed while training continues
    checkpoints.py   state.json: `encode_state`

Load:
    checkpoints.py   lists a run's checkpoints, reads state.json, loads the tensors of the newest intact one
    nanogpt_ckpt.py  the same for nanoGPT's ckpt.pt, without executing anything
"""
