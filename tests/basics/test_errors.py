import errno
import re
import sys
from pathlib import Path

import pytest

from lsgd import doctor, errors, files
from lsgd.doctor import machine
from lsgd.errors import UsageError


def test_exit_codes_stay() -> None:
    """README.md promises them, and what starts runs acts on them."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    found = {each.__name__: each.exit_code for each in kinds if hasattr(each, "exit_code")}
    assert found == {
        "UsageError": 2,
        "DivergedError": 3,
        "InputFailedError": 4,
        "PeerLostError": 5,
        "StaleRestartError": 1,
        "NotSavedError": 6,
        "UnhealthyNodesError": 1,
        "PreemptedError": 75,
    }


def test_a_link_to_a_missing_folder_is_named(tmp_path: Path) -> None:
    """As runs on a scratch disk that was purged; the system says that the file exists."""
    link = tmp_path / "runs"
    link.symlink_to("/gone/runs")
    why = f"{link} leads to /gone/runs, which does not exist"
    outputs = (files.make_output_folder, lambda at: files.create_output_folder(at).__enter__())
    for folder in (link, link / "digits" / "x"):
        with pytest.raises(FileExistsError) as failure:
            folder.mkdir(parents=True)
        assert errors.dangling_link(failure.value) == why
        assert why in str(errors.unusable_path_error(failure.value))
        written = re.escape(f"written ({why}); write another")
        with pytest.raises(UsageError, match=written), errors.writing_to(folder, "write another"):
            folder.mkdir(parents=True)
        for make in outputs:
            with pytest.raises(UsageError, match=re.escape(why)):
                make(folder)
    [item] = machine.run_folder(link)
    assert (item.status, why in item.found) == (doctor.FAIL, True)


def test_only_a_link_to_a_missing_file_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(FileExistsError) as failure:
            path.mkdir()
        assert errors.dangling_link(failure.value) == ""
    assert (
        errors.dangling_link(FileNotFoundError(errno.ENOENT, "none", str(tmp_path / "none"))) == ""
    )


def test_a_name_that_the_locale_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a recipe under LC_ALL=C; in any other case it is an error of lsgd."""
    problem = UnicodeEncodeError("ascii", "runs/名", 5, 6, "ordinal not in range(128)")
    with pytest.raises(UnicodeEncodeError), errors.writing_to("runs/名", "write another"):
        raise problem
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    refusal = "runs/名 cannot be written, as ascii, .* lacks 名; set LC_ALL=C.UTF-8"
    with pytest.raises(UsageError, match=refusal), errors.writing_to("runs/名", "write another"):
        raise problem
