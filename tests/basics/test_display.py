"""What people see of text of others: no password, and nothing that a terminal obeys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.sanitizing import mask_passwords, sanitize, sanitize_output


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@host/db",
        "mysql+pymysql://me:se/secret@host:80/db",
        "https://me:a@secret@host:5000",
        "http://:secret@proxy:3128",
        "https://secret@github.com/a.git",
        "postgresql://host/db?user=me&password=secret",
        "https://host/api?x=1&API_KEY=secret#a",
    ],
)
def test_no_url_shows_its_password(url: str) -> None:
    text = f"{url} cannot be reached ('{url}'); see http://other:80/a@b"
    assert "secret" not in sanitize(text)
    assert "host" in mask_passwords(url) or "proxy" in url or "github" in url
    assert "secret" not in str(UsageError(text))


@pytest.mark.parametrize(
    "text", ["sqlite:////a/b.db", "http://host:5000/#/runs/1", "me@host: see ftp://host/a, b@c"]
)
def test_what_has_no_password_stays_as_it_is(text: str) -> None:
    assert mask_passwords(text) == text


@given(st.text(st.characters()))
def test_a_terminal_obeys_nothing(text: str) -> None:
    """And any encoding has what is left; tabs and ends of lines stay."""
    shown = sanitize(text)
    assert all(each >= " " or each in "\t\n" for each in shown)
    assert not any("\x7f" <= each <= "\x9f" for each in shown)
    shown.encode()
    assert sanitize(shown) == shown
    bar = "\r 10% \x1b[32m"
    assert sanitize_output(f"{bar}a{text}") == f"{bar}a{sanitize_output(f'a{text}')[1:]}"


def test_a_refusal_shows_what_a_name_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(UsageError("a\x1b[2Jb\udcff\u202ec")) == "a\\x1b[2Jb\\xff\\u202ec"
