"""One process among others: its launcher, the other processes of its job, and how it ends."""
