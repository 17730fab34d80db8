"""The MLflow tracker: a tag identifies a run, and the history of one metric gives its last step."""

import os
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TypeVar

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Param, RunStatus, RunTag
from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

from lsgd.errors import UsageError
from lsgd.sanitizing import mask_passwords
from lsgd.track.run_info import RunOutcome, TrackedRunInfo
from lsgd.track.steps import TrackedStep

EXPERIMENT = "lsgd"
"""The default experiment; MLFLOW_EXPERIMENT_NAME overrides it."""
ID = "lsgd.id"
KIND = "mlflow.experimentKind"
CHANGED = "changed."
"""The beginning of the tag with the value of a field that has changed since the run's start."""
METRICS, AT_ONCE = 1000, 100
"""The most metrics, and the most parameters or tags, in one request to MLflow."""
LONGEST_NAME = 250
"""The most characters in the name of a metric or parameter at MLflow."""
T = TypeVar("T")


class MlflowRun:
    """A run at MLflow, created or continued, to which a training run's metrics are sent."""

    def __init__(self, about: TrackedRunInfo) -> None:
        # `follow_run` retries with its own pauses and time limit; MLflow's retries would delay it.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        known = mlflow.get_experiment_by_name(name)
        if known and known.lifecycle_stage != LifecycleStage.ACTIVE:
            raise UsageError(
                f"MLFLOW_EXPERIMENT_NAME={name} is deleted at MLflow; run `mlflow experiments "
                f"restore --experiment-id {known.experiment_id}`, or set it to another name"
            )
        experiment = mlflow.set_experiment(name).experiment_id
        self._client = MlflowClient()
        # With this kind the web page shows the runs as model training.
        self._client.set_experiment_tag(experiment, KIND, "custom_model_development")
        # A search even at the first start: the reply to an earlier create_run may have been lost.
        found = self._client.search_runs([experiment], f"tags.`{ID}` = '{about.id}'")
        if found:
            run = found[0]
        else:
            began = round(1000 * about.began)
            run = self._client.create_run(experiment, began, {ID: about.id}, about.name)
        self._id = run.info.run_id
        self.address = _where(
            mlflow.get_tracking_uri(), f"#/experiments/{experiment}/runs/{self._id}"
        )
        self._client.update_run(self._id, RunStatus.to_string(RunStatus.RUNNING))
        config, known = dict(_with_names(about.config)), run.data.params
        params = [Param(key, str(value)) for key, value in config.items() if key not in known]
        # A parameter cannot change, and a run that is extended has more epochs than at its start.
        changed = {
            mlflow_name(f"{CHANGED}{key}"): str(config[key])
            for key in config.keys() & known.keys()
            if str(config[key])[:MAX_PARAM_VAL_LENGTH] != known[key]
        }
        tags = [RunTag(key, value) for key, value in (about.tags | changed).items()]
        for first in range(0, max(len(params), len(tags)), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            self._client.log_batch(self._id, params=params[some], tags=tags[some])

    def last_step(self) -> int:
        """Return the last training step at MLflow, by the metric `examples` of every step, or 0."""
        history = self._client.get_metric_history(self._id, "examples")
        return max((metric.step for metric in history), default=0)

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Send the metrics of training steps to MLflow in as few atomic requests as possible."""
        request: list[Metric] = []
        for step in steps:
            if len(request) + len(step.values) > METRICS:
                self._client.log_batch(self._id, request)
                request = []
            # In milliseconds. MLflow drops a duplicate of a metric with the same timestamp.
            time = round(1000 * step.time)
            request += [
                Metric(key, value, time, step.number) for key, value in _with_names(step.values)
            ]
        self._client.log_batch(self._id, request)

    def finish(self, conclusion: RunOutcome) -> None:
        """Send the training run's outcome to MLflow, as a tag and as the run's final status."""
        status = RunStatus.FAILED if conclusion.diverged else RunStatus.KILLED
        if conclusion.finished:
            status = RunStatus.FINISHED
        self._client.set_tag(self._id, "outcome", conclusion.text)
        # set_terminated would print lines of its own.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        ended = round(1000 * conclusion.written)
        self._client.set_terminated(self._id, RunStatus.to_string(status), ended)


def mlflow_name(key: str) -> str:
    """Convert a key into a valid MLflow name of a parameter or metric, with _ for other characters.

    A rule of `deviations` may have any characters, and MLflow rejects a whole request for one
    invalid name. A name must be a normal relative path too.

    >>> [*map(mlflow_name, ["optim.lr", "deviations.n=16 (of 32)", "../a"])]
    ['optim.lr', 'deviations.n_16 _of 32_', '__a']
    """
    name = re.sub(r"[^\w/.: -]", "_", key)[:LONGEST_NAME]
    leads = name == "." or name.startswith(("/", "..")) or posixpath.normpath(name) != name
    return re.sub("^[.]*$|^[.][.]|/", "_", name) if leads else name


def _with_names(values: Mapping[str, T]) -> list[tuple[str, T]]:
    """Convert a dict into pairs of a valid MLflow name and a value, each name once."""
    return list({mlflow_name(key): value for key, value in values.items()}.items())


def _where(uri: str, page: str) -> str:
    """Return a run's page at MLflow, or the command to type for SQLite, without passwords."""
    uri = mask_passwords(uri)
    if uri.startswith("sqlite:"):
        command = shlex.join(["mlflow", "server", "--backend-store-uri", uri])
        return f"{uri}; run {command} and open its page /{page}"
    return f"{uri}/{page}"
