# `make` or `make help` lists the targets. Needs Python 3.10 to 3.14 as `python3` (or PYTHON=python3.11 make ...).

PYTHON ?= python3

BENCH_ARGS = $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TOKENIZERS),--tokenizers $(TOKENIZERS)) $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo bench bench-cold quick docs test test-long test-frameworks test-wheel chaos fuzz clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

demo: .venv/.installed-demo  ## stream from an S3 server on this machine, kill the run, resume it on another world size
	.venv/bin/python -m examples.demo

bench: .venv/.installed-bench  ## race other loaders over the same documents; about 40 minutes (CORPUS= TOKENIZERS= folders, ARGS=--quick)
	.venv/bin/python -m benchmarks.run $(BENCH_ARGS)

bench-cold: .venv/.installed-bench  ## measure the time to the first batch, and bytes per epoch, with an S3 server on this machine; about 10 minutes
	.venv/bin/python -m benchmarks.cold_start $(BENCH_ARGS)

quick: .venv/.installed-dev  ## run the fast tests, which need no server and no other process; about a minute
	scripts/test --quick

docs: .venv/.installed-dev  ## build the documentation, and serve it on http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs serve --strict

test: .venv/.installed-dev  ## check lint and types, and run every test except those that take minutes
	scripts/check-and-test

test-long: .venv/.installed-dev  ## run all tests, including those that take minutes
	CLOUDLOAD_EXAMPLES=1000 scripts/test --long

test-frameworks: .venv/.installed-dev  ## train, kill and resume in every framework, each in its own environment; an hour
	scripts/test-frameworks $(ARGS)

test-wheel:  ## build the wheel, install it without extras into a clean environment, and run that
	scripts/test-wheel

chaos: .venv/.installed-dev  ## kill and stop jobs on failing stores and full disks, and compare every row; an hour (ARGS=--restarts 20)
	.venv/bin/python -m stress.chaos $(ARGS)

fuzz: .venv/.installed-dev  ## fuzz with hostile indexes, shards, states and texts; a minute each (ARGS="state --seconds 600")
	.venv/bin/python -m stress.fuzz $(ARGS)

clean:  ## remove the environment and everything built
	rm -rf .venv .bench dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# dev and bench include demo; a change of pyproject.toml installs them again
.venv/.installed-%: pyproject.toml scripts/install
	@PYTHON="$(PYTHON)" scripts/install $*
	@touch $@
