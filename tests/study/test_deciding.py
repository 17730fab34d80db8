"""Seeds that are added until the claims of a study are decided; its trials train nothing."""

import json
import re
import signal
from collections import Counter

import pytest
from helpers.launching import write_program
from helpers.studies import StudyFolder, installed_server
from helpers.waiting import wait_until

CLAIMED = ("+study=claimed", "--launch", "mpirun", "--np", "2", "--until-decided")
SEEDS = {"digits": 4, "digits_unscaled": 4, "digits_no_warmup": 3}
"""What the claims take: that b and c are alike shows with three; that a is worse never shows."""


@pytest.mark.distributed
def test_a_claim_that_is_decided_gets_no_more_seeds(place: StudyFolder) -> None:
    """One claim stops early, the other has all seeds and is said to be open still; and a study that
    is told to stop among the added seeds goes on with these."""
    job = place.start(*CLAIMED, "--max-seeds", "4", **{"digits-seed3": "slow"})
    wait_until(lambda: any(place.folder.glob("runs/trials/digits-seed3-*/metrics.jsonl")))
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 75, said
    assert "1 claim to decide: a seed more for digits, digits_unscaled" in said
    code, said = place.run(*CLAIMED, "--max-seeds", "4")
    assert code == 0, said
    starts = place.starts()
    assert Counter(name.partition("-seed")[0] for name in starts) == SEEDS
    assert {name for name, times in starts.items() if times > 1} <= {"digits-seed3"}
    assert "not resolved with 4 seeds: a is worse than b" in said
    page = (place.folder / "runs/studies/claimed/README.md").read_text()
    assert "tested with 3 to 4 seeds" in page
    claims = json.loads((place.folder / "runs/studies/claimed/summary.json").read_text())["claims"]
    assert [claim["outcome"] for claim in claims] == ["holds", "not resolved"]
    assert [claim["level"] > least for claim, least in zip(claims, (0.9, 0.95), strict=True)] == [
        True,
        True,
    ]
    code, said = place.run(*CLAIMED, "--max-seeds", "6")
    assert code == 2
    assert "--max-seeds 6 is not the 4" in said


@pytest.mark.slow
def test_more_seeds_than_the_study_names_are_trained_and_counted(place: StudyFolder) -> None:
    """And what they can decide is said before."""
    code, said = place.run("+study=claimed", "seeds=4", "--np", "1", "--print")
    assert code == 0, said
    assert said.count("not started") == 12
    assert "# digits, seed 3: not started" in said
    assert "# power: 4 seeds find a difference of " in said
    assert "1.00 points, as the study expects" in said
    assert "# cost: 12 runs to train" in said


@pytest.mark.slow
def test_real_runs_decide_after_a_kill(place: StudyFolder) -> None:
    """Digits of one epoch on one process: the study is killed after its first run, and the same
    command trains the others and says what it has decided."""
    short = ("epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=1")
    words = ("+study=paired", *short, "--np", "1", "--until-decided", "--max-seeds", "4")
    job = place.start(*words)
    logs = "runs/trials/digits-seed1-*.log"
    wait_until(lambda: any(place.folder.glob(logs)) or job.poll() is not None, seconds=500)
    job.kill()
    job.communicate(timeout=600)  # the fixture communicates again
    first = place.run_folder("digits", 0) / "metrics.jsonl"
    before = first.read_bytes()
    place.python = write_program(place.folder / "python", *installed_server(place.installation))
    code, said = place.run(*words)
    assert code == 0, said
    assert first.read_bytes() == before, "a finished run is not trained again"
    [(outcome, seeds)] = re.findall(
        r"^(holds|does not hold|not resolved) with (\d) seeds: b is worse than a$", said, re.M
    )
    [summary] = place.folder.glob("runs/studies/paired-*/summary.json")
    numbers = json.loads(summary.read_text())
    assert [claim["outcome"] for claim in numbers["claims"]] == [outcome]
    assert [recipe["n"] for recipe in numbers["recipes"]] == [int(seeds)] * 2
    assert outcome != "not resolved" or seeds == "4"
