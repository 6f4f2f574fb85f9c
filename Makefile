# `make` or `make help` lists the targets. They need Python 3.10 to 3.14 as `python3`. To use another interpreter, set
# PYTHON, for example: make PYTHON=python3.11 test

PYTHON ?= python3

BENCH_ARGS = $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TOKENIZERS),--tokenizer $(TOKENIZERS)/gpt2 $(TOKENIZERS)/llama3) $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help try demo bench bench-cold quick docs test test-long test-frameworks test-wheel chaos fuzz clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

try: .venv/.installed-demo  ## convert this documentation and show its first rows; needs no network once it is installed
	.venv/bin/cloudload convert 'docs/**/*.md' demo-output/try --format text --tokenizer examples/tokenizer --overwrite
	.venv/bin/cloudload rows --data demo-output/try --tokenizer examples/tokenizer --seq-len 512 --steps 1 --out demo-output/rows.html

demo: .venv/.installed-demo  ## stream from a local S3 server, kill the run, and resume it with a different world size
	.venv/bin/python -m examples.demo

bench: .venv/.installed-bench  ## compare the throughput of loaders on the same documents; takes about 40 minutes (CORPUS=FOLDER TOKENIZERS=FOLDER ARGS=--quick)
	.venv/bin/python -m benchmarks.throughput.race $(BENCH_ARGS)

bench-cold: .venv/.installed-bench  ## measure the time to the first batch and the bytes per epoch with a local S3 server; takes about 10 minutes
	.venv/bin/python -m benchmarks.start.cold $(BENCH_ARGS)

quick: .venv/.installed-dev  ## run the fast tests, which start no servers and no other processes; takes about a minute
	scripts/test --quick

docs: .venv/.installed-dev  ## build the documentation and serve it at http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs serve --strict

test: .venv/.installed-dev  ## check lint, types, and documentation, and run all tests except those that take minutes
	scripts/check-and-test

test-long: .venv/.installed-dev  ## run all tests, including those that take minutes
	CLOUDLOAD_EXAMPLES=1000 scripts/test --long

test-frameworks: .venv/.installed-dev  ## kill and resume training in every framework, in separate environments where packages conflict; takes about an hour
	scripts/test-frameworks $(ARGS)

test-wheel:  ## build the wheel, install it without extras into a clean environment, and convert and load data with it
	scripts/test-wheel

chaos: .venv/.installed-dev  ## kill and pause jobs on failing stores and full disks, and compare every row; takes about an hour (ARGS="--restarts 20")
	.venv/bin/python -m stress.chaos $(ARGS)

fuzz: .venv/.installed-dev  ## fuzz with hostile indexes, shards, states, and texts; takes a minute per target (ARGS="state --seconds 600")
	.venv/bin/python -m stress.fuzz $(ARGS)

clean:  ## remove .venv, build outputs, and the caches of the tools
	rm -rf .venv .bench .frameworks .site dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The extras dev and bench include demo. After a change of pyproject.toml, the next target installs its extra again.
.venv/.installed-%: pyproject.toml scripts/install
	@PYTHON="$(PYTHON)" scripts/install $*
	@touch $@
