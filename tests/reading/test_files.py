"""Files are whole or not there; devices and pipes stay what they are."""

import os
import stat
import threading

import pytest

from vllm_tuning.reading.files import check_writable, whole_file, write_whole


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    kept = tmp_path / "kept.csv"
    kept.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(kept) as out:
        out.write(b"half")
        1 / 0
    assert kept.read_text() == "old" and os.listdir(tmp_path) == ["kept.csv"]
    write_whole(kept, "new")
    assert kept.read_text() == "new" and stat.S_IMODE(kept.stat().st_mode) & 0o044


def test_a_full_disk_is_named(tmp_path):
    with pytest.raises(OSError) as caught, whole_file(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path / "out") and os.listdir(tmp_path) == []


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(10)
    assert got == ["text"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_not_replaced():
    write_whole("/dev/null", "text")
    check_writable("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["", "none/file"])
def test_where_nothing_can_be_written_the_path_is_named(tmp_path, name):
    for fails in (check_writable, lambda path: write_whole(path, "text")):
        with pytest.raises(OSError) as caught:
            fails(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
    assert os.listdir(tmp_path) == []
