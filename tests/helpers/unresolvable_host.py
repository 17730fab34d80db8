"""A hostname that does not resolve, for a single command."""

import os
import shutil
import subprocess

from helpers.capabilities import skip_or_fail


def unresolvable_host_command() -> list[str]:
    """Return a command prefix that sets an unresolvable hostname in a new UTS namespace."""
    unshare = ["unshare", "--uts"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        skip_or_fail("uts", "a process may not have a hostname of its own", "tests as root")
    return [*unshare, "sh", "-c", 'hostname no-such-host.invalid; exec "$0" "$@"']
