"""A file is there whole, or as it was."""

from pathlib import Path

import pytest

from lsgd.files import whole


def stop_half_way(path: Path) -> None:
    with whole(path) as file:
        file.write(b"half")
        file.flush()
        raise KeyboardInterrupt


def test_what_stops_half_way_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.JPEG"
    for before in (None, b"before"):
        if before:
            path.write_bytes(before)
        with pytest.raises(KeyboardInterrupt):
            stop_half_way(path)
        assert (path.read_bytes() if path.exists() else None) == before
    with whole(path) as file:
        file.write(b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["a.JPEG"]
    assert path.read_bytes() == b"after"
