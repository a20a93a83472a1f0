"""One door for text in; files are whole or not there, devices and pipes stay what they are."""

import gzip
import io
import os
import stat
import subprocess
import sys

import pytest
from conftest import ROOT

from vllm_tuning.reading.files import check_writable, read_text, whole_file, write_whole
from vllm_tuning.units import InputError


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    kept = tmp_path / "kept.csv"
    kept.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(kept) as out:
        out.write(b"half")
        raise ZeroDivisionError
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


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "link", "/dev/null"):
        before = os.stat(path)
        for write in (check_writable, lambda path: write_whole(path, "text")):
            with pytest.raises(InputError, match=f"^{path}: not a regular file.* redirect .* >$"):
                write(path)
        assert os.path.samestat(os.stat(path), before)


def test_standard_output_is_refused_also_where_it_is_a_file(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from vllm_tuning.reading import write_whole; write_whole('/dev/stdout', 'x')",
        ],
        stdout=(tmp_path / "out").open("w"),
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert "/dev/stdout: not a regular file" in done.stderr and done.returncode


def test_where_nothing_can_be_written_the_path_is_named(tmp_path):
    for fails in (check_writable, lambda path: write_whole(path, "text")):
        with pytest.raises(OSError) as caught:
            fails(tmp_path / "none/file")
        assert caught.value.filename == str(tmp_path / "none/file")
        with pytest.raises(InputError, match=f"^{tmp_path}: a directory; expected"):
            fails(tmp_path)
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------- the door in


TEXT = "Größe\n1\n" * 300_000  # several blocks


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_text_is_read_however_it_was_written(tmp_path, monkeypatch, encoding, pack):
    data = pack(TEXT.encode(encoding))
    (tmp_path / "a.txt").write_bytes(data)
    assert read_text(tmp_path / "a.txt", "a text") == TEXT
    assert read_text(io.BytesIO(data), "a text") == TEXT
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_text("-", "a text") == TEXT
    assert read_text("-", "a text") == ""  # it is empty now, and still open


@pytest.mark.parametrize(
    "data, complaint",
    [
        (b"a\0b", "holds NUL bytes"),
        (b"\xfe\x81", "not a text in UTF-8 or UTF-16"),
        (b"12345678\n" * 2**18, "larger than 2 MiB"),
        (gzip.compress(bytes(2**22)), "larger than 2 MiB"),
        (gzip.compress(os.urandom(2**16))[:-9], "cannot be read: "),
        (b"\x1f\x8bgarbage", "cannot be read: "),
    ],
)
def test_what_is_no_text_gets_one_line_with_what_would_be_right(tmp_path, data, complaint):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.txt: {complaint}.*; expected a poem$") as caught:
        read_text(tmp_path / "a.txt", "a poem", 2**21)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("", "a directory"),
        ("none", "cannot be read: No such file or directory"),
        ("a\0b", "cannot be read: "),
        ("a" * 5000, "cannot be read: File name too long"),
    ],
)
def test_a_path_that_cannot_be_read_is_named(tmp_path, name, complaint):
    with pytest.raises(InputError, match=f"{complaint}.*; expected a poem$"):
        read_text(f"{tmp_path}/{name}", "a poem")


def test_an_endless_file_is_left_at_its_bound():
    with pytest.raises(InputError, match=r"^/dev/zero: larger than 1 MiB"):
        read_text("/dev/zero", "a poem", 2**20)
