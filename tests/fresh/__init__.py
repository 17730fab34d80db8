"""Test of the README's commands on bare Debian machines, as a new user's: `make fresh`."""
