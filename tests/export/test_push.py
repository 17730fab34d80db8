"""Uploads, to a stand-in of the Hub's HfApi; nothing here leaves this machine."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lsgd.errors import UsageError

pytestmark = pytest.mark.export


class Hub:
    """What lsgd calls of HfApi, with the signatures of the library; repositories by their names."""

    def __init__(self) -> None:
        self.repositories: dict[str, set[str]] = {}
        self.fails = ""

    def repo_exists(self, repo_id: str) -> bool:
        return repo_id in self.repositories

    def list_repo_files(self, repo_id: str) -> list[str]:
        return [*self.repositories[repo_id]]

    def create_repo(self, repo_id: str, *, exist_ok: bool) -> str:
        assert exist_ok or repo_id not in self.repositories
        self.repositories.setdefault(repo_id, {".gitattributes"})
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        if self.fails:
            raise ConnectionError(self.fails)
        self.repositories[repo_id] |= {file.name for file in folder_path.iterdir()}


@pytest.fixture
def pushing() -> ModuleType:
    from lsgd.export import push  # which imports the library

    return push


@pytest.fixture
def hub(pushing: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    stand_in = SimpleNamespace(HfApi=lambda: hub, get_token=lambda: "hf_of_nobody")
    monkeypatch.setattr(pushing, "huggingface_hub", stand_in)
    return hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "README.md").touch()
    return tmp_path


def test_a_folder_is_uploaded_and_none_is_overwritten(
    pushing: ModuleType, hub: Hub, folder: Path
) -> None:
    pushing.check_push("me/digits")
    assert pushing.push(folder, "me/digits") == "https://huggingface.co/me/digits"
    assert hub.repositories["me/digits"] == {".gitattributes", "README.md"}
    with pytest.raises(
        UsageError, match="me/digits has files already, and none is overwritten; write"
    ):
        pushing.check_push("me/digits")


def test_an_upload_that_fails_leaves_the_folder_and_may_be_tried_again(
    pushing: ModuleType, hub: Hub, folder: Path
) -> None:
    hub.fails = "no route to host"
    with pytest.raises(
        UsageError, match=r"\(no route to host\); .* is complete: run hf upload me/d "
    ):
        pushing.push(folder, "me/d")
    hub.fails = ""
    pushing.check_push("me/d")  # it is there by now, and empty
    pushing.push(folder, "me/d")


def test_without_a_token_it_says_how_to_get_one(
    pushing: ModuleType, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing.huggingface_hub, "get_token", lambda: None)
    with pytest.raises(
        UsageError, match=r"needs a token of the Hub, .*; run hf auth login, or set"
    ):
        pushing.check_push("me/digits")
    with pytest.raises(
        UsageError, match="--push digits is not of the form OWNER/NAME; write one, such as"
    ):
        pushing.check_push("digits")


def test_the_library_has_what_is_called() -> None:
    import huggingface_hub

    api = huggingface_hub.HfApi
    assert all(callable(getattr(api, name)) for name in vars(Hub) if not name.startswith("__"))
    assert callable(huggingface_hub.get_token)
