"""One process among others: what started it, who else is there, how it ends."""
