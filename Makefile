# `make` prints its help from the ## comments.
# PYTHON is the Python that makes .venv, by default the first suitable one; ARGS selects some tests for
# `make test`, some faults for `make faults` or some mutants for `make mutants`; SEED is the random seed of
# make soak. The help explains CPU and HOROVOD.
BIN := .venv/bin
SEED ?= 0
# Two processes share the test files, since the smallest machine has two cores.
SIDE_BY_SIDE := -n 2 --dist loadfile
# All of tests/distributed has the marker, and would take seconds to import.
SHORT := $(SIDE_BY_SIDE) --ignore tests/distributed -m 'not distributed and not slow'
# The CPU times of the runs of test-all, so that the last can print the sum.
TAKEN := .venv/.taken
# Keep bytecode, even if the environment disables it: otherwise every process of a test would compile
# lsgd again, which takes a quarter of its start-up time.
export PYTHONDONTWRITEBYTECODE :=
# .venv does not see packages that pip would install for the user.
export PIP_USER := 0
SCRIPTS := setup/cxx $(wildcard setup/*.sh) $(wildcard launch/*.sh) .ci/run

# Ignore values from the environment: SUSE's login shells set CPU to the kind of processor.
ifeq ($(origin CPU),command line)
$(if $(filter-out yes,$(CPU)),$(error CPU=$(CPU) must be yes; leave it out for pip's default torch))
endif
ifeq ($(origin HOROVOD),command line)
$(if $(filter-out no nccl,$(HOROVOD)),$(error HOROVOD=$(HOROVOD) must be no or nccl; leave it out for the GPUs of this machine))
endif

# One stamp for each kind: a node with GPUs checks again whether the installed Horovod supports them.
HOROVOD_BUILT := .venv/.horovod$(if $(HOROVOD)$(HOROVOD_BUILD_CUDA_CC_LIST)$(wildcard /dev/nvidia[0-9]*),-gpu)
ifeq ($(HOROVOD),no)
HOROVOD_BUILT :=
endif
ALL := .venv/.run $(HOROVOD_BUILT) .venv/.dev

# What .venv has lost of these, in 0.05 s: stamps do not record it. A moved checkout takes lsgd, and a pip
# that was killed the package that it replaced; an upgrade of the system takes the Python, or all packages.
NEEDED := "pip", "torch", "hydra", "lsgd"
FIND := from importlib.util import find_spec; print(*(each for each in ($(NEEDED)) if not find_spec(each)))
LOST := $(if $(wildcard .venv/.python),$(shell $(BIN)/python -P -c '$(FIND)' 2>/dev/null || echo pip torch))

# Two pips must not run in one environment at the same time.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup train demo test test-all compat faults mutants gpu soak fresh results docs check format lint types layers floors audit lock wheel release clean cpu lost

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  … CPU=yes     use torch's CPU build in a new .venv: download 0.3 GB instead of 2.8 GB"
	@echo "  … HOROVOD=no  use torch.distributed instead of compiling Horovod; HOROVOD=nccl: build for GPUs of other nodes"

setup: $(ALL) ## install everything into .venv, and compile Horovod once (minutes)

train: .venv/.run $(HOROVOD_BUILT) ## train the digits recipe on 2 processes (a minute on a laptop)
	PYTHON=$(BIN)/python launch/local.sh digits --np 2

demo: .venv/.run ## demonstrate the paper's scaling rule in two minutes
	$(BIN)/python -m lsgd.demo

test: .venv/.run .venv/.test ## run the tests that start no job, on 2 cores (3 minutes); ARGS='-k order' selects some
	$(BIN)/python -m pytest $(SHORT) $(if $(ARGS),,--budget=test) $(ARGS)

# First the tests that start no job, then jobs that may share the cores. Jobs with deadlines on all
# cores, or with exclusive resources of the machine, run last and one at a time.
test-all: $(ALL) ## run all tests but the soak (20 minutes); LSGD_REQUIRE=dali,slurm,… fails instead of skipping
	rm -f $(TAKEN)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --cpu-record=$(TAKEN) --ignore tests/distributed; others=$$?; \
	$(BIN)/python -m pytest -n 2 --dist worksteal --cpu-record=$(TAKEN) tests/distributed -m side_by_side; jobs=$$?; \
	$(BIN)/python -m pytest --cpu-record=$(TAKEN) --budget=test-all tests/distributed -m 'not side_by_side' && \
	exit $$((others + jobs))

compat: .venv/.run .venv/.dev ## run the short tests on the oldest and the newest torch, in separate environments
	$(BIN)/python tests/suite/compat.py $(SHORT) $(ARGS)

faults: $(ALL) ## apply each known bug to a copy: its test must fail; ARGS='-k lr' selects some
	$(BIN)/python tests/faults $(ARGS)

# It may be killed at any moment: rerun the command to continue.
mutants: $(ALL) ## run mutation tests: random small changes that tests should catch; ARGS='--only lsgd/rules --number 20'
	$(BIN)/python tests/mutants $(ARGS)

# A kill costs at most a slice of minutes: rerun the command to continue.
gpu: $(ALL) ## run all benchmarks of a new GPU once (hours), into results/; ARGS='step-8' selects some, --tiny on a CPU
	$(BIN)/python -m benchmarks.gpu $(ARGS)

soak: $(ALL) ## run the long series of kills and hostile files (an hour or two), into results/
	LSGD_SEED=$(SEED) LSGD_SOAK=results/$(shell date +%F)-soak/README.md $(BIN)/python -m pytest -m soak $(ARGS)

fresh: ## test a first installation on bare systems (root); ARGS selects some
	python3 tests/fresh $(ARGS)

results: .venv/.run ## update the table of results/README.md from its folders
	$(BIN)/python -m lsgd.report --table results/README.md

# Without --quiet: it would disable the count of warnings, each of which must fail the build.
docs: .venv/.run .venv/.dev ## build the documentation into site/ (index.html; its search needs python -m http.server -d site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

check: format lint types layers floors ## run the five static checks below

format: .venv/.dev ## check the formatting
	$(BIN)/ruff format --check

lint: .venv/.dev ## lint Python, shell, Dockerfiles and language
	$(BIN)/ruff check
	$(BIN)/codespell
	$(BIN)/python tests/suite/language.py
	$(BIN)/shellcheck -x -P SCRIPTDIR $(SCRIPTS)
	$(BIN)/hadolint $(wildcard setup/containers/*.Dockerfile)

types: .venv/.dev ## check types, also for macOS
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

layers: .venv/.dev ## check the import layers and that class names are unique
	$(BIN)/lint-imports
	$(BIN)/python tests/suite/homonyms.py

floors: .venv/.dev ## check that no admitted or pinned version has a security advisory
	$(BIN)/python tests/suite/advisories.py

audit: .venv/.dev ## update the list of advisories by pip-audit (from PyPI); ARGS='-s osv' for another source
	$(BIN)/python tests/suite/advisories.py --renew $(ARGS)

wheel: .venv/.wheel ## build sdist and wheel into dist/
	$(BIN)/python -m hatchling build

release: .venv/.wheel ## build a release into dist/ and try it in empty environments; ARGS=--untagged tries one
	$(BIN)/python setup/release.py $(ARGS)

# From PyPI, whatever this machine is configured for, since hashes are of its files.
lock: .venv/.python ## write setup/lock.txt: what training needs, as pinned, with the hash of each file
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt uv
	$(BIN)/python -m uv pip compile pyproject.toml --quiet --no-config --no-annotate --custom-compile-command "make lock" \
	  --default-index https://pypi.org/simple --universal --python-version 3.11 --generate-hashes \
	  --extra horovod --extra report --extra search --extra dali -c constraints.txt -o setup/lock.txt

clean: ## remove build files; keep .venv and runs/
	rm -rf dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find benchmarks lsgd tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each purpose, so that training needs no development tools.
.venv/.python: $(if $(filter pip,$(LOST)),$(if $(filter torch,$(LOST)),lost))
	@setup/venv.sh '$(PYTHON)'
	@touch $@

.venv/.run: .venv/.python pyproject.toml constraints.txt $(if $(filter-out pip,$(LOST)),lost)
	@$(BIN)/python setup/packages.py horovod,report
	@touch $@

.venv/.horovod .venv/.horovod-gpu: .venv/.run setup/horovod.sh setup/build.sh setup/cuda.sh setup/facts.py
	@setup/horovod.sh $(BIN)/python
	@touch $@

.venv/.test: .venv/.python pyproject.toml constraints.txt | .venv/.run
	@$(BIN)/python setup/packages.py dev,horovod,report,search
	@touch $@

.venv/.dev: .venv/.python pyproject.toml constraints.txt | .venv/.run
	@$(BIN)/python setup/packages.py dali,dev,docs,export,horovod,imagenet,mlflow,ray,report,search,spark,timm,wandb
	@touch $@

.venv/.wheel: .venv/.python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt hatchling
	@touch $@

# Each time, since stamps do not record the torch version.
ifeq ($(CPU),yes)
.venv/.run .venv/.test .venv/.dev: | cpu
endif
cpu: .venv/.python
	@$(BIN)/python setup/packages.py
