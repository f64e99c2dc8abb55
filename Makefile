# `make demo` and `make test` do everything themselves: python3, make and a package index are enough.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
VENV_VERL ?= .venv-verl
VERL := $(VENV_VERL)/bin/python
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help install demo test test-lm test-processors test-oldest-processor test-newest-trl faults test-verl install-verl test-vllm test-deepspeed campaign bench pages docs docs-serve release check format picture clean
help: ## Show these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "gear-rl needs Python 3.11 to 3.13; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.trl: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[trl]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.trl

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

install: $(VENV)/.dev ## Make the virtual environment, with everything for development

demo: $(VENV)/.trl ## Train a small language model with GEAR on this machine, in minutes
	$(BIN)/gear demo --overwrite $(ARGS)

test: $(VENV)/.dev ## Run every test, on two processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not lm" $(ARGS)

test-lm: $(VENV)/.dev ## Fetch a pretrained model of 135M weights, and run the tests that need one: minutes
	$(BIN)/gear model smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests -m lm $(ARGS)

# What a last bit could change: kernels, signals, thresholds, placebos, tables that documents show.
SENSITIVE ?= tests/tensor tests/methods tests/signals \
  tests/credit/test_contexts.py tests/credit/test_teacher_check.py tests/credit/test_teacher_prompts.py \
  $(addprefix tests/lab/test_,findings.py localisation.py plots.py statistics.py teacher_scores.py teacher_verdict.py verdict.py)

# torch.compile's cache does not know the capability: what was compiled for another does not build here.
test-processors: test-oldest-processor ## Run the tests that numbers could fail, as on two older processors
	ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -n 2 $(SENSITIVE) $(ARGS)

test-oldest-processor: $(VENV)/.dev ## The first of them: no vector instructions beyond the oldest
	ATEN_CPU_CAPABILITY=default TORCHINDUCTOR_CACHE_DIR=$(VENV)/.inductor-default OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -n 2 $(SENSITIVE) $(ARGS)

faults: $(VENV)/.dev ## Plant faults in copies of the code, and see that the test of each fails
	$(BIN)/python tests/plant_faults.py $(ARGS)

NEWEST := $(VENV)-newest-trl
test-newest-trl: ## Test the engine with TRL's newest release, in an environment of its own
	$(MAKE) install VENV=$(NEWEST)
	$(NEWEST)/bin/python -m pip --disable-pip-version-check install -q --upgrade trl
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -n 2 tests/test_contract.py tests/test_methods.py tests/engines $(ARGS)

# verl needs an environment of its own: it cannot live beside TRL, and a CPU needs vLLM's CPU build. The list of
# packages is complete, hence --no-deps; bytecode, once, because Ray starts a dozen processes in every run.
$(VENV_VERL)/.packages: constraints-verl.txt
	@$(PYTHON) -c 'import platform, sys; sys.exit((*sys.version_info[:2], sys.platform, platform.machine()) != (3, 11, "linux", "x86_64"))' || \
	  { echo "vLLM's CPU build is for Linux on x86-64, and the list of packages for Python 3.11: name one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV_VERL)
	$(VERL) -m pip --disable-pip-version-check install -q --no-deps --no-compile -r constraints-verl.txt
	$(VERL) -m compileall -q -j 0 $(VENV_VERL)/lib >/dev/null || true # some packages carry files that are not Python 3
	@touch $@

VERL_CPU := tests/verl_cpu/vllm_name tests/verl_cpu/plugin
$(VENV_VERL)/.project: $(VENV_VERL)/.packages pyproject.toml $(wildcard $(VERL_CPU:=/pyproject.toml) tests/verl_cpu/plugin/*/*.py)
	$(VERL) -m pip --disable-pip-version-check install -q --no-deps -e .
	$(VERL) -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation $(addprefix ./,$(VERL_CPU))
	@touch $@

install-verl: $(VENV_VERL)/.project ## Make the virtual environment with verl, vLLM and Ray on the CPU: 4 GB

test-verl: $(VENV_VERL)/.project ## Train for real with unmodified verl on the CPU, and test what came out
	TRL_PYTHON=$(abspath $(wildcard $(BIN)/python)) $(VERL) -m pytest tests/verl_cpu $(ARGS)

# TRL in a folder beside the environment's own packages: where verl's workers find it, they die.
$(VENV_VERL)/.trl: $(VENV_VERL)/.project constraints.txt
	$(VERL) -m pip --disable-pip-version-check install -q --no-deps --upgrade --target $(VENV_VERL)/trl $$(grep '^trl==' constraints.txt)
	@touch $@

test-vllm: $(VENV_VERL)/.trl ## Train for real with TRL and vLLM on the CPU, in the environment of test-verl
	OMP_NUM_THREADS=1 PYTHONPATH=$(VENV_VERL)/trl $(VERL) -m pytest tests/trl_vllm $(ARGS)

# DeepSpeed as its source, beside the packages too: its setup script fails here, and it compiles on first use what it needs.
DEEPSPEED := deepspeed-0.19.8
$(VENV_VERL)/.deepspeed: $(VENV_VERL)/.trl
	cd $(VENV_VERL) && bin/python -m pip --disable-pip-version-check download -q --no-deps --no-build-isolation $(subst deepspeed-,deepspeed==,$(DEEPSPEED))
	tar xzf $(VENV_VERL)/$(DEEPSPEED).tar.gz -C $(VENV_VERL)
	$(VERL) -m pip --disable-pip-version-check install -q --no-deps --upgrade --target $(VENV_VERL)/$(DEEPSPEED) hjson==3.1.0
	@touch $@

test-deepspeed: $(VENV_VERL)/.deepspeed ## Train on two CPU processes with weights divided by DeepSpeed and FSDP 2
	OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu PYTHONPATH=$(VENV_VERL)/trl:$(abspath $(VENV_VERL)/$(DEEPSPEED)) $(VERL) -m pytest tests/deepspeed_cpu $(ARGS)

campaign: $(VENV)/.dev ## Kill runs many times over: what is lost, what leaks
	PYTHONPATH=src:.:tests OMP_NUM_THREADS=1 $(BIN)/python -m campaign --out results/campaign.json --page docs/checkpoints.md $(ARGS)

bench: $(VENV)/.dev ## Measure what each method costs beside plain GRPO, and make the pages again
	$(BIN)/python -m benchmarks methods --out src/gear_rl/cli/method_costs.json $(ARGS)
	$(MAKE) pages

pages: $(VENV)/.dev ## Make the tables of README and the pages again, from docstrings and results/
	$(BIN)/python -m benchmarks page

docs: $(VENV)/.docs ## Build the documentation site into site/, every link checked
	$(BIN)/python -m doctest docs/_hooks/docstrings.py
	NO_MKDOCS_2_WARNING=1 PATH=$(abspath $(BIN)):$$PATH $(BIN)/mkdocs build --strict

release: $(VENV)/.dev ## Build what would be published into dist/, and check it
	$(PIP) install -q -c constraints.txt -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build -q -o dist .
	$(BIN)/twine check --strict dist/*

docs-serve: $(VENV)/.docs ## Show the documentation site at http://127.0.0.1:8000 and follow what is edited
	NO_MKDOCS_2_WARNING=1 PATH=$(abspath $(BIN)):$$PATH $(BIN)/mkdocs serve

check: $(VENV)/.dev ## Lint, types and the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest tests/test_house.py

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

picture: $(VENV)/.trl ## Make the pictures of the documents again, from results/runs; screenshots need chromium
	$(BIN)/python -m tools.pictures

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(NEWEST) $(VENV_VERL) site .pytest_cache .ruff_cache .hypothesis
