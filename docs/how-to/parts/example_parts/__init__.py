"""Parts for lsgd: an optimizer, a network, a loader, a decay and an augmentation."""
