"""Audits of any PyTorch training script: `lsgd audit -- python train.py …`.

`launched` runs the command; `site` and `watch` observe each of its Python processes and need
nothing of lsgd; `processes` reads and merges their records, `job` has what follows from these,
`facts` and the files below it turn them into observations, and the rules are those of
lsgd.check.papers.
"""
