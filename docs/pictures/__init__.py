"""The drawings of the documentation, each by its own module: `python -m docs.pictures.floors`."""
