"""The upload of a folder to the Hugging Face Hub, by its own library."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub

from lsgd.errors import Refused

OF_A_NEW_ONE = {".gitattributes"}
"""The files that the Hub itself puts into a repository."""


def check_push(name: str) -> None:
    """Raise Refused, before anything is written, without a token, and for a repository that has
    files."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise Refused(f"--push {name} is no OWNER/NAME; write one, such as --push me/digits")
    with _refusing(name, "nothing was written; try again"):
        if not huggingface_hub.get_token():
            raise Refused(
                f"--push {name} needs a token of the Hub, and there is none; type hf auth login, "
                "or set HF_TOKEN"
            )
        api = huggingface_hub.HfApi()
        if api.repo_exists(name) and not set(api.list_repo_files(name)) <= OF_A_NEW_ONE:
            raise Refused(f"--push {name} has files, and none is overwritten; write another name")


def push(folder: Path, name: str) -> str:
    """Upload the folder into the repository, made if need be; returns its address.

    Raises Refused if the Hub does not take it: the folder stays.
    """
    with _refusing(name, f"{folder} is whole: type hf upload {name} {folder}"):
        api = huggingface_hub.HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export of lsgd")
    return str(address)


@contextmanager
def _refusing(name: str, remedy: str) -> Iterator[None]:
    """Whatever the Hub or the way to it does wrong is a refusal that ends with the remedy."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:  # of any type, since each library below has its own
        why = (str(error).strip() or repr(error)).splitlines()[0]
        raise Refused(f"--push {name} did not succeed ({why}); {remedy}") from None
