"""How fast the parts of a run are on this machine, compared in a way that noise cannot decide."""
