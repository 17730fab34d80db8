import torch

from lsgd.job.device import cpu, device_name


def test_a_cpu_is_told_by_its_model_and_cores() -> None:
    name = device_name(torch.device("cpu"))
    assert name.startswith(f"{cpu()}, ")
    assert f"cores, threads per process: {torch.get_num_threads()}" in name
