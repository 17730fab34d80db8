"""The drawings of the pages, each by the program of its name: `python -m docs.pictures.floors`."""
