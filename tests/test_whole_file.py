"""A file is there whole, or as it was before."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.whole_file import check_whole, write_whole

# A double of a full disk: a process that may write no file beyond 1000 bytes.
FULL_DISK = """
import resource, sys
from pathlib import Path
from trtspec.whole_file import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_whole(Path(sys.argv[1]), "new" * 1000)
except OSError as error:
    print(error.strerror)
"""


def test_what_cannot_be_written_to_its_end_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("old")
    said = subprocess.run([sys.executable, "-c", FULL_DISK, file], capture_output=True, text=True, check=True)
    assert said.stdout == "File too large\n"
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "run.json", tmp_path / "latest.json"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(link, "neu: ü\r\n")
    assert link.is_symlink()
    assert file.read_bytes() == "neu: ü\r\n".encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_a_new_file_has_the_mode_that_others_get(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    write_whole(tmp_path / "new", "text")
    assert (tmp_path / "new").read_text() == "text"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


SAYING = """
from pathlib import Path
import sys
from trtspec.whole_file import write_whole
print("table")
write_whole(Path(sys.argv[1]), "page\\n")
print("end")
"""


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_descriptor_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAYING, name]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "table\npage\nend\n"
    with (tmp_path / "out").open("a") as out:
        subprocess.run(command, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "table\npage\nend\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_links_that_lead_nowhere_are_an_error_of_the_system(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(OSError, match="Too many levels"):
        write_whole(one, "text")
    assert sorted(tmp_path.iterdir()) == [one, other]


def test_what_no_utf8_has_is_written_as_its_escape(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", "model m\ud800")
    assert (tmp_path / "page").read_text() == "model m\\ud800"


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_whole(tmp_path / "plot.png", b"\x89PNG\r\n\xff")
    assert (tmp_path / "plot.png").read_bytes() == b"\x89PNG\r\n\xff"


@pytest.mark.parametrize("name", ["none/run.json", "/proc/run.json", "/dev/null/run.json"])
def test_a_file_that_cannot_be_written_is_known_before(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file|Not a directory"):
        check_whole(tmp_path / name)


def test_a_look_at_a_file_that_can_be_written_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    check_whole(file)
    assert not list(tmp_path.iterdir())
    file.write_text("old")
    before = file.stat()
    for name in (file, Path("/dev/null"), Path("/dev/stdout")):
        check_whole(name)
    assert file.stat() == before


def test_a_file_that_may_be_written_in_a_folder_that_may_not_is_written_in_place(tmp_path: Path) -> None:
    """The folder's mode would not do: root may write anywhere."""
    file = tmp_path / "run.json"
    file.write_text("old")
    code = (
        "import os, sys; from pathlib import Path; from trtspec.whole_file import check_whole, write_whole\n"
        "file, real = Path(sys.argv[1]), os.access\n"
        "os.access = lambda path, mode: Path(path).is_file() and real(path, mode)\n"
        "check_whole(file); write_whole(file, 'new')\n"
    )
    inode = file.stat().st_ino
    subprocess.run([sys.executable, "-c", code, file], check=True)
    assert (file.read_text(), file.stat().st_ino) == ("new", inode)
