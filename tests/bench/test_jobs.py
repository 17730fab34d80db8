"""What the scaling over jobs computes; test_job_launches.py starts them."""

from lsgd.bench import scaling


def test_efficiency_is_speed_by_processes() -> None:
    """3 times the speed on 4 processes is 75 %."""
    speeds = {"1": [100.0] * 6, "4": [300.0] * 6}
    job = {"over": "x", "threads": 1, "images": 8, "workers_per_pass": 2}
    jobs = dict.fromkeys(speeds, job)
    [_, _, one, four] = scaling.table("weak", speeds, jobs, cores=4).splitlines()
    cells = [cell.strip() for cell in four.split("|")[1:-1]]
    assert one.split("|")[-2].strip() == "100 %"
    assert cells == ["4, x", "1, threads: 1", "8", "2", "300 (300 to 300)", "75 % (75 to 75)"]
