# Every target is a script of about ten lines in scripts/; what CI runs, you can run.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-federation lint types docs wheel bench clean ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv and install Fedtailor with all that developing it needs (PYTHON=... picks the interpreter)
	@scripts/setup dev docs

demo: ## install what is needed, then compare methods on a small federation and write a report
	@scripts/demo

test: ## run the tests
	@scripts/test

test-all: ## run the tests and the slow, full proofs
	@scripts/test-all

test-federation: ## run the tests of real processes over Flower, in .venv-federation
	@scripts/test-federation

lint: ## check the style with ruff
	@scripts/lint

types: ## check the types with mypy, strictly
	@scripts/types

docs: ## build the documentation into site/; any warning is an error
	@scripts/docs

wheel: ## build the wheel into dist/ and try it in an environment of its own
	@scripts/wheel

bench: ## measure the speed beside other software
	@scripts/bench

clean: ## remove what was built and cached (keeps the environments and your runs)
	@scripts/clean

ci: ## all that must be green before a change lands
	@.ci/run
