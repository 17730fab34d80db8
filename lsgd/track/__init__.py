"""Upload runs to MLflow or Weights & Biases: `python -m lsgd.track RUN... --to mlflow`, or wandb.

All data come from the run folder: the configuration, each row of metrics.jsonl at its step with the
epoch and the number of examples seen, and the outcome. The command asks the tracker for its last
step, so a rerun sends the missing steps and none twice. A resumed run continues the same run of
the tracker; an id in the run folder identifies it.

The libraries read addresses, projects and keys from their own variables: MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME (default lsgd), WANDB_MODE, WANDB_PROJECT (default lsgd), WANDB_API_KEY, ...

With the override trackers=[mlflow] a training run starts this command as a separate process, and
makes no call to the tracker. In a study or a search each run has its own process for it.

exit codes: 0 all steps are sent; 1 with --follow, some steps were not sent within 300 s after the
end of the run; 2 usage error, such as a folder without a run or a tracker that is down.
"""
