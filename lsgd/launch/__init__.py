"""Starting a run by a launcher: `python -m lsgd.launch`, which launch/*.sh call."""
