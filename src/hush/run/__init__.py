"""All stages from one config, each done once: data → scan → (canaries) → plan → train → audit → report.

config and sections (the file) → folder (where results lie, and the record of finished stages) → job (what every stage
is given) → stages and stage_train (what they do) → pipeline (the table of stages, and running it) → forecast (what a
run would do). preflight refuses before the first stage what a later one would refuse.
"""

from hush.run.forecast import forecast
from hush.run.job import Watch
from hush.run.pipeline import Outcome, run_pipeline
from hush.run.stage_train import Interrupted

__all__ = ["Interrupted", "Outcome", "Watch", "forecast", "run_pipeline"]
