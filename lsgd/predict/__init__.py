"""Predictions of a trained network: the classes of images, and its judgment of a validation set."""
