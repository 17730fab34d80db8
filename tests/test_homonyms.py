from pathlib import Path

from homonyms import homonyms


def test_a_name_in_two_modules_is_a_homonym(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "a.py").write_text("class Step: ...\nclass _Own: ...\nLIMIT = 3\n")
    (tmp_path / "rules" / "b.py").write_text(
        "Step = dict[str, float]\nclass _Own: ...\nLIMIT = 4\n"
    )
    assert [*homonyms(tmp_path)] == ["Step"]


def test_lsgd_has_none() -> None:
    assert homonyms() == {}
