"""Functions that make foreign text safe to show: passwords masked, control characters escaped.

Foreign are names of files, rows, exceptions of libraries and overrides of a command line.
"""

import re

PASSWORD = re.compile(r"""(://[^\s/:@"<>]*):[^\s"<>]*@""")
# A user name without a password in a web address is mostly a token.
TOKEN = re.compile(r"""(https?://)[^\s/:@"<>]+@""", re.IGNORECASE)
PARAMETER = re.compile(
    r"""([?&;][\w.-]*(?:passw(?:or)?d|pwd|token|secret|key|signature)=)[^\s&;"'<>]+""",
    re.IGNORECASE,
)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Progress bars return to the start of a line or move up one; doctor prints colours.
ALLOWED_CONTROLS = re.compile(r"\A(?:\r|(?:\x1b\[A)+\Z)|\x1b\[(?:0|3[0-7])m")


def mask_passwords(text: str) -> str:
    """Replace the passwords and tokens of all URLs in a text by ***.

    >>> mask_passwords("postgresql://me:p@ss@host/db is down, see http://host:80/a")
    'postgresql://me:***@host/db is down, see http://host:80/a'
    >>> mask_passwords("https://0a1b2c@host/?api_key=3d4e&page=5")
    'https://***@host/?api_key=***&page=5'
    """
    if "://" not in text:
        return text
    text = TOKEN.sub(r"\1***@", PASSWORD.sub(r"\1:***@", text))
    return PARAMETER.sub(r"\1***", text)


def escape_controls(text: str) -> str:
    r"""Escape bytes that are not UTF-8, and control characters but newlines and tabs, in a text.

    >>> print(escape_controls("a\x1b[2Jb\rc\udcff"))
    a\x1b[2Jb\x0dc\xff
    """
    return CONTROL.sub(_escaped, text)


def sanitize(text: str) -> str:
    """Mask passwords and escape control characters in a foreign text, before it is shown."""
    return escape_controls(mask_passwords(text))


def sanitize_for_page(text: str) -> str:
    """Mask passwords and replace unprintable characters in a foreign text, for a report page."""
    text = mask_passwords(text)
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def sanitize_output(text: str) -> str:
    r"""Sanitize another command's output, but keep control codes of progress bars and colours.

    >>> list(map(sanitize_output, ["\r 10%", "a\r", "\x1b[32mok\x1b[0m \x1b[2J"]))
    ['\r 10%', 'a\\x0d', '\x1b[32mok\x1b[0m \\x1b[2J']
    """
    text = mask_passwords(text)
    if CONTROL.search(text) is None:
        return text
    pieces, end = [], 0
    for harmless in ALLOWED_CONTROLS.finditer(text):
        pieces += [escape_controls(text[end : harmless.start()]), harmless[0]]
        end = harmless.end()
    return "".join([*pieces, escape_controls(text[end:])])


def _escaped(control: re.Match[str]) -> str:
    code = ord(control[0])
    # os.fsdecode maps the bytes of a name that is not UTF-8 to these surrogates.
    code = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
