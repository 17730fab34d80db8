"""Estimates of a run's time, efficiency and bottleneck on a larger cluster, before it is rented.

From the bottom: `allreduce` models the cost of one all-reduce and its overlap with the backward
pass, `gradients` the gradient buckets and when they are ready, `step` the whole step. `hardware`
has the constants; `measured_step` and `paper` have the step that an estimate starts from.
`strategy` compares parameter servers with all-reduce by their `throughput` in virtual time.
`start` has the files and connections of a job's start. `time_to_target` and `target` plan the time
to a target accuracy. `table` has the report, and writes the files of --out.
"""
