"""What people read: text, HTML, the executed notebook."""

from .answer_summary import answer_summary, fit_summary, launches_summary, recommendation
from .budget_summary import capacity_summary
from .contract import (
    fit_json,
    launch_json,
    measured_json,
    recommend_args,
    recommend_json,
    recommend_yaml,
)
from .load_summary import check_summary
from .measure_summary import measured_summary, missing_summary, plan_summary
from .page import write_reports
from .simulation_summary import simulation_summary
from .summary import Summary, text_of, warnings
from .throughput_summary import LoadsToMake, throughput_json, throughput_summary

__all__ = [
    "LoadsToMake",
    "Summary",
    "answer_summary",
    "capacity_summary",
    "check_summary",
    "fit_json",
    "fit_summary",
    "launch_json",
    "launches_summary",
    "measured_json",
    "measured_summary",
    "missing_summary",
    "plan_summary",
    "recommend_args",
    "recommend_json",
    "recommend_yaml",
    "recommendation",
    "simulation_summary",
    "text_of",
    "throughput_json",
    "throughput_summary",
    "warnings",
    "write_reports",
]
