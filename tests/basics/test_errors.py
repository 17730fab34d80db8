from lsgd import errors


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
