"""Parts for lsgd, one of each kind, such as an optimizer and a workload."""
