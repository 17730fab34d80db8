"""Runs at MLflow: one is found by a tag, and the history of one metric says how far it has come."""

import os
from collections.abc import Sequence

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus, RunTag

from lsgd.track.about import About, Conclusion
from lsgd.track.steps import TrackedStep

EXPERIMENT = "lsgd"
"""The experiment, unless MLFLOW_EXPERIMENT_NAME says another."""
ID = "lsgd.id"
KIND = "mlflow.experimentKind"
METRICS, PARAMS = 1000, 100
"""How many a request of MLflow may have."""


class MlflowRun:
    """A run at MLflow."""

    def __init__(self, about: About) -> None:
        # Who opens it waits and tries again, and knows when to stop, which these do not.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = mlflow.set_experiment(name).experiment_id
        self._client = MlflowClient()
        # So its page opens the runs as those of a model that is trained.
        self._client.set_experiment_tag(experiment, KIND, "custom_model_development")
        # Looked for even at the first time: the answer to what has made it may have been lost.
        found = self._client.search_runs([experiment], f"tags.`{ID}` = '{about.id}'")
        if found:
            run = found[0]
        else:
            began = round(1000 * about.began)
            run = self._client.create_run(experiment, began, {ID: about.id}, about.name)
        self._id = run.info.run_id
        self.where = _where(
            mlflow.get_tracking_uri(), f"#/experiments/{experiment}/runs/{self._id}"
        )
        self._client.update_run(self._id, RunStatus.to_string(RunStatus.RUNNING))
        config = [Param(k, str(v)) for k, v in about.config.items() if k not in run.data.params]
        for first in range(0, len(config), PARAMS):
            self._client.log_batch(self._id, params=config[first : first + PARAMS])
        self._client.log_batch(self._id, tags=[RunTag(k, v) for k, v in about.tags.items()])

    def last_step(self) -> int:
        """The last step whose `examples` it has, which every step has."""
        history = self._client.get_metric_history(self._id, "examples")
        return max((metric.step for metric in history), default=0)

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Send them by as few requests as may be; MLflow takes each whole, or not at all."""
        request: list[Metric] = []
        for step in steps:
            if len(request) + len(step.values) > METRICS:
                self._client.log_batch(self._id, request)
                request = []
            # In milliseconds; MLflow takes a metric that it has, of the same time, only once.
            time = round(1000 * step.time)
            request += [Metric(key, value, time, step.number) for key, value in step.values.items()]
        self._client.log_batch(self._id, request)

    def end(self, conclusion: Conclusion) -> None:
        """Note the outcome as a tag, and what became of the run."""
        status = RunStatus.FAILED if conclusion.diverged else RunStatus.KILLED
        if conclusion.finished:
            status = RunStatus.FINISHED
        self._client.set_tag(self._id, "outcome", conclusion.text)
        # set_terminated would print lines of its own.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        ended = round(1000 * conclusion.written)
        self._client.set_terminated(self._id, RunStatus.to_string(status), ended)


def _where(uri: str, page: str) -> str:
    """Where people see a run: on this page of a server, also one that is still to be started."""
    if uri.startswith("sqlite:"):
        return f"{uri}; type mlflow server --backend-store-uri {uri} and open its page /{page}"
    return f"{uri}/{page}"
