"""Many trials, one best point: `python -m lsgd.search` tells what to train a recipe with."""
