"""Datasets on disk, made ready for training: unpacked, verified, indexed, checked, packed."""
