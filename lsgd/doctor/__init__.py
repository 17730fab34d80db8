"""Is this machine fit to train, and if not, what to type: `python -m lsgd.doctor`.

No module of this package but `probe` imports torch or another library that may be missing or
broken, and `probe` runs in processes of its own, which may crash or hang.
"""
