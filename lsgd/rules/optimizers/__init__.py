"""Optimizers that torch does not have, one in each file."""
