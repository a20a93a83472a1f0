"""DIR of ``measure``: launches.csv, verify.csv and the logs, for one driver at a time."""

import fcntl
import os
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path

from ..launch import Launch
from ..reading import read_launches, write_launches
from ..units import InputError

PATIENCE = 5  # seconds: what a killed driver was just starting holds the lock for a moment
TABLE, VERIFY, LOGS = "launches.csv", "verify.csv", "logs"


class Folder:
    """What was launched already is in the tables: a launch that failed too, with its reason."""

    def __init__(self, path):
        self.path = Path(path)

    def __enter__(self) -> "Folder":
        (self.path / LOGS).mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY)
        deadline = time.monotonic() + PATIENCE
        while not _locked(self.lock):
            if time.monotonic() > deadline:
                os.close(self.lock)
                raise InputError(
                    f"{self.path}: another measure works in this folder; wait for it, "
                    "or give another -o DIR"
                )
            time.sleep(0.05)
        for table in (TABLE, VERIFY):
            for left in self.path.glob(f".{table}.*"):  # of a driver that was killed as it wrote
                left.unlink()
        return self

    def __exit__(self, *_) -> None:
        os.close(self.lock)

    def launches(self, table: str = TABLE) -> list[Launch]:
        path = self.path / table
        return read_launches(path) if path.exists() else []

    def made(self, flags: tuple[int, int], table: str = TABLE) -> list[Launch]:
        """The launches at these flags, [] where they are still to be made."""
        log = f"{self.log(flags).name}:"
        return [each for each in self.launches(table) if (each.source or "").startswith(log)]

    def add(
        self, launches: list[Launch], flags: tuple[int, int], table: str = TABLE
    ) -> list[Launch]:
        """Records of a log into a table, whole or not at all: under the log's name, with the flags
        it was started with where it has none."""
        seqs, tokens = flags
        added = [
            replace(
                launch,
                source=f"{self.log(flags).name}:{launch.where.rpartition(':')[2]}",
                max_num_seqs=launch.max_num_seqs or seqs,
                max_num_batched_tokens=launch.max_num_batched_tokens or tokens,
            )
            for launch in launches
        ]
        write_launches([*self.launches(table), *added], self.path / table)
        return added

    def log(self, flags: tuple[int, int]) -> Path:
        return self.path / LOGS / f"mns{flags[0]}-mnbt{flags[1]}.log"

    def begin_log(self, flags: tuple[int, int], command: list[str]) -> Path:
        """A new file that holds the command, so that a folder serves one command only."""
        path = self.log(flags)
        path.unlink(missing_ok=True)  # a killed driver's server may still write into the old one
        path.write_text(f"+ {shlex.join(command)}\n", encoding="utf-8")
        return path

    def check(self, command: list[str]) -> None:
        """Raises InputError where the folder holds launches of another command, or other ones."""
        for launch in (*self.launches(), *self.launches(VERIFY)):
            if not re.match(r"mns\d+-mnbt\d+\.log:", launch.source or ""):
                raise InputError(
                    f"{launch.where}: measure did not make this launch; give another -o DIR"
                )
        for path in sorted((self.path / LOGS).glob("mns*.log")):
            with path.open(encoding="utf-8", errors="replace") as file:
                first = file.readline().removeprefix("+ ").rstrip("\n")
            if first and not first.startswith(shlex.join(command) + " --max-num-seqs "):
                raise InputError(
                    f"{path}: was made by another command, {first[:200]!r}; give another -o DIR"
                )


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
