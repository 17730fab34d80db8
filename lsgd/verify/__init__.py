"""Verification of anybody's run folder: its files are checked, and parts of it are executed again.

Nothing in the folder is executed or changed. The rounding that is allowed is fixed before the first
value is compared.
"""
