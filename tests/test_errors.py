from lsgd import errors


def test_exit_codes_stay() -> None:
    """README.md promises them, and what starts runs acts on them."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    found = {each.__name__: each.exit_code for each in kinds if hasattr(each, "exit_code")}
    assert found == {
        "Refused": 2,
        "Diverged": 3,
        "InputFailed": 4,
        "PeerLost": 5,
        "TooLate": 1,
        "NotSaved": 6,
        "Preempted": 75,
    }
