import fcntl
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.serving import Site, serve

from lsgd.errors import Refused
from lsgd.prepare.fetch import File, fetch, filling

CONTENT = np.random.default_rng(0).bytes(300_000)


def published(name: str, content: bytes = CONTENT) -> File:
    return File(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


FILE = published("set.zip")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site({"/set.zip": CONTENT})) as started:
        yield started


@pytest.fixture
def nobody() -> str:
    """A URL where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_is_there_and_right_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    site.files["/more"] = b"more"
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    fetch("set", [FILE, published("more", b"more")], tmp_path, [f"{site.url}/"])
    assert site.asked == [("/set.zip", None), ("/more", None)]
    assert names(tmp_path) == ["more", "set.zip"]


def test_a_broken_connection_goes_on_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.cuts = [100_000, 50_000]
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert [asked for _, asked in site.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_silent_connection_goes_on_as_a_broken_one(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsgd.prepare.fetch.PATIENCE", 0.5)
    site.cuts, site.stalls = [100_000], True
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert [asked for _, asked in site.asked] == [None, "bytes=100000-"]


def test_without_ranges_it_begins_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [100_000]
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert len(site.asked) == 2


def test_a_server_that_always_breaks_off_is_given_up(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [100_000] * 50
    with pytest.raises(Refused, match=r"/set.zip ended after 100000 of 300000 bytes"):
        fetch("set", [FILE], tmp_path, [site.url])
    assert len(site.asked) == 2


def test_the_next_mirror_goes_on_with_the_part(site: Site, tmp_path: Path) -> None:
    with serve(Site(site.files, cuts=[100_000, 0])) as flaky:
        fetch("set", [FILE], tmp_path, [flaky.url, site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert site.asked == [("/set.zip", "bytes=100000-")]


def test_a_killed_download_goes_on(site: Site, tmp_path: Path) -> None:
    site.cuts, site.stalls = [100_000], True
    script = (
        "import sys; from pathlib import Path; from lsgd.prepare.fetch import File, fetch\n"
        f"fetch('set', [{FILE!r}], Path({str(tmp_path)!r}), [{site.url!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    part, deadline = tmp_path / "set.zip.part", time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 0):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert names(tmp_path) == ["set.zip.part"]
    begun = part.stat().st_size
    assert 0 < begun < FILE.size
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert site.asked[1:] == [("/set.zip", f"bytes={begun}-")]
    assert names(tmp_path) == ["set.zip"]


def test_wrong_bytes_are_never_kept(tmp_path: Path) -> None:
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with (
        serve(Site({"/set.zip": wrong})) as site,
        pytest.raises(Refused, match=r"/set.zip has other bytes than were published"),
    ):
        fetch("set", [FILE], tmp_path, [site.url])
    assert names(tmp_path) == []
    assert len(site.asked) == 1


def test_a_page_instead_of_the_file_costs_no_part(site: Site, tmp_path: Path) -> None:
    """Such as `200 OK: please log in`; also where the next mirror is then asked."""
    (tmp_path / "set.zip.part").write_bytes(CONTENT[:1000])
    with serve(Site({"/set.zip": b"<html>"}, ranges=False)) as portal:
        fetch("set", [FILE], tmp_path, [portal.url, site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert site.asked == [("/set.zip", "bytes=1000-")]


@pytest.mark.parametrize("part", [b"<html>", b"x" * FILE.size, b"x" * (FILE.size + 1)])
def test_a_part_with_other_bytes_is_begun_again(site: Site, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "set.zip.part").write_bytes(part)
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert names(tmp_path) == ["set.zip"]


def test_a_server_that_does_not_say_how_much_comes(site: Site, tmp_path: Path) -> None:
    site.says_length, site.cuts = False, [100_000]
    fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT


def test_another_file_of_that_name_is_left_alone(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(b"mine")
    with pytest.raises(Refused, match=r"set.zip is not the published file of 300000 bytes.*move"):
        fetch("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == b"mine"
    assert site.asked == []


def test_source_is_a_folder(tmp_path: Path) -> None:
    source, root = tmp_path / "a #1 100%", tmp_path / "root"
    source.mkdir()
    root.mkdir()
    (source / "set.zip").write_bytes(CONTENT)
    fetch("set", [FILE], root, ["http://nowhere.invalid"], str(source))
    assert (root / "set.zip").read_bytes() == CONTENT
    assert (source / "set.zip").exists()
    (source / "set.zip").unlink()
    (root / "set.zip").unlink()
    with pytest.raises(Refused, match="No such file"):
        fetch("set", [FILE], root, ["http://nowhere.invalid"], str(source))


def test_source_is_another_mirror(site: Site, tmp_path: Path) -> None:
    fetch("set", [FILE], tmp_path, ["http://nowhere.invalid"], site.url)
    assert (tmp_path / "set.zip").read_bytes() == CONTENT


def test_source_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--source ftp://x is neither a folder here nor an http"):
        fetch("set", [FILE], tmp_path, [], "ftp://x")


def test_without_internet_it_says_what_to_put_where(
    site: Site, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, and only of what is still missing."""
    monkeypatch.chdir(tmp_path)
    site.files["/a"] = b"a"
    files = [published("a", b"a"), FILE, published("other", b"b")]
    with pytest.raises(Refused) as refused:
        fetch("set", files, Path(), [nobody, f"{site.url}/sub"], None)
    message = str(refused.value)
    for part in (
        "set cannot be fetched",
        f"{nobody}/a: Connection refused; {site.url}/sub/a: HTTP Error 404",
        f"download a, set.zip, other from {nobody} or {site.url}/sub on",
        f"put it into {tmp_path} and",
        "--source",
    ):
        assert part in message
    assert "\n" not in message
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(Refused, match=r"download set\.zip, other from"):
        fetch("set", files, Path(), [nobody])


def test_the_command_line(nobody: str, tmp_path: Path) -> None:
    root = tmp_path / "new" / "fashion"
    command = [sys.executable, "-m", "lsgd.prepare", "fashion-mnist", str(root), "--source", nobody]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"lsgd: fashion-mnist cannot be fetched \(.*Connection refused\); download train-.*, "
        rf"t10k-labels.* from https://github.com/zalandoresearch/.* put it into {root} and .*\n",
        done.stderr,
    )


def test_a_full_disk_is_no_failure_of_the_mirror(site: Site, tmp_path: Path) -> None:
    script = (
        "import sys; from dataclasses import replace; from lsgd.prepare import fashion_mnist\n"
        "from lsgd.prepare.__main__ import main; from lsgd.prepare.fetch import File\n"
        f"one = replace(fashion_mnist.SET, files=[{FILE!r}], mirrors=[{site.url!r}])\n"
        "fashion_mnist.SET = one\n"
        f"sys.exit(main(['fashion-mnist', {str(tmp_path)!r}]))"
    )
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "-", sys.executable, "-c", script]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith("lsgd: [Errno 27] File too large; once that is mended, the same")
    assert len(site.asked) == 1
    fetch("set", [FILE], tmp_path, [site.url])
    assert site.asked[1:] == [("/set.zip", "bytes=102400-")]


def test_two_processes_do_not_fill_one_folder(tmp_path: Path) -> None:
    with (tmp_path / ".prepare.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another process is preparing"), filling(tmp_path):
            pass
    with filling(tmp_path):
        pass
