"""A trained network, as it was evaluated, in the forms that other programs read."""
