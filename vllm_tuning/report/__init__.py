"""What people read: text, HTML, the executed notebook."""

from .budget_text import capacity_text
from .contract import fit_json, launch_json, measured_json, recommend_json, recommend_yaml
from .load_text import check_text
from .measure_text import measured_text, plan_text, step_text
from .page import write_reports
from .scheduler_text import simulation_text
from .text import answer_text, fit_text, launches_text

__all__ = [
    "answer_text",
    "capacity_text",
    "check_text",
    "fit_json",
    "fit_text",
    "launch_json",
    "launches_text",
    "measured_json",
    "measured_text",
    "plan_text",
    "recommend_json",
    "recommend_yaml",
    "simulation_text",
    "step_text",
    "write_reports",
]
