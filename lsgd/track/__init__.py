"""Sends runs to a tracker: `python -m lsgd.track RUN... --to mlflow`, or wandb.

What is sent is read in the run folder: the configuration, each row of metrics.jsonl at its step of
the run, beside the epoch and the examples seen until then, and what the run has come to. The
tracker is asked how far it has come, so that the same words send what is missing, and nothing
twice. A resumed run goes on in the tracker's run, which is found by an id in the run folder.

Addresses, projects and keys are the libraries' own: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME
(lsgd, if it is not set), WANDB_MODE, WANDB_PROJECT (lsgd), WANDB_API_KEY, ...

With the word trackers=[mlflow] a training run starts this command by itself, and makes no call of a
tracker. Each run of a study or a search has a process of its own for it.

exit codes: 0 everything is sent, 2 refused, as a folder holds no run or the tracker is down.
"""
