"""Plan a training: what each stage would need in machine-hours, memory, disk and network.

Examples:
    python jobs/plan.py --queries 540M --ads 360M --edges-per-node 40 --machine g5.2xlarge=8
    python jobs/plan.py --queries 693K --ads 312K --anchors 2.46M 656K --edges-per-node 38.87 4.74
    python jobs/plan.py --queries 1M --ads 1M --encoder bag --epochs 20 --show-costs

The figures are sizes times unit costs, which were measured or come from vendors' sheets:
docs/planning.md. Nothing is run.
"""

import sys

from rich.console import Console

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.planning.plan import what_breaks
from ramen_ray.planning.request import PlanRequest, plan_for
from ramen_ray.planning.tables import cost_table, plan_table, size_table
from ramen_ray.reports.page import terminal_table


def main() -> None:
    """Print the plan, and what would break."""
    request = parse_settings(PlanRequest, __doc__)
    plan = plan_for(request)
    tables = [
        size_table(plan, None if request.epochs else request.preset),
        plan_table(plan),
        *([cost_table()] if request.show_costs else []),
    ]
    console = Console(width=140)
    for table in tables:
        console.print(terminal_table(table), "")
    breaks = what_breaks(plan)
    print("would break:" if breaks else "nothing would break that the plan knows of")
    for one in breaks:
        print(f"- {one}")


if __name__ == "__main__":
    sys.exit(run_job(main))
