"""Trials that a cluster trains; the real one is in distributed/."""

import re

from helpers.studies import Place


def test_a_queue_that_does_not_answer_for_one_costs_no_other(place: Place) -> None:
    """The first is queued where nobody can be asked; the others are still submitted."""
    programs = place.folder / "bin"
    programs.mkdir()
    for name, text in (("sbatch", "echo Submitted batch job 7"), ("squeue", "echo no >&2; exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    submit = ["+study=small", "seeds=[0]", "--launch", "slurm", "--np", "1"]
    _, said = place.run(*submit, "--print")
    first = place.folder / re.search(r"run_dir=(\S+digits-seed0\S+)", said)[1]
    first.parent.mkdir(parents=True)
    first.with_name(f"{first.name}.job").write_text("Submitted batch job 6\n")
    place.path = f"{programs}:{place.path}"
    code, said = place.run(*submit)
    assert code == 75
    assert "failed: digits, seed 0: whether job 6 still trains" in said
    assert "2 of 2  digits_unscaled, seed 0: Submitted batch job 7, processes: 1" in said
