"""The command `python -m lsgd.study`: train the recipes of a study, and report on their runs."""
