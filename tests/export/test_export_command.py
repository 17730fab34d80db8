from pathlib import Path

import pytest
from helpers.capabilities import require_capability
from helpers.exported import trained_learner
from helpers.usage_errors import usage_error

from lsgd.export import __main__ as command
from lsgd.export.__main__ import main
from lsgd.export.network import FORMATS
from lsgd.installation import install_command
from lsgd.run.checkpoint import FILE


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    trained_learner("small_resnet", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return "run"


def test_a_file_says_where_it_is_and_is_not_overwritten(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own name has recipe, seed and step; --out may stand among words; a file or a folder."""
    monkeypatch.setattr(command, "is_installed", lambda name: True)  # none is imported
    assert main([f"{run}/{FILE}", "--to", "torchvision"]) == 0
    assert "after step 2: digits-seed0-step2.pth\n" in capsys.readouterr().out
    assert main([run, "--to", "torchvision", "--out", "a.pth", "val_batch=7"]) == 0
    kept = Path("a.pth").read_bytes()
    said = usage_error(main, capsys, run, "--to", "safetensors", "--out", "a.pth")
    assert said.startswith("lsgd: --out a.pth exists already and is not overwritten; write")
    said = usage_error(main, capsys, run, "--to", "torchvision")
    assert said.startswith("lsgd: --out digits-seed0-step2.pth exists already")
    assert Path("a.pth").read_bytes() == kept
    assert sorted(map(str, Path().iterdir())) == ["a.pth", "digits-seed0-step2.pth", "run"]


def test_what_cannot_be_written_is_refused_before_the_network_is_built(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing folder, and a link that leads nowhere, also of the default name."""
    monkeypatch.setattr(command, "build_exported_network", lambda *_: pytest.fail("it is built"))
    Path("digits-seed0-step2.pth").symlink_to("nowhere")
    for words, sentence in (
        (["--out", "missing/a.pth"], "--out missing/a.pth cannot be written, as missing is not a"),
        ([], "--out digits-seed0-step2.pth exists already"),
    ):
        said = usage_error(main, capsys, run, "--to", "torchvision", *words)
        assert said.startswith(f"lsgd: {sentence}")
    Path("hub").symlink_to("nowhere")
    monkeypatch.setattr(command, "is_installed", lambda name: True)
    said = usage_error(main, capsys, run, "--to", "hub", "--out", "hub")
    assert said.startswith("lsgd: --out hub exists already")


def test_an_export_that_fails_leaves_nothing(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_capability("export")

    def card(exported: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("lsgd.export.hub.model_card", card)
    assert main([run, "--to", "hub", "--out", "a"]) == 130
    assert not Path("a").exists()
    capsys.readouterr()
    assert "a/b.pth cannot be written" in usage_error(
        main, capsys, run, "--to", "torchvision", "--out", "a/b.pth"
    )


@pytest.mark.parametrize(("form", "library"), [("onnx", "onnxscript"), ("hub", "safetensors")])
def test_a_missing_library_is_named(
    form: str, library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run is looked for."""
    monkeypatch.setattr(command, "is_installed", lambda name: name != library)
    said = usage_error(main, capsys, "nowhere", "--to", form)
    assert said == (
        f"lsgd: --to {form} needs {library}, which is not installed; run "
        f"{install_command('export')}\n"
    )
    monkeypatch.setattr(command, "is_installed", lambda name: name != "huggingface_hub")
    said = usage_error(main, capsys, "nowhere", "--to", "hub", "--push", "me/digits")
    assert said.startswith("lsgd: --push needs huggingface_hub, which is not installed")


def test_words_that_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--to hub" in usage_error(main, capsys, "run", "--to", "onnx", "--push", "me/digits")
    assert "nowhere cannot be read" in usage_error(main, capsys, "nowhere", "--to", "torchvision")
    assert "--to: keras does not exist; write one of torchvision" in usage_error(
        main, capsys, "run", "--to", "keras"
    )


def test_every_form_has_its_libraries() -> None:
    assert {*FORMATS, "push"} == command.LIBRARIES.keys()
