"""Trials that this process trains; most of them train nothing."""

import json
import re
import signal

import pytest
from helpers.composed import compose_recipe
from helpers.launching import write_program
from helpers.studies import ALL, QUICK, TRIALS, StudyFolder, installed_server, wait_until

from lsgd.job import members
from lsgd.run.read import planned_run_folder


@pytest.mark.distributed
def test_a_failure_costs_no_other(place: StudyFolder) -> None:
    """One has an input that fails, one a file where its folder should be, and one diverges."""
    in_the_way = place.folder / planned_run_folder(compose_recipe("+recipe=digits_unscaled"))
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("mine")
    code, said = place.run(*QUICK, **{"digits-seed0": "4", "digits_unscaled-seed1": "3"})
    assert code == 1, said
    assert place.starts() == {name: 1 for name in ALL if name != "digits_unscaled-seed0"}
    assert "1 of 4  digits, seed 0: starts, processes: 2" in said
    assert re.search(r"2 of 4  digits, seed 1: top-1 error 11\.00 %, .*; about \d+ s left", said)
    assert re.search(r"failed: digits, seed 0: exit code 4, .* had an input that failed", said)
    assert "digits-seed0-" in said
    assert ".log ends with: small: so it was planned" in said
    assert re.search(r"failed: digits_unscaled, seed 0: .* cannot be written \(Not a dir", said)
    assert "failed: digits_unscaled, seed 1: exit code 3, " in said
    assert in_the_way.read_text() == "mine"
    # Again, now that nothing stands in the way: only these two are trained, from where they were.
    in_the_way.unlink()
    code, said = place.run(*QUICK)
    assert code == 1, said
    assert "small: 4 runs, 2 to train" in said
    assert "1 of 2  digits, seed 0: resumes after epoch 1" in said
    assert place.starts() == ALL | {"digits-seed0": 2}
    assert place.epochs(place.run_folder("digits")) == list(range(1, 31))
    # The same words would diverge again.
    assert "failed: digits_unscaled, seed 1: diverged in epoch 2 of 30" in said


@pytest.mark.distributed
def test_told_to_stop(place: StudyFolder) -> None:
    """The trials that are under way save and leave, and no other begins."""
    slow = {"digits-seed0": "slow", "digits-seed1": "slow"}
    job = place.start(*QUICK, "epochs=1000", "--jobs", "2", **slow)
    wait_until(lambda: sum(bool(each) for each in place.epochs_of_all()) == 2)
    job.send_signal(signal.SIGINT)
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 75, said
    assert "stopped; rerun the same command to resume" in said
    assert place.starts() == {"digits-seed0": 1, "digits-seed1": 1}
    for seed in (0, 1):
        folder = place.run_folder("digits", seed)
        assert members.job_pids(folder) == []
        [end] = [
            json.loads(row) for row in (folder / "supervise.log").read_text().splitlines()
            if '"end"' in row
        ]  # fmt: skip
        assert end["code"] == 75


@pytest.mark.distributed
def test_two_studies_share_the_work(place: StudyFolder) -> None:
    """Neither trains what the other does, and both end with all of it done."""
    both = [place.start_fork(*QUICK) for _ in range(2)]
    said = [job.communicate(timeout=600)[0] for job in both]
    assert [job.returncode for job in both] == [0, 0], said
    assert place.starts() == ALL
    assert not list((place.folder / TRIALS).glob("*/twice"))


@pytest.mark.distributed
def test_killed_it_takes_its_trials_along(place: StudyFolder) -> None:
    """A second study that begins at once waits for them to leave, and goes on with them."""
    job = place.start(*QUICK, "epochs=150", "seeds=[0]", **{"digits-seed0": "slow"})
    wait_until(lambda: any(len(each) > 2 for each in place.epochs_of_all()))
    job.kill()
    code, said = place.run(*QUICK, "epochs=150", "seeds=[0]")
    assert code == 0, said
    assert place.starts() == {"digits-seed0": 2, "digits_unscaled-seed0": 1}
    assert place.epochs(place.run_folder("digits")) == list(range(1, 151))
    assert not list((place.folder / TRIALS).glob("*/twice"))


@pytest.mark.distributed
def test_a_row_of_somebody_else_costs_no_other(place: StudyFolder) -> None:
    odd = place.folder / planned_run_folder(compose_recipe("+recipe=digits"))
    odd.mkdir(parents=True)
    (odd / "metrics.jsonl").write_text('["not ours"]\n')
    _, said = place.run(*QUICK, "seeds=[0]")
    assert "small: 2 runs, 2 to train" in said
    assert "Traceback" not in said
    assert "digits_unscaled, seed 0: top-1 error" in said


@pytest.mark.distributed
@pytest.mark.slow
def test_a_real_trial_through_a_launch_script(place: StudyFolder) -> None:
    """Killed in the middle, with the study; then the rest of it, and a report."""
    words = ["+study=single", "--np", "1"]
    job = place.start(*words)
    wait_until(lambda: any(len(each) > 2 for each in place.epochs_of_all()))
    job.kill()
    job.communicate(timeout=600)  # the fixture communicates again
    place.python = write_program(place.folder / "python", *installed_server(place.installation))
    code, said = place.run(*words)
    assert code == 0, said
    folder = place.run_folder("digits")
    assert place.epochs(folder) == list(range(1, 31))
    assert place.starts() == {"digits-seed0": 2}
    assert re.search(r"1 of 1  digits, seed 0: resumes after epoch \d+, processes: 1\n", said)
    assert re.search(r"1 of 1  digits, seed 0: top-1 error \d\.\d\d %", said)
    assert "top-1 error" in folder.with_name(f"{folder.name}.log").read_text()
    assert members.job_pids(folder) == []
    assert "report: runs/studies/single" in said
    assert (place.folder / "runs/studies/single/index.html").exists()


@pytest.mark.distributed
def test_trials_that_all_end_before_their_first_step_are_not_all_tried(place: StudyFolder) -> None:
    """It is the machine's fault, and there may be hundreds of them."""
    dead = dict.fromkeys((*ALL, "digits-seed2", "digits_unscaled-seed2"), "dead")
    code, said = place.run(*QUICK, "seeds=[0,1,2]", **dead)
    assert code == 1, said
    assert said.count("not started, as the first 3 runs ended before their first step") == 3
    assert len(place.starts()) == 3
