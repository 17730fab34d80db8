"""What the owner of a GPU runs once, in slices of minutes that can be killed: `make gpu`."""
