"""What people read: text, HTML, the executed notebook."""

from .answer_summary import answer_summary, fit_summary, launches_summary
from .budget_summary import capacity_summary
from .contract import fit_json, launch_json, measured_json, recommend_json, recommend_yaml
from .load_summary import check_summary
from .measure_text import measured_text, plan_text, step_text
from .page import write_reports
from .simulation_summary import simulation_summary
from .summary import Summary, warnings

__all__ = [
    "Summary",
    "answer_summary",
    "capacity_summary",
    "check_summary",
    "fit_json",
    "fit_summary",
    "launch_json",
    "launches_summary",
    "measured_json",
    "measured_text",
    "plan_text",
    "recommend_json",
    "recommend_yaml",
    "simulation_summary",
    "step_text",
    "warnings",
    "write_reports",
]
