"""The upload of an exported folder to the Hugging Face Hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub

from lsgd.errors import UsageError

HUB_DEFAULT_FILES = {".gitattributes"}
"""The files that the Hub itself puts into a repository."""


def check_push(repository: str) -> None:
    """Raise UsageError if an upload to this Hub repository would fail: name, token, existing files.

    Called before the export writes anything.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UsageError(
            f"--push {repository} is not of the form OWNER/NAME; write one, such as --push "
            "me/digits"
        )
    with _usage_errors(repository, "nothing was written; try again"):
        if not huggingface_hub.get_token():
            raise UsageError(
                f"--push {repository} needs a token of the Hub, and none is set; run hf auth "
                "login, or set HF_TOKEN"
            )
        api = huggingface_hub.HfApi()
        if (
            api.repo_exists(repository)
            and not set(api.list_repo_files(repository)) <= HUB_DEFAULT_FILES
        ):
            raise UsageError(
                f"--push {repository} has files already, and none is overwritten; write another "
                "name"
            )


def push(folder: Path, repository: str) -> str:
    """Upload a folder to a Hugging Face Hub repository, created if needed; return its address.

    Raises UsageError if the upload fails; the local folder stays.
    """
    with _usage_errors(repository, f"{folder} is complete: run hf upload {repository} {folder}"):
        api = huggingface_hub.HfApi()
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export of lsgd")
    return str(address)


@contextmanager
def _usage_errors(name: str, remedy: str) -> Iterator[None]:
    """Convert any error of the Hub or the internet connection into a UsageError with the remedy."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # each library below raises its own types
        why = (str(error).strip() or repr(error)).splitlines()[0]
        raise UsageError(f"--push {name} did not succeed ({why}); {remedy}") from None
