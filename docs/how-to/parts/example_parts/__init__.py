"""Parts for lsgd: an optimizer, a network and a loader."""
