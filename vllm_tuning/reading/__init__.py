"""From files to records: server logs, tables, lengths, load runs, /metrics."""

from .files import check_writable, read_text, whole_file, write_whole
from .json_records import read_json
from .kinds import not_expected
from .lengths import read_lengths
from .load_runs import LoadRun, read_load_runs
from .log import read_log
from .log_formats import FATAL
from .log_messages import arguments
from .metrics import Scrape, parse_scrapes, read_scrapes, stamped
from .scrape_series import ScrapeSeries, lengths_of
from .sources import Source, is_log, logs_in, read_source, sources_of
from .tables import COLUMNS, DATA, locate, read_launches, write_launches

__all__ = [
    "COLUMNS",
    "DATA",
    "FATAL",
    "LoadRun",
    "Scrape",
    "ScrapeSeries",
    "Source",
    "arguments",
    "check_writable",
    "is_log",
    "lengths_of",
    "locate",
    "logs_in",
    "not_expected",
    "parse_scrapes",
    "read_json",
    "read_launches",
    "read_lengths",
    "read_load_runs",
    "read_log",
    "read_scrapes",
    "read_source",
    "read_text",
    "sources_of",
    "stamped",
    "whole_file",
    "write_launches",
    "write_whole",
]
