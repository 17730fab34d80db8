import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import advisories
import pytest
from advisories import Advisory

from lsgd.errors import UsageError

TQDM = Advisory("tqdm", "GHSA-1", "4.66.3", "runs what an option says")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, whose constraints are what is pinned there."""
    monkeypatch.setattr(advisories, "ROOT", tmp_path)
    monkeypatch.setattr(advisories, "FILE", tmp_path / "advisories.toml")
    (tmp_path / "constraints.txt").write_text("# pins\ntqdm==4.67.0\n")
    return tmp_path


def write_project(root: Path, *requirements: str) -> None:
    (root / "pyproject.toml").write_text(
        f"[project]\ndependencies = {json.dumps(requirements)}\n"
        '[project.optional-dependencies]\na = ["b>=2"]\n'
    )


@pytest.mark.parametrize(
    ("version", "advisory", "said"),
    [
        ("4.66.2", TQDM, 1),
        ("4.66.10", TQDM, 0),  # numbers, not texts
        ("4.66.3", TQDM, 0),
        ("4.66", TQDM._replace(accepted="lsgd gives it no options"), 0),
        ("4.66", TQDM._replace(package="TQDM"), 1),  # names as PyPI compares them
        ("4.66", TQDM._replace(package="tqdm2"), 0),
    ],
)
def test_what_is_older_than_the_first_version_without_the_hole(
    version: str, advisory: Advisory, said: int
) -> None:
    sentences = advisories.too_old("constraints.txt", {"tqdm": version}, [advisory])
    assert len(sentences) == said
    assert all(f"tqdm {version} is older than 4.66.3" in each for each in sentences)


def test_the_oldest_version_of_a_package_is_that_of_its_lowest_bound(root: Path) -> None:
    write_project(root, "tqdm>=4.66,<5", "B>=1.10", "Some_Name==3")
    assert advisories.floors() == {"tqdm": "4.66", "b": "1.10", "some-name": "3"}
    write_project(root, "c<4")
    with pytest.raises(UsageError, match=r"c<4 names no oldest version"):
        advisories.floors()


def test_the_file_is_read_as_it_was_written() -> None:
    listed = [Advisory("b", "GHSA-2", "", 'a "quoted" \\ text\nof two – lines', "why"), TQDM]
    advisories.write_advisories(listed[::-1])
    assert advisories.read_advisories() == listed


class Osv(BaseHTTPRequestHandler):
    """Answers as api.osv.dev does: tqdm has a hole until 4.66.3, and Ray one without a mend."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, version = asked["package"]["name"], asked["version"]
        hole = {"id": "GHSA-1", "summary": "a\nhole", "details": "D"}
        hole |= {"schema_version": "1.0", "modified": "2024-05-04T00:00:00Z"}
        hole |= {"aliases": [f"CVE-{name}"]}
        events: list[dict[str, str]] = [{"introduced": "0"}]
        if name == "tqdm":
            events.append({"fixed": "4.66.3"})
        else:
            hole["id"] = "GHSA-2"
        package = {"name": name, "ecosystem": "PyPI"}
        hole["affected"] = [
            {"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
        ]
        has = name == "ray" or (name == "tqdm" and version == "4.66")
        answer = json.dumps({"vulns": [hole]} if has else {}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def osv() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Osv) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_pip_audit_renews_the_file_and_what_was_written_by_hand_stays(
    root: Path, osv: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(root, "tqdm>=4.66", "ray>=2")
    advisories.write_advisories([Advisory("numpy", "GHSA-0", "1.22", "old"), TQDM])
    renew = ["--renew", "-s", "osv", "--osv-url", osv]
    assert advisories.main(renew) == 1
    said = capsys.readouterr().out
    assert "pyproject.toml: tqdm 4.66 is older than 4.66.3, the first without GHSA-1" in said
    assert "ray: no version is without CVE-ray (a hole)" in said
    found = advisories.read_advisories()
    assert [each.id for each in found] == ["GHSA-0", "CVE-ray", "GHSA-1"]
    accepted = [each._replace(accepted="why") for each in found]
    advisories.write_advisories(accepted)
    assert advisories.main(renew) == 0
    assert advisories.read_advisories() == accepted


@pytest.mark.slow
def test_a_source_that_does_not_answer_leaves_the_file_alone(root: Path) -> None:
    write_project(root, "tqdm>=4.66")
    advisories.write_advisories([TQDM])
    with pytest.raises(UsageError, match="pip-audit could not ask: "):
        advisories.main(["--renew", "-s", "osv", "--osv-url", "http://127.0.0.1:9/v1/query"])
    assert advisories.read_advisories() == [TQDM]
