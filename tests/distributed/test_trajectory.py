"""One trajectory: any number of processes, any workers per pass, any library, any restart."""

from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import program
from helpers.launching import launch

from lsgd.comm.single import SingleComm

pytestmark = pytest.mark.side_by_side
HOROVOD = [pytest.mark.horovod]
# Which process hosts what does not depend on the library, only the order of its sums does: so each
# number of processes over one of them.
LAUNCHES = [
    *(("torch", processes) for processes in (2, 8)),
    pytest.param("horovod-gloo", 4, marks=HOROVOD),
    pytest.param("horovod-mpi", 3, marks=[*HOROVOD, pytest.mark.mpi]),
]
PROGRAM = program.__file__


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every launch has a folder, next to that of the process alone."""
    return tmp_path_factory.mktemp("launches")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict:
    """What one process does."""
    (folder / "alone").mkdir()
    return program.cases(SingleComm(), folder / "alone")


@pytest.fixture(scope="module")
def together(folder: Path, alone: dict):
    """What so many processes do over a library; launched once and asked many times."""

    @cache
    def results(library: str, processes: int) -> dict:
        out = folder / f"{library}-{processes}"
        out.mkdir()
        launcher = "forked" if library == "torch" else library
        done = launch(launcher, processes, PROGRAM, str(out), library.split("-")[0])
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found = torch.load(out / "results.pt", weights_only=True)
        assert found["world_size"] == processes
        return found

    return results


def distance(one: dict, other: dict) -> float:
    """The largest difference of any parameter, BN statistic or momentum, in training and in what is
    evaluated."""
    kinds = ("model", "momentum", "evaluated")
    keys = [key for key in one if key.split()[0] in kinds]
    assert keys
    assert set(keys) == {key for key in other if key.split()[0] in kinds}
    return max((one[key].double() - other[key].double()).abs().max().item() for key in keys)


def same_counts(one: dict, other: dict) -> bool:
    return torch.equal(one["tally counts"], other["tally counts"]) and one["lr"] == other["lr"]


@pytest.mark.slow
@pytest.mark.parametrize("workers_per_pass", [1, 2])
def test_alone_workers_per_pass_changes_nothing(alone: dict, workers_per_pass: int) -> None:
    reference, result = alone["float64 8"], alone[f"float64 {workers_per_pass}"]
    assert distance(reference, result) < 1e-10
    assert result["ids"] == reference["ids"]


@pytest.mark.slow
@pytest.mark.parametrize("step", program.STOPS)
def test_alone_a_resumed_run_is_bit_equal(alone: dict, step: int) -> None:
    assert distance(alone["float64 2"], alone[f"resumed {step}"]) == 0
    assert alone[f"resumed {step}"]["lr"] == alone["float64 2"]["lr"]


@pytest.mark.distributed
@pytest.mark.parametrize(("library", "processes"), LAUNCHES)
class TestTogether:
    """Every test reads another result of the same launch.

    tests/faults/trajectory.toml has what these bounds have to show.
    """

    @pytest.mark.parametrize("workers_per_pass", [1, 2, 8])
    def test_float64(self, alone, together, library, processes, workers_per_pass) -> None:
        """20 steps with BN, Nesterov, decay, a drop of the lr and a kept tail."""
        result = together(library, processes)[f"float64 {workers_per_pass}"]
        assert distance(alone["float64 8"], result) < 1e-10
        assert same_counts(alone["float64 8"], result)

    @pytest.mark.parametrize("variant", program.VARIANTS)
    def test_variants(self, alone, together, folder, library, processes, variant) -> None:
        """LARS with a polynomial decay and smoothed labels, and a batch that grows and is evaluated
        by averages and precise BN statistics: any passes, any restart."""
        results = together(library, processes)
        words, at = program.VARIANTS[variant]
        found = [name for name in results if name.startswith(f"{variant} ")]
        restarts = {f"{variant} {how} {step}" for how in ("resumed", "taken over") for step in at}
        assert {f"{variant} 1", *restarts} <= {*found}
        stops = [folder / f"{library}-{processes}" / variant / f"stop{step}" for step in at]
        taken_back = [program.resumed(SingleComm(), stop, *words) for stop in stops]
        for result in (*(results[name] for name in found), *taken_back):
            assert distance(alone[f"{variant} 8"], result) < 1e-10
            assert same_counts(alone[f"{variant} 8"], result)

    def test_examples(self, alone, together, library, processes) -> None:
        """The processes go through the same examples between them, each once."""
        result = together(library, processes)["float64 2"]
        assert sorted(result["ids"]) == sorted(alone["float64 8"]["ids"])

    def test_float32(self, alone, together, library, processes) -> None:
        assert distance(alone["float32"], together(library, processes)["float32"]) < 1e-5

    def test_resumed_on_as_many_processes(self, together, library, processes) -> None:
        """Bit by bit, BN statistics and momentum included."""
        results = together(library, processes)
        for step in program.stops(processes):
            assert distance(results["float64 2"], results[f"resumed {step}"]) == 0

    def test_taken_over_from_one_process(self, alone, together, library, processes) -> None:
        results = together(library, processes)
        for step in program.stops(processes):
            assert distance(alone["float64 8"], results[f"taken over {step}"]) < 1e-10
            assert same_counts(alone["float64 8"], results[f"taken over {step}"])

    def test_taken_over_by_one_process(self, alone, together, folder, library, processes) -> None:
        together(library, processes)
        for step in program.stops(processes):
            stopped = folder / f"{library}-{processes}" / f"stop{step}"
            result = program.resumed(SingleComm(), stopped)
            assert distance(alone["float64 8"], result) < 1e-10
            assert same_counts(alone["float64 8"], result)

    def test_evaluation(self, alone, together, library, processes) -> None:
        """53 images in batches of 4: each counted once, and the error of one process."""
        assert together(library, processes)["evaluated"] == alone["evaluated"]
        assert alone["evaluated"][0] == 53

    def test_compressed_gradients(self, together, library, processes) -> None:
        """In fp16 a mean of 40,000 stays finite, and what is below 6e-8 is lost."""
        results = together(library, processes)["compressed"]
        assert results[40000.0] == pytest.approx(40000, rel=1e-3)
        assert results[1.0] == pytest.approx(1, rel=1e-3)
        assert results[5e-9] == 0

    def test_one_process_diverges(self, together, library, processes) -> None:
        """All stop with one message, no parameter moves, and nothing is saved."""
        found = together(library, processes)["diverged"]
        assert len(found) == processes
        assert {each["message"] for each in found} == {found[0]["message"]}
        assert "step 12 is not finite" in found[0]["message"]
        assert all(each["parameters kept"] and not each["saves"] for each in found)
