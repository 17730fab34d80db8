"""Is this machine fit to train, and if not, what to type: `python -m lsgd.doctor`.

Nothing in here imports torch or another library that may be missing or broken: what does is asked
in a process of its own (`probe`), which may crash or hang.
"""
