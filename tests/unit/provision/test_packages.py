"""Packages against pins. Goal: whatever was done to a file of one, it is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.provision.packages import (
    altered_files,
    clear_way,
    distributions,
    inspect,
)
from inferd.provision.recipes import Pin
from tests.unit.provision.site_packages import install, install_all, pins_of

FILES = ("alpha/__init__.py", "alpha/b.py", "beta.py", "../../bin/beta", "torch/__init__.py")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    made = tmp_path / "lib" / "python3.11" / "site-packages"
    install_all(made)
    return made


def faults(site: Path, *, every_file: bool = True) -> list[str]:
    return [str(fault) for fault in inspect(site, pins_of(), every_file=every_file).faults]


def test_what_pip_left_is_sound(site: Path) -> None:
    found = inspect(site, pins_of(), every_file=True)
    assert found.faults == ()
    assert found.versions == {"alpha": "1.0", "beta-two": "2.0.1", "torch": "2.13.0+cpu"}
    assert found.sound_bytes > sum((site / file).stat().st_size for file in FILES)


def test_an_empty_or_absent_folder_has_every_fault(tmp_path: Path) -> None:
    expected = ["alpha: not installed", "beta-two: not installed", "torch: not installed"]
    assert faults(tmp_path / "nowhere") == expected
    assert faults(tmp_path) == expected


@given(file=st.sampled_from(FILES), cut=st.booleans())
def test_each_missing_or_cut_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, file: str, cut: bool
) -> None:
    site = tmp_path_factory.mktemp("site") / "lib" / "python3.11" / "site-packages"
    install_all(site)
    if cut:
        (site / file).write_text("")
    else:
        (site / file).unlink()
    (fault,) = faults(site)
    assert file in fault
    assert ("0 bytes instead of" in fault) is cut


def test_a_removed_package_folder_is_found(site: Path) -> None:
    shutil.rmtree(site / "alpha")
    assert faults(site) == ["alpha: alpha/__init__.py is missing"]
    # The quick look trusts pip's list.
    assert faults(site, every_file=False) == []


def test_another_version_is_found(site: Path) -> None:
    (site / "alpha-1.0.dist-info").rename(site / "alpha-0.9.dist-info")
    assert faults(site) == ["alpha: version 0.9 instead of 1.0"]


def test_two_versions_at_once_are_found(site: Path) -> None:
    install(site, "alpha", "0.9", {})
    assert faults(site) == ["alpha: 2 versions at once: 0.9, 1.0"]


@pytest.mark.parametrize("text", [None, "", "alpha/__init__.py,sha256=x,6\n", "a,b\n", "a,b,c\n"])
@pytest.mark.parametrize("every_file", [False, True])
def test_a_list_of_files_that_is_missing_or_cut_is_found(
    site: Path, text: str | None, every_file: bool
) -> None:
    path = site / "alpha-1.0.dist-info" / "RECORD"
    path.unlink()
    if text is not None:
        path.write_text(text)
    expected = ["alpha: its list of files is missing or unreadable"]
    assert faults(site, every_file=every_file) == expected


def test_other_contents_of_the_same_size_are_found_by_reading(site: Path) -> None:
    assert list(altered_files(site, pins_of())) == []
    (site / "beta.py").write_text("B = 3\n")
    assert faults(site) == []
    (line,) = altered_files(site, pins_of())
    assert line == "beta-two: beta.py has other contents than it was installed with"


def test_a_file_that_two_packages_bring_is_right_for_both(site: Path) -> None:
    install(site, "gamma", "3.0", {"beta.py": "GAMMA = 3\n"})
    pins = [*pins_of(), Pin("gamma", "3.0")]
    assert inspect(site, pins, every_file=True).faults == ()
    assert list(altered_files(site, pins)) == []
    (site / "beta.py").write_text("neither\n")
    assert len(inspect(site, pins, every_file=True).faults) == 2
    assert len(list(altered_files(site, pins))) == 2


def test_a_broken_package_makes_way_for_pip(site: Path) -> None:
    (site / "~lpha").mkdir()
    (site / "~orch.py").write_text("")
    (site / "beta.py").unlink()
    broken = inspect(site, pins_of(), every_file=True).faults
    clear_way(site, broken)
    assert set(distributions(site)) == {"alpha", "torch"}
    assert not list(site.glob("~*"))


def test_nothing_is_cleared_where_nothing_is(tmp_path: Path) -> None:
    found = inspect(tmp_path / "nowhere", pins_of(), every_file=True)
    clear_way(tmp_path / "nowhere", found.faults)
