"""Numbers for MLflow: a run of its own for each strategy.

Where they go to is as MLflow has it: `MLFLOW_TRACKING_URI`, or a database in this folder.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corsage.app.tracking.tracker import Numbers, Part, Tracker, group_of
from corsage.core.files import sealed, unsealed, write_atomically

PATIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a server that is away must not hold up a round
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # what a run is like is nobody's business
}
"""What is set unless the user says otherwise."""
KEPT = "mlflow.json"
"""Which run of MLflow's it is, in the strategy's folder."""
KEYS_IN_A_MESSAGE = 100
"""Keys that MLflow takes in one message."""


def connected() -> tuple[Any, str]:
    """A client, and the experiment: `MLFLOW_EXPERIMENT_NAME`, or `corsage`; made if need be."""
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    client, name = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME") or "corsage"
    found = client.get_experiment_by_name(name)
    return client, found.experiment_id if found else client.create_experiment(name)


class MLflow(Tracker):
    """Tells an MLflow server, or a database; a run that is resumed goes on in the same one."""

    name = "mlflow"

    def begin(self, part: Part) -> int:
        """The run there; its keys are parameters, which MLflow never changes."""
        self.client, experiment = connected()
        self.strategy, kept = part.strategy, self._kept()
        if kept:
            self.run = str(kept["run"])
            self.client.update_run(self.run, status="RUNNING")
            return int(self.client.get_run(self.run).data.metrics.get("round", 0))
        tags = {"corsage.strategy": part.strategy, "corsage.run": part.experiment}
        if part.group:
            tags["corsage.group"] = part.group
        self.run = self.client.create_run(experiment, tags=tags, run_name=part.title).info.run_id
        if self.own:
            write_atomically(self.own / KEPT, sealed({"run": self.run}))
        self._tell_keys(part.keys)
        return 0

    def _kept(self) -> dict[str, Any]:
        """The content that an earlier attempt wrote down; none in a new run."""
        try:
            return unsealed(self.own / KEPT) if self.own else {}
        except FileNotFoundError:
            return {}
        except ValueError:
            self.note(f"mlflow: {KEPT} is damaged: MLflow gets a new run.")
            return {}

    def _tell_keys(self, keys: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        told = [Param(key, str(value)) for key, value in keys.items()]
        for first in range(0, len(told), KEYS_IN_A_MESSAGE):
            self.client.log_batch(self.run, params=told[first : first + KEYS_IN_A_MESSAGE])

    def log(self, number: int, values: Numbers) -> None:
        """A batch; its last number says that all of it is there."""
        self._log(number, {**values, "round": float(number)})

    def _log(self, number: int, values: Numbers) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        told = [Metric(name, value, now, number) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=told)

    def finish(self, number: int, rows: Mapping[str, Numbers]) -> None:
        """All rows at the last round, and that the run has ended."""
        for row, values in rows.items():
            group = group_of(row, self.strategy)
            self._log(number, {f"{group}/{name}": value for name, value in values.items()})
        self.client.set_terminated(self.run, "FINISHED")

    def leave(self, report: Path | None, ended: bool) -> None:
        """The report as an artifact; or that the strategy has no results."""
        if not ended:
            self.client.set_terminated(self.run, "FAILED")
        elif report:
            self.client.log_artifact(self.run, str(report))
