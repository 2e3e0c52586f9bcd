"""All stages in one go, each done once: data → scan → (canaries) → plan → train → audit → report.

folder (where things lie, one process at a time) -> record (what is done, under which inputs) -> job (what every stage
is given) -> stage_* (the stages) -> share (what may leave) -> beforehand (what is refused before the first) -> run
(their order, and what need not be done again), forecast (what would be done). inside: what other commands look for in
such a folder.
"""

from hush.run.forecast import forecast
from hush.run.job import Watch
from hush.run.pipeline import Outcome, run_pipeline
from hush.run.stage_train import Interrupted

__all__ = ["Interrupted", "Outcome", "Watch", "forecast", "run_pipeline"]
