# The menu: `make` prints it from the ## comments.
# PYTHON is what .venv is made with, else any that can; ARGS chooses some tests for `make test`, some
# faults for `make faults` or some mutants for `make mutants`; SEED draws the faults of make soak. CPU and
# HOROVOD are told by `make`.
BIN := .venv/bin
SEED ?= 0
# Two processes share the test files, as many as the smallest machine has cores.
SIDE_BY_SIDE := -n 2 --dist loadfile
SHORT := $(SIDE_BY_SIDE) -m 'not distributed and not slow'
# What the runs of test-all took, so that the last can print the sum.
TAKEN := .venv/.taken
# Bytecode is kept, also where the environment says otherwise: every process of a test would compile
# lsgd anew, which takes a quarter of its start.
export PYTHONDONTWRITEBYTECODE :=
SCRIPTS := setup/cxx $(wildcard setup/*.sh) $(wildcard launch/*.sh) .ci/run

# A value of the environment may be anybody's: SUSE's login shells set CPU to the kind of processor.
ifeq ($(origin CPU),command line)
$(if $(filter-out yes,$(CPU)),$(error CPU=$(CPU) must be yes; leave it out for the torch that pip takes))
endif
ifeq ($(origin HOROVOD),command line)
$(if $(filter-out no nccl,$(HOROVOD)),$(error HOROVOD=$(HOROVOD) must be no or nccl; leave it out for the GPUs in sight))
endif

# A stamp for each kind: a node with GPUs asks once more whether the Horovod in place is for them.
HOROVOD_BUILT := .venv/.horovod$(if $(HOROVOD)$(HOROVOD_BUILD_CUDA_CC_LIST)$(wildcard /dev/nvidia[0-9]*),-gpu)
ifeq ($(HOROVOD),no)
HOROVOD_BUILT :=
endif
ALL := .venv/.run $(HOROVOD_BUILT) .venv/.dev

# Two pips in one environment get in each other's way.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup train demo test test-all compat faults mutants gpu soak fresh results docs check format lint types layers floors audit wheel clean cpu

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  … CPU=yes     torch's CPU build, where .venv is new: 0.3 GB to download instead of 2.8 GB"
	@echo "  … HOROVOD=no  no Horovod is compiled: torch.distributed instead; HOROVOD=nccl: for GPUs of other nodes"

setup: $(ALL) ## everything into .venv, Horovod compiled once (minutes)

train: .venv/.run $(HOROVOD_BUILT) ## the digits recipe on 2 processes (a minute on a laptop)
	PYTHON=$(BIN)/python launch/local.sh digits --np 2

demo: .venv/.run ## what the paper's scaling rule does, shown in two minutes
	$(BIN)/python -m lsgd.demo

test: .venv/.run .venv/.test ## the tests that start no job, on 2 cores (3 minutes); ARGS='-k order' for some
	$(BIN)/python -m pytest $(SHORT) $(if $(ARGS),,--budget=test) $(ARGS)

# Jobs whose own cores others may take come after what starts none. What takes all cores and has
# seconds to answer, or takes what a machine has once, comes last and by itself.
test-all: $(ALL) ## all tests but the soak (20 minutes); LSGD_REQUIRE=dali,slurm,… makes a missing one fail
	rm -f $(TAKEN)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --cpu-record=$(TAKEN) --ignore tests/distributed; others=$$?; \
	$(BIN)/python -m pytest -n 2 --dist worksteal --cpu-record=$(TAKEN) tests/distributed -m side_by_side; jobs=$$?; \
	$(BIN)/python -m pytest --cpu-record=$(TAKEN) --budget=test-all tests/distributed -m 'not side_by_side' && \
	exit $$((others + jobs))

compat: .venv/.run .venv/.dev ## the short tests on the oldest and the newest torch, each in an environment of its own
	$(BIN)/python tests/suite/compat.py $(SHORT) $(ARGS)

faults: $(ALL) ## bugs with a story, each put into a copy: its test has to fail; ARGS='-k lr' for some
	$(BIN)/python tests/faults $(ARGS)

# Whose kill costs nothing: the same words go on with what is left.
mutants: $(ALL) ## small changes drawn from all of the code: which does no test notice? ARGS='--only lsgd/rules --number 20'
	$(BIN)/python tests/mutants $(ARGS)

# Whose kill costs a slice of minutes, and no more: the same words go on.
gpu: $(ALL) ## what to run once on a new GPU (hours), recorded in results/; ARGS='step-8' for some, --tiny on a CPU
	$(BIN)/python -m benchmarks.gpu $(ARGS)

soak: $(ALL) ## the long series of kills and of hostile files (an hour or two), recorded in results/
	LSGD_SEED=$(SEED) LSGD_SOAK=results/$(shell date +%F)-soak/README.md $(BIN)/python -m pytest -m soak $(ARGS)

fresh: ## what a stranger does first, on a machine that has nothing of lsgd (root); ARGS chooses
	python3 tests/fresh $(ARGS)

results: .venv/.run ## the table of results/README.md, from the folders beside it
	$(BIN)/python -m lsgd.report --table results/README.md

# Not --quiet: then nothing counts the warnings, each of which has to fail.
docs: .venv/.run .venv/.dev ## the site of the documentation, into site/ (index.html; its search needs python -m http.server -d site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

check: format lint types layers floors ## what needs no run: the five below

format: .venv/.dev ## formatting
	$(BIN)/ruff format --check

lint: .venv/.dev ## likely mistakes, in Python, shell, Dockerfiles and language
	$(BIN)/ruff check
	$(BIN)/codespell
	$(BIN)/python tests/suite/language.py
	$(BIN)/shellcheck -x -P SCRIPTDIR $(SCRIPTS)
	$(BIN)/hadolint $(wildcard setup/containers/*.Dockerfile)

types: .venv/.dev ## types, also of what macOS has
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

layers: .venv/.dev ## which file may import which, and one name for one thing
	$(BIN)/lint-imports
	$(BIN)/python tests/suite/homonyms.py

floors: .venv/.dev ## no version that pyproject.toml admits or constraints.txt pins has a published hole
	$(BIN)/python tests/suite/advisories.py

audit: .venv/.dev ## the file of published holes made anew, by pip-audit (asks PyPI); ARGS='-s osv' for another source
	$(BIN)/python tests/suite/advisories.py --renew $(ARGS)

wheel: .venv/.wheel ## sdist and wheel into dist/
	$(BIN)/python -m hatchling build

clean: ## remove what was built; .venv and runs/ stay
	rm -rf dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find benchmarks lsgd tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp for each use, so that training needs no development tools.
.venv/.python:
	@setup/venv.sh '$(PYTHON)'
	@touch $@

.venv/.run: .venv/.python pyproject.toml constraints.txt
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

# Each time, since stamps do not tell which torch they are of.
ifeq ($(CPU),yes)
.venv/.run .venv/.test .venv/.dev: | cpu
endif
cpu: .venv/.python
	@$(BIN)/python setup/packages.py
