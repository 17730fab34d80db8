"""Many runs, one table: `python -m lsgd.study` trains the trials of a study and reports on them."""
