"""The export of a trained network, as its run evaluated it, to formats of other programs."""
