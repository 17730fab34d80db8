"""Hyper-parameter search: `python -m lsgd.search` finds the best settings of a recipe."""
