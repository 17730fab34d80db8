"""Rules from papers as pure functions, optimizers and layers."""
