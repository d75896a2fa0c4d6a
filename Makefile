# Everything runs in environments of this folder; only Python 3.11+, pip and make are needed.
PYTHON ?= python3
JOBS ?= 2
PIP_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
FUZZ_ARGS ?= --minutes 60
CONFORMANCE_ARGS ?=
MODELS_ARGS ?=
TEST_ARGS ?=

PIP := -m pip install -qq --no-input --disable-pip-version-check --no-warn-script-location $(PIP_ARGS)
PY := .venv/bin/python
SOURCES := $(shell find src -name '*.py' -o -name '*.pyi')

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test fuzz conformance models mutation properties bench lint docs clean

help:
	@echo "make demo   compile a sentence-embedding model and compare it with PyTorch"
	@echo "make test   run the tests"
	@echo "make fuzz   random schedules for an hour, failures reduced; FUZZ_ARGS=\"--steps 1000\""
	@echo "make conformance  PyTorch's own samples of every operator; writes docs/conformance.md"
	@echo "make models  architectures beside PyTorch; writes docs/model-coverage.md"
	@echo "make mutation  put faults into the primitives; writes docs/safety-net.md"
	@echo "make properties  run the property tests with many more examples"
	@echo "make bench  run the benchmarks, beside other engines; BENCH_ARGS=gemm for one of them"
	@echo "make lint   check style, types and imports between rooms"
	@echo "make docs   write the generated pages and stubs anew"
	@echo "make clean  remove the environments and caches"

demo: .venv/stamp-package .venv-base/stamp-package .venv-ffi/stamp
	$(PY) -m examples.minilm.demo --base-python .venv-base/bin/python \
		--ffi-python .venv-ffi/bin/python $(DEMO_ARGS)

# Bytecode, as an installed package has it: where Python may not leave any, each of the many
# processes of the tests would compile all sources first.
test: .venv/stamp-package .venv/stamp-dev
	@$(PY) -m compileall -q src fuzzing
	$(PY) -m pytest -n $(JOBS) --dist loadfile $(TEST_ARGS)

fuzz: .venv/stamp-package
	$(PY) -m fuzzing.schedules $(FUZZ_ARGS)

conformance: .venv/stamp-package .venv/stamp-dev
	$(PY) -m fuzzing.conformance --page docs/conformance.md $(CONFORMANCE_ARGS)

models: .venv/stamp-package .venv/stamp-models
	$(PY) -m fuzzing.models --page docs/model-coverage.md $(MODELS_ARGS)

mutation: .venv/stamp-package .venv/stamp-dev
	$(PY) -m fuzzing.mutation --page docs/safety-net.md

properties: .venv/stamp-package .venv/stamp-dev
	BLOCKWRIGHT_FUZZ=1 $(PY) -m pytest -n $(JOBS) -m fuzz $(TEST_ARGS)

bench: export PIP_ARGS := $(PIP_ARGS)
bench: .venv/stamp-package
	$(PY) -m benchmarks $(BENCH_ARGS)

lint: .venv/stamp-package .venv/stamp-dev
	@failed=; \
	for check in "ruff check" "ruff format --check" "pyright --pythonpath $(PY)" \
			"lint-imports --no-cache"; do \
		echo "==> $$check"; .venv/bin/$$check || failed="$$failed [$$check]"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

docs: .venv/stamp-package
	@mkdir -p build
	$(PY) -m blockwright.ir.grammar > build/ir-grammar.md
	@mv build/ir-grammar.md docs/ir-grammar.md
	$(PY) -m blockwright.support.error_page > build/errors.md
	@mv build/errors.md docs/errors.md
	$(PY) -m blockwright.schedule.stub

clean:
	rm -rf .venv .venv-base .venv-ffi .venvs build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The working environment: torch, then the base install and the example, then the tools.
.venv/stamp: requirements/torch.txt requirements/base.txt requirements/demo.txt
	$(call make-venv,.venv)
	@echo "==> .venv: torch (the largest download)"
	@$(PY) $(PIP) --requirement requirements/torch.txt
	@echo "==> .venv: base install and example"
	@$(PY) $(PIP) --no-deps --requirement requirements/base.txt --requirement requirements/demo.txt
	@touch $@

.venv/stamp-dev: .venv/stamp requirements/dev.txt
	@echo "==> .venv: tests and linters"
	@$(PY) $(PIP) --no-deps --requirement requirements/dev.txt
	@touch $@

.venv/stamp-models: .venv/stamp-dev requirements/models.txt
	@echo "==> .venv: exporter to ONNX"
	@$(PY) $(PIP) --no-deps --requirement requirements/models.txt
	@touch $@

.venv/stamp-package: .venv/stamp pyproject.toml
	@echo "==> .venv: blockwright, editable"
	@$(PY) $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# What a user of a saved artefact has: the base install and a built wheel, no torch.
.venv-base/stamp: requirements/base.txt
	$(call make-venv,.venv-base)
	@echo "==> .venv-base: base install"
	@.venv-base/bin/python $(PIP) --no-deps --requirement requirements/base.txt
	@touch $@

.venv-base/stamp-package: .venv-base/stamp .venv/stamp pyproject.toml $(SOURCES)
	@echo "==> .venv-base: blockwright, from a wheel"
	@rm -rf .venv-base/wheel
	@$(PY) -m pip wheel -qq --no-input --disable-pip-version-check --no-deps \
		--no-build-isolation --wheel-dir .venv-base/wheel .
	@.venv-base/bin/python $(PIP) --no-deps --force-reinstall .venv-base/wheel/*.whl
	@touch $@

# The least that can call a compiled artefact: no blockwright at all.
.venv-ffi/stamp: requirements/ffi.txt
	$(call make-venv,.venv-ffi)
	@echo "==> .venv-ffi: calling interface only"
	@.venv-ffi/bin/python $(PIP) --no-deps --requirement requirements/ffi.txt
	@touch $@

# $(call make-venv,folder): a fresh environment, so that no package of an older pin stays behind.
define make-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Blockwright needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 1; }
	@echo "==> $(1): new environment ($$($(PYTHON) --version))"
	@rm -rf $(1)
	@$(PYTHON) -m venv $(1)
endef
