import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from helpers.serving import FaultySite, serve

from lsgd.errors import UsageError
from lsgd.prepare.fetch import PublishedFile, download
from lsgd.supervise.singly import free_port

CONTENT = np.random.default_rng(0).bytes(300_000)


def published(name: str, content: bytes = CONTENT) -> PublishedFile:
    return PublishedFile(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


FILE = published("set.zip")


@pytest.fixture
def site() -> Iterator[FaultySite]:
    with serve(FaultySite({"/set.zip": CONTENT})) as started:
        yield started


@pytest.fixture
def nobody() -> str:
    """A URL where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_is_there_and_right_is_not_fetched_again(site: FaultySite, tmp_path: Path) -> None:
    site.files["/more"] = b"more"
    download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    download("set", [FILE, published("more", b"more")], tmp_path, [f"{site.url}/"])
    assert site.asked == [("/set.zip", None), ("/more", None)]
    assert names(tmp_path) == ["more", "set.zip"]


def test_a_broken_connection_goes_on_where_it_broke(site: FaultySite, tmp_path: Path) -> None:
    site.cuts = [100_000, 50_000]
    download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert [asked for _, asked in site.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_silent_connection_goes_on_as_a_broken_one(
    site: FaultySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silence is made short for the first connection alone: no later one depends on it."""
    waits = iter([0.5])
    monkeypatch.setattr(
        "lsgd.prepare.fetch.urlopen",
        lambda request, timeout: urlopen(request, timeout=next(waits, timeout)),
    )
    site.cuts, site.stalls = [100_000], True
    download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert [asked for _, asked in site.asked] == [None, "bytes=100000-"]


def test_a_server_that_always_breaks_off_is_given_up(site: FaultySite, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [100_000] * 50
    with pytest.raises(UsageError, match=r"/set.zip ended after 100000 of 300000 bytes"):
        download("set", [FILE], tmp_path, [site.url])
    assert len(site.asked) == 2


def test_the_next_mirror_goes_on_with_the_part(site: FaultySite, tmp_path: Path) -> None:
    with serve(FaultySite(site.files, cuts=[100_000, 0])) as flaky:
        download("set", [FILE], tmp_path, [flaky.url, site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert site.asked == [("/set.zip", "bytes=100000-")]


def test_a_killed_download_goes_on(site: FaultySite, tmp_path: Path) -> None:
    site.cuts, site.stalls = [100_000], True
    script = (
        "import sys; from pathlib import Path; from lsgd.prepare.fetch import PublishedFile, "
        "download\n"
        f"download('set', [{FILE!r}], Path({str(tmp_path)!r}), [{site.url!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    part, deadline = tmp_path / "set.zip.part", time.monotonic() + 600
    while not (part.exists() and part.stat().st_size > 0):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=900)
    assert names(tmp_path) == ["set.zip.part"]
    begun = part.stat().st_size
    assert 0 < begun < FILE.size
    download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert site.asked[1:] == [("/set.zip", f"bytes={begun}-")]
    assert names(tmp_path) == ["set.zip"]


def test_wrong_bytes_are_never_kept(tmp_path: Path) -> None:
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with (
        serve(FaultySite({"/set.zip": wrong})) as site,
        pytest.raises(UsageError, match=r"/set.zip differs from the published file"),
    ):
        download("set", [FILE], tmp_path, [site.url])
    assert names(tmp_path) == []
    assert len(site.asked) == 1


def test_a_page_instead_of_the_file_costs_no_part(site: FaultySite, tmp_path: Path) -> None:
    """Such as `200 OK: please log in`; also where the next mirror is then asked."""
    (tmp_path / "set.zip.part").write_bytes(CONTENT[:1000])
    with serve(FaultySite({"/set.zip": b"<html>"}, ranges=False)) as portal:
        download("set", [FILE], tmp_path, [portal.url, site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert site.asked == [("/set.zip", "bytes=1000-")]


@pytest.mark.parametrize("part", [b"<html>", b"x" * FILE.size, b"x" * (FILE.size + 1)])
def test_a_part_with_other_bytes_is_begun_again(
    site: FaultySite, tmp_path: Path, part: bytes
) -> None:
    (tmp_path / "set.zip.part").write_bytes(part)
    download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert names(tmp_path) == ["set.zip"]


def test_a_server_that_does_not_say_how_much_comes(site: FaultySite, tmp_path: Path) -> None:
    """Nor goes on where it stopped: it begins again."""
    site.says_length, site.ranges, site.cuts = False, False, [100_000]
    download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == CONTENT
    assert len(site.asked) == 2


def test_another_file_of_that_name_is_left_alone(site: FaultySite, tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(b"mine")
    with pytest.raises(
        UsageError, match=r"set.zip is not the published file of 300000 bytes.*move"
    ):
        download("set", [FILE], tmp_path, [site.url])
    assert (tmp_path / "set.zip").read_bytes() == b"mine"
    assert site.asked == []


def test_source_is_a_folder(tmp_path: Path) -> None:
    source, root = tmp_path / "a #1 100%", tmp_path / "root"
    source.mkdir()
    root.mkdir()
    (source / "set.zip").write_bytes(CONTENT)
    download("set", [FILE], root, ["http://nowhere.invalid"], str(source))
    assert (root / "set.zip").read_bytes() == CONTENT
    assert (source / "set.zip").exists()
    (source / "set.zip").unlink()
    (root / "set.zip").unlink()
    for other, why in (
        (str(source), "No such file"),
        ("ftp://x", "--source ftp://x is neither a folder here nor an http"),
    ):
        with pytest.raises(UsageError, match=why):
            download("set", [FILE], root, ["http://nowhere.invalid"], other)


def test_without_internet_it_says_what_to_put_where(
    site: FaultySite, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, and only of what is still missing."""
    monkeypatch.chdir(tmp_path)
    site.files["/a"] = b"a"
    files = [published("a", b"a"), FILE, published("other", b"b")]
    with pytest.raises(UsageError) as refused:
        download("set", files, Path(), [nobody, f"{site.url}/sub"], None)
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
    with pytest.raises(UsageError, match=r"download set\.zip, other from"):
        download("set", files, Path(), [nobody])


@pytest.mark.slow
def test_a_full_disk_is_no_failure_of_the_mirror(site: FaultySite, tmp_path: Path) -> None:
    script = (
        "import sys; from dataclasses import replace\n"
        "from lsgd.prepare import __main__ as command\n"
        "from lsgd.prepare.published import FASHION_MNIST, PublishedFile\n"
        f"one = replace(FASHION_MNIST, files=[{FILE!r}], mirrors=[{site.url!r}])\n"
        "command.PUBLISHED = (one,)\n"
        f"sys.exit(command.main(['fashion-mnist', {str(tmp_path)!r}]))"
    )
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "-", sys.executable, "-c", script]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 6
    assert "could not be written (File too large); free some space and rerun" in done.stderr
    assert len(site.asked) == 1
    download("set", [FILE], tmp_path, [site.url])
    assert site.asked[1:] == [("/set.zip", "bytes=102400-")]
