"""One process of a job: its launcher, its devices, its peer processes and its exit."""
