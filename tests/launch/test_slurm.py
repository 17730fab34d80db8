"""The batch script of Slurm."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lsgd.launch.__main__ import main
from lsgd.launch.options import read_request
from lsgd.launch.sbatch_options import FLAGS, OPTIONAL, SET_BY_LSGD, VALUED
from lsgd.launch.slurm import slurm_program_array, slurm_task

Printed = Callable[..., str]


LOGS = 'for w; do [[ $w == --output=* ]] && w=${w#*=} && echo >> "${w/\\%t/0}"; done\n'
"""What an srun does that starts process 0, which writes into its log."""


def run(
    script: str, folder: Path, srun: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run the batch script in a folder, with these lines for srun."""
    (folder / "srun").write_text(f"#!/bin/bash\n{srun}\n")
    (folder / "srun").chmod(0o755)
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", **variables},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def test_a_job_that_completes_has_trained(printed: Printed, tmp_path: Path) -> None:
    """Else it says that nothing has, also where an earlier start has left a log."""
    script = printed("slurm", "digits", "--np", "1")
    for _ in range(2):
        silent = run(script, tmp_path, "exit 0")
        assert silent.returncode == 1
        assert "runs/digits/slurm-1/logs/rank0.log: nothing has trained" in silent.stdout
        assert run(script, tmp_path, LOGS + "exit 0").returncode == 0
        assert run(script, tmp_path, LOGS + "exit 3").returncode == 3


@pytest.mark.parametrize("name", ["a,b", "a:b", "a b", "a\tb"])
def test_a_folder_whose_name_is_no_mount_is_refused(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """pyxis splits mounts at commas and colons, and its line for each of them at whitespace."""
    (tmp_path / name).mkdir()
    words = ["slurm", "digits", "--np", "1", "--container", "i", "--print"]
    monkeypatch.setenv("LSGD_DATA", f"/sets/{name}")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"lsgd: LSGD_DATA={f'/sets/{name}'!r} has whitespace")
    monkeypatch.chdir(tmp_path / name)
    assert main(words) == 2
    assert "has whitespace, a comma or a colon, which would" in capsys.readouterr().err


def mounts(script: str) -> list[str]:
    """What the container of the script sees of the machine."""
    found = re.search(r"--container-mounts=(\S+)", script)
    assert found
    pairs = found[1].split("\\,")
    assert all(pair.partition(":")[0] == pair.partition(":")[2] for pair in pairs)
    return [pair.partition(":")[0] for pair in pairs]


def test_a_container_sees_all_that_the_run_reads_and_writes(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("LSGD_DATA", "/sets")
    words = [
        "data.root=/data/imagenet", "data.index=/index/a", "data.skip_list=/lists/skips.txt",
        "run_dir=../runs/a",
    ]  # fmt: skip
    script = printed("slurm", "bs8k", *words, "--container", "image")
    expected = [
        str(tmp_path), "/data/imagenet", "/index/a", "/lists/skips.txt",
        str(tmp_path.parent / "runs/a"), "/sets",
    ]  # fmt: skip
    assert mounts(script) == expected
    # The variable of lsgd's own image would hide that of the job.
    assert "--container-env=LSGD_DATA" in script
    # It is there before the container is started.
    assert script.index("mkdir -p") < script.index("srun --cpu-bind")
    inside = printed("slurm", "bs8k", f"run_dir={tmp_path}/runs/a", "--container", "image")
    assert mounts(inside) == [str(tmp_path), "/sets"]


def test_a_container_sees_the_folders_that_an_array_writes_and_a_check_reads(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of run_dir is none of them, and need not exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    words = ["slurm", "digits", "--np", "1", "--container", "i"]
    assert mounts(printed(*words, "--array", "0-1")) == [str(tmp_path)]
    assert mounts(printed(*words, "run_dir=/r/a", "--array", "0-1")) == [str(tmp_path), "/r"]
    assert mounts(printed(*words, "run_dir=/r/a", "--check")) == [str(tmp_path)]
    there = str(tmp_path.parent)
    assert mounts(printed(*words, f"run_dir={there}", "--check")) == [str(tmp_path), there]


def test_a_container_sees_where_links_in_its_folder_lead(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the links say it, also if they lead to further ones; the default folders too."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here / "mine", tmp_path / "disk/runs", tmp_path / "disk/data"):
        folder.mkdir(parents=True)
    there.symlink_to("disk")
    (here / "runs").symlink_to(there / "runs")
    (here / "data").symlink_to("../there/data")
    for name, leads_to in (("inside", "mine"), ("again", "runs"), ("loop", "loop")):
        (here / name).symlink_to(leads_to)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PWD", str(here))
    words = ["slurm", "digits", "--np", "1", "--container", "i"]
    defaults = [str(there / "runs"), str(there / "data")]
    # A path within the folder may have any name.
    for run_dir in ("'inside/a b'", "again/a", "runs/a", "loop/a"):
        assert mounts(printed(*words, f"run_dir={run_dir}")) == [str(here), *defaults]
    (tmp_path / "disk/data").rmdir()
    script = slurm_task({"--container": "i"}, ["-m", "lsgd.study"], "a", "log")
    assert mounts(script) == [str(here), str(there / "runs")]


def test_the_file_of_an_image_has_an_absolute_path(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyxis looks for lsgd.sqsh in a registry; what is no file here is left as it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lsgd.sqsh").touch()
    cases = {
        "lsgd.sqsh": f"{tmp_path}/lsgd.sqsh",
        "./lsgd.sqsh": f"{tmp_path}/lsgd.sqsh",
        "/on/the/nodes.sqsh": "/on/the/nodes.sqsh",
        "registry.example#lsgd:1": "registry.example#lsgd:1",
    }
    for given, expected in cases.items():
        script = printed("slurm", "digits", "--np", "1", "--container", given)
        assert f" --container-image={expected} " in script


def test_a_container_sees_the_recipes_of_its_user(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By path or by name, and for the job of one process the file of the study."""
    here, elsewhere = tmp_path / "here", tmp_path / "mine"
    for folder in (here, elsewhere):
        folder.mkdir()
        (folder / "mine.yaml").write_text("defaults: [digits]\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PWD", str(here))
    words = ["--np", "1", "run_dir=a", "--container", "i"]
    assert mounts(printed("slurm", f"{elsewhere}/mine.yaml", *words)) == [str(here), str(elsewhere)]
    assert mounts(printed("slurm", "mine.yaml", *words)) == [str(here)]
    assert mounts(printed("slurm", "/in/the/image.yaml", *words)) == [str(here)]
    task = ["-m", "lsgd.study", f"+study='{elsewhere}/mine.yaml'", "seeds=[0]"]
    script = slurm_task({"--container": "i"}, task, "a", "log")
    assert mounts(script) == [str(here), str(elsewhere)]
    monkeypatch.setenv("LSGD_RECIPES", "../mine")
    assert mounts(printed("slurm", "mine", *words)) == [str(here), str(elsewhere)]


def test_memory(printed: Printed) -> None:
    """All of a whole machine, what the queue gives of a shared one, or what is asked for."""
    assert "#SBATCH --mem=0\n" in printed("slurm", "bs8k")
    assert "--mem" not in printed("slurm", "digits", "--np", "2", "--cpus", "4")
    for more in ([], ["--cpus", "4"]):
        assert "#SBATCH --mem=64G\n" in printed(
            "slurm", "digits", "--np", "2", "--mem", "64G", *more
        )


@pytest.mark.parametrize(
    "word", ["run_dir='läuf 2/a'", "run_dir=läuf\\ 2/a"], ids=["quotes", "backslash"]
)
def test_a_folder_that_needs_quotes(word: str, printed: Printed, tmp_path: Path) -> None:
    """Its logs lie where the run is, whose word stays as it is."""
    script = printed("slurm", "digits", word, "--np", "1")
    assert '#SBATCH --output="läuf 2/a.log"\n' in script
    done = run(script, tmp_path, LOGS + "printf '%s\\n' \"$@\"")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "läuf 2/a/logs").is_dir()
    lines = done.stdout.splitlines()
    assert "--output=läuf 2/a/logs/rank%t.log" in lines
    assert lines[-1] == word


@pytest.mark.parametrize(
    ("written", "log"),
    [
        ("runs/a/", "runs/a.log"),
        ("./runs//a", "runs/a.log"),
        ("../a", "../a.log"),
        ("/s/a/", "/s/a.log"),
    ],
)
def test_a_job_has_its_log_beside_its_folder(written: str, log: str, printed: Printed) -> None:
    """However the folder's path is written, and also with what is added to its name."""
    words = ["slurm", "digits", "--np", "1", f"run_dir={written}"]
    folder = log.removesuffix(".log")
    assert f"--output={log}" in options_of(printed(*words))
    assert f"--output={folder}-seed%a.log" in options_of(printed(*words, "--array", "0-2"))
    assert f"--output={folder}-check-%j.log" in options_of(printed(*words, "--check"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *((["run_dir=" + each], f"run_dir={each} must end in a name") for each in "./"),
        (["run_dir=a/.."], "run_dir=a/.. must end in a name"),
        (["run_dir=runs/%j"], "run_dir='runs/%j' has %"),
        (["run_dir='a\n#SBATCH --wrap=id'"], "run_dir='a\\n#SBATCH --wrap=id' has %, a backslash"),
        (["run_dir=runs/a\\\\b"], "run_dir='runs/a\\\\b' has %"),
        (["--time", "1:00 --wrap=id"], "--time is 1:00 --wrap=id, but must be"),
        (["--time", "1:00\n#SBATCH --wrap=id"], "--time is '1:00\\n#SBATCH"),
        (["--time", "2:00"], "--time 2:00 is 120 seconds for sbatch"),
        (["--time", "5", "--signal", "USR2@300"], "--time 5 is 300 seconds for sbatch, and the"),
        (["--time", "1", "--signal", "USR2"], "--time 1 is 60 seconds for sbatch, and the"),
        *(
            (["--signal", each], f"--signal is {each}, but must be TERM, USR1 or USR2")
            for each in ("B:USR2@90", "INT@90", "HUP", "QUIT@90", "USR2@0", "USR2@90s")
        ),
        (
            ["--comment", "a\n#SBATCH --wrap=id"],
            "--comment is 'a\\n#SBATCH --wrap=id', but a batch",
        ),
        (["--array", "0-4", "seed=3"], "seed=3 contradicts --array"),
        (["--array", "1,4-0"], "--array 1,4-0 must not have 4-0, which has no seed; write 0-4"),
        (["--array", "0-4 --wrap=id"], "--array is 0-4 --wrap=id, but must be seeds"),
        (
            ["--array", "0-4", "--check"],
            "--array 0-4 is a job for each seed, and --check needs one",
        ),
        (["--mail", "me"], "--mail is me, but must be the address of a person"),
        (["--setup", "no.sh"], "--setup no.sh is not a file"),
        (["--container", "i", "--mount", "/a,/b"], "--mount is /a,/b, but must be like"),
        (["--container", "i", "data.root=/a,/etc"], "data.root='/a,/etc' has whitespace, a comma"),
    ],
)
def test_no_value_is_more_than_one_option(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor a pattern of Slurm's, as a run folder would be whose log cannot be opened then."""
    assert main(["slurm", "digits", "--np", "1", *words, "--print"]) == 2
    assert capsys.readouterr().err.startswith(f"lsgd: {named}")


def test_a_recipe_of_an_image_is_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "a\n#SBATCH -D /", "--container", "i", "--print"]) == 2
    assert capsys.readouterr().err.startswith("lsgd: recipe='a\\n#SBATCH -D /' has %")


def options_of(script: str) -> list[str]:
    """The options of sbatch in a script."""
    return re.findall("^#SBATCH (.*)$", script, re.M)


def test_what_a_site_asks_for_is_passed_on(printed: Printed) -> None:
    """Quoted where sbatch would split it, and once where lsgd has a value of its own."""
    site = "--partition gpu --account phys --qos=long --constraint a&b --nodelist n[1-2] --hold"
    mine = "--mail me@example.org --signal R:USR1@60 --no-requeue --mail-type ALL --nice=-5"
    words = [*site.split(), *mine.split(), "--comment", "a 'b' #c"]
    lines = options_of(printed("slurm", "bs8k", *words))
    for line in (
        "--partition=gpu", "--account=phys", "--qos=long", "--constraint=a&b", "--nodelist=n[1-2]",
        "--hold", "--mail-user=me@example.org", "--mail-type=ALL", "--signal=R:USR1@60",
        "--no-requeue", "--comment=\"a 'b' #c\"", "--nice=-5",
    ):  # fmt: skip
        assert lines.count(line) == 1
    assert "--requeue" not in lines
    names = [line.partition("=")[0] for line in lines]
    assert len({*names}) == len(names)


def test_a_job_of_one_process_has_what_a_site_asks_of_every_job() -> None:
    """Without the resources of the others, and without their numbers of nodes."""
    site = {"--constraint": "cpu", "--clusters": "c2", "--wckey": "w", "--comment": "a b"}
    resources = {"--gres": "gpu:8", "--nodelist": "n[1-2]", "--mem": "4G", "--hold": ""}
    lines = options_of(slurm_task({**site, **resources}, ["-m", "lsgd.study"], "a", "log"))
    assert {"--constraint=cpu", "--clusters=c2", "--wckey=w", '--comment="a b"'} <= {*lines}
    assert not [line for line in lines if line.partition("=")[0] in resources]
    script = slurm_task({"--constraint": "[a*2&b*2]"}, ["-m", "lsgd.study"], "a", "log")
    assert "--constraint" not in script


def test_an_option_has_a_value_of_its_own_or_none(
    printed: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never the recipe that follows it."""
    options = ["--nice", "--propagate", "--no-kill", "--exclusive", "--get-user-env"]
    lines = options_of(printed("slurm", *options, "digits"))
    assert {*options} <= {*lines}
    valued = ["--nice=-5", "--propagate=NONE", "--no-kill=off", "--exclusive=mcs"]
    lines = options_of(printed("slurm", *valued, "digits", "--np", "1", "--cpus", "2"))
    assert {*valued} <= {*lines}
    assert not {*options} & {*lines}
    assert main(["slurm", "--nice", "100", "digits"]) == 2
    assert "write --nice=100" in capsys.readouterr().err
    more = printed("slurm", "digits", "--np", "1", "--array", "0-8:2,9", "--time", "0")
    assert {"--array=0-8:2,9", "--time=0"} <= {*options_of(more)}


@pytest.mark.parametrize(
    ("words", "is_advised"),
    [
        ("", False),
        ("--gpus 4", True),
        ("--gres gpu:a100:2", True),
        ("--gpus 4 --cpus 12", False),
        ("--gpus 4 --cpus-per-gpu 12", False),
        ("--gpus 4 --exclusive", False),
        ("--gpus 4 --nodes 2", False),
        ("--np 2", False),
        ("--np 2 --oversubscribe", True),
        ("--exclusive=user", True),
    ],
)
def test_a_shared_node_gives_one_core_to_a_process(
    words: str, is_advised: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "digits", "workers=16", *words.split(), "--print"]) == 0
    assert ("one core unless" in capsys.readouterr().err) == is_advised


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ("", True),
        ("--gpus 8", True),
        ("--gpus 1", False),
        ("--gpus 4 --exclusive", True),
        ("--gpus 4 --nodes 2", True),
        ("--gres gpu:a100:2", False),
        ("--gres gpu:1g.5gb:2", False),
        ("--gpus 8 --cpus 12", False),
        ("--exclusive=topo --cpus 12", True),
        ("--exclusive=user", False),
        ("--oversubscribe", False),
    ],
)
def test_a_part_of_a_node_is_not_the_whole(
    words: str, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "bs8k", *words.split(), "--print"]) == 0
    lines = options_of(capsys.readouterr().out)
    chosen = [word for word in words.split() if word.startswith("--exclusive=")]
    exclusive = [line for line in lines if line.startswith("--exclusive")]
    assert exclusive == (chosen or ["--exclusive"] * whole)
    assert ("--mem=0" in lines) == whole
    # The same GPUs are not requested twice.
    assert any(line.startswith("--gpus-per-node") for line in lines) == ("gres" not in words)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--gres gpu:8 --gpus 4", "--gres gpu:8 has 8 GPUs on each node, and --gpus 4 others"),
        (
            "--gres gpu:a100:4,gpu:h100:4",
            "--gres gpu:a100:4,gpu:h100:4 must not have several types",
        ),
        ("--gres gpu:h100=8", "--gres gpu:h100=8 must have a number of GPUs, such as gpu:h100:8"),
        ("--gres gpu:h100:0", "--gres gpu:h100:0 must have a number of GPUs, such as gpu:h100:8"),
        ("--mount /a:/b", "--mount /a:/b adds folders to a container; write --container"),
        ("--output a.log", "--output is set by lsgd itself; run_dir=PATH"),
        ("--node 2", "option --node does not exist; did you mean --nodes"),
        ("--zzz 2", "option --zzz does not exist; options of a job in sbatch's manual are passed"),
        ("--ntasks-per-gpu 2", "--ntasks-per-gpu is set by lsgd itself; a process has one GPU"),
        ("--status runs/a", "option --status does not exist; lsgd launch --status RUN prints the"),
    ],
)
def test_an_option_that_is_not_passed_on(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "bs8k", *words.split(), "--print"]) == 2
    assert capsys.readouterr().err.startswith(f"lsgd: {named}")


@pytest.mark.slurm
def test_every_option_of_a_job_in_sbatchs_help_is_known(tmp_path: Path) -> None:
    """To be passed on or to be explained; the others are of sbatch itself, or of its own images."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nNodeName=n\nPartitionName=p Nodes=ALL\n")
    said = subprocess.run(
        ["sbatch", "--help"], env=os.environ | {"SLURM_CONF": str(conf)}, capture_output=True,
        text=True, timeout=900,
    ).stdout  # fmt: skip
    names = {*re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", said, re.M)}
    ours = {"--nodes", "--cpus-per-task", "--gpus", "--mem", "--time", "--container"}
    of_sbatch = {
        "--help", "--input", "--quiet", "--test-only", "--uid", "--gid", "--usage", "--verbose",
        "--version", "--wait",
    }  # fmt: skip
    assert len(names) > 50
    assert names <= {*VALUED, *FLAGS, *OPTIONAL, *SET_BY_LSGD} | ours | of_sbatch


@pytest.mark.parametrize("folder", ["", "run_dir='it is $a'"])
def test_an_array_trains_one_seed_in_each_job(
    folder: str, printed: Printed, tmp_path: Path
) -> None:
    """Each in a folder of its own, which says which job it was."""
    script = printed("slurm", "digits", "--np", "1", "--array", "0-4%2", *filter(None, [folder]))
    assert "--array=0-4%2" in options_of(script)
    done = run(
        script, tmp_path, LOGS + "printf '%s\\n' \"$@\"",
        SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3", SLURM_JOB_NODELIST="n1",
    )  # fmt: skip
    trained = "it is $a-seed3" if folder else "runs/digits/slurm-7-seed3"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["seed=3", f"run_dir={trained}"]
    record = json.loads((tmp_path / trained / "logs/job.json").read_text())
    assert (record["job"], record["nodes"]) == ("7_3", "n1")
    assert (tmp_path / trained / record["log"]).name == f"{Path(trained).name}.log"


@pytest.mark.parametrize("variable", ["", "SBATCH_CLUSTERS", "SLURM_CLUSTERS"])
def test_a_job_on_another_cluster_says_so(
    variable: str, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of --status would ask its own."""
    if variable:
        monkeypatch.setenv(variable, "c2")
    option = [] if variable else ["--clusters", "c2"]
    script = printed("slurm", "digits", "run_dir=a", "--np", "1", *option)
    assert run(script, tmp_path, f"{LOGS}exit 0", SLURM_CLUSTER_NAME="c2").returncode == 0
    assert json.loads((tmp_path / "a/logs/job.json").read_text())["job"] == "1;c2"


@pytest.mark.parametrize(("words", "job"), [([], "7"), (["--array", "0-4"], "7_3")])
def test_a_preempted_job_requeues_itself_alone(
    words: list[str], job: str, printed: Printed, tmp_path: Path
) -> None:
    """One job of an array has the array's number as its own, and would requeue all the others."""
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "scontrol $*"\n')
    (tmp_path / "scontrol").chmod(0o755)
    done = run(
        printed("slurm", "digits", "--np", "1", *words), tmp_path, "exit 75",
        SLURM_JOB_ID="7", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3",
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1]) == (75, f"scontrol requeue {job}")


def test_a_hook_that_fails_ends_the_job(printed: Printed, tmp_path: Path) -> None:
    """One that is no bash is refused before."""
    hook = tmp_path / "it's.sh"
    hook.write_text("false\n")
    script = printed("slurm", "digits", "--np", "1", "--setup", str(hook))
    done = run(script, tmp_path, LOGS)
    assert (done.returncode, done.stdout) == (1, "lsgd: the last command of --setup failed\n")
    hook.write_text("if\n")
    assert main(["slurm", "digits", "--np", "1", "--setup", str(hook), "--print"]) == 2


@pytest.mark.parametrize("hook", ["set -Ceuo pipefail\ntrap 'exit 9' ERR", "trap : EXIT"])
def test_settings_of_a_hook_end_at_its_end(
    hook: str, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first start would end before srun, as no log exists, and none would be requeued."""
    programs = {"scontrol": "echo requeued", "python": 'shift; exec "$@"', "hook.sh": hook}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    words = ["digits", "--np", "1", "--setup", str(tmp_path / "hook.sh"), "run_dir=a"]
    started = printed("slurm", *words)
    searched = slurm_program_array(read_request("slurm", words), [], "a", "log", "0-1")
    for script in (started, started, searched):
        done = run(script, tmp_path, "exit 75", SLURM_ARRAY_JOB_ID="1", SLURM_ARRAY_TASK_ID="0")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (75, "requeued"), done.stderr


@pytest.mark.parametrize("hook", ["exit 0", "set -u; echo $nothing"])
def test_a_hook_that_ends_the_script_ends_it_with_1(
    hook: str, printed: Printed, tmp_path: Path
) -> None:
    """Slurm would call the job COMPLETED."""
    (tmp_path / "hook.sh").write_text(f"{hook}\n")
    script = printed("slurm", "digits", "--np", "1", "--setup", str(tmp_path / "hook.sh"))
    done = run(script, tmp_path, LOGS)
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert done.stdout.startswith("lsgd: --setup ended the job by exit or an error; write return")


def test_processes_get_what_the_hook_sets_whatever_sbatch_exports(
    printed: Printed, tmp_path: Path
) -> None:
    """sbatch --export=NONE sets SLURM_EXPORT_ENV=NONE; a hook may choose otherwise."""
    hook = tmp_path / "hook.sh"
    for line, passed in (("export A=b", "ALL"), ("export SLURM_EXPORT_ENV=A", "A")):
        hook.write_text(f"{line}\n")
        script = printed("slurm", "digits", "--np", "1", "--setup", str(hook), "--export", "NONE")
        done = run(script, tmp_path, f"{LOGS}echo $SLURM_EXPORT_ENV", SLURM_EXPORT_ENV="NONE")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, passed)
    task = slurm_task({"--setup": str(hook), "--container": "i"}, ["-m", "lsgd.study"], "a", "log")
    assert task.index("SLURM_EXPORT_ENV=ALL") < task.index("source") < task.index("exec srun")


def test_a_container_gets_more_mounts(printed: Printed) -> None:
    words = ["run_dir=/r/a", "--container", "i", "--mount", "/nvme:/data,/opt/x:/x:ro"]
    script = printed("slurm", "bs8k", *words)
    assert "/r/a:/r/a\\,/nvme:/data\\,/opt/x:/x:ro" in script
