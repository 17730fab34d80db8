"""The check of this machine's setup, with a fix for each problem: `python -m lsgd.doctor`.

No module of this package but `probe` imports torch or another library that may be missing or
broken, and `probe` runs in child processes, which may crash or hang.
"""
