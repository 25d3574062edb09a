"""Tracking of stage runs in MLflow.

`StageRun` is what the runner uses; it imports nothing heavy. `python -m stages.tracking` is the command line. Only
stages.tracking.store imports MLflow; the recorder process and the command line are its users.
"""

from stages.tracking.client import PIPELINE_RUN, StageRun, TrackerFailed

__all__ = ["PIPELINE_RUN", "StageRun", "TrackerFailed"]
