"""What is known of this machine's network."""

import subprocess
import sys

import pytest

from lsgd.job.network import list_interfaces

SECOND_ADDRESS = """
ip link set lo up
ip address add 10.213.1.1/24 dev lo
ip address add 10.213.1.2/24 dev lo
ip address add 10.213.2.1/24 dev lo label lo:2
exec "$@"
"""
PRINTED = """
from lsgd.job.network import list_interfaces
print(*next(each.addresses for each in list_interfaces() if each.name == "lo"))
"""


@pytest.mark.netns
def test_every_address_of_an_interface_is_its_own() -> None:
    command = ["unshare", "--net", "sh", "-ec", SECOND_ADDRESS, "sh", sys.executable, "-c", PRINTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) >= {"127.0.0.1", "10.213.1.1", "10.213.1.2", "10.213.2.1"}


def test_this_machine_has_a_loopback() -> None:
    assert any(each.up and each.loopback for each in list_interfaces())
