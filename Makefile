# `make test` is what CI runs. Everything else is for people.

VENV := .venv
PYTHON := $(VENV)/bin/python
TESTED := proto/swiftlm_proto engine/swiftlm_engine daemon/swiftlmd ctl/swiftlmctl
# With OpenBLAS MLX's CPU back end prefills an order of magnitude faster; tests run without it too.
OPENBLAS := $(firstword $(wildcard /usr/lib/*/openblas-pthread/libopenblas.so.0))
FAST := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS))
QUICK := not slow and not kernels and not metal and not macos
# Much of a test of the service is waiting: more workers than cores. The longest files begin
# (tests/conftest.py).
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder

# What one of the many processes of the tests has compiled the others read.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: test setup lint types unit integration e2e clients test-kernels test-shells bench bench-peers bench-kv \
	bench-stream fits pictures soak proto lock release clean

# Types are checked meanwhile, and shown at the end. On a busy machine four workers make some waits
# of the tests too short: the few that fail run again alone, and both outcomes are shown.
test: setup lint
	@mkdir -p .cache
	@$(VENV)/bin/mypy >.cache/types.log 2>&1 & types=$$!; \
	$(FAST) $(PYTHON) -m pytest -m "$(QUICK)" $(WORKERS) --durations=15 tests; tests=$$?; \
	wait $$types; types=$$?; cat .cache/types.log; \
	if [ $$tests = 1 ]; then \
	  echo "Again, alone, what failed:"; \
	  $(FAST) $(PYTHON) -m pytest -m "$(QUICK)" --last-failed --maxfail=3 tests; tests=$$?; \
	fi; \
	exit $$((tests + types))

setup: $(VENV)/.ready

$(VENV)/.ready: locks/dev.txt locks/vision.txt pyproject.toml scripts/setup.sh
	sh scripts/setup.sh $(VENV)
	@touch $@

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: setup
	$(VENV)/bin/mypy

unit: setup
	$(PYTHON) -m pytest tests/unit

integration: setup
	$(FAST) $(PYTHON) -m pytest tests/integration -m "not slow"

e2e: setup
	$(FAST) $(PYTHON) -m pytest tests/e2e

# Every client library and agent, installed beside ours (they disagree with ours about versions);
# writes the table of docs/clients.md.
clients:
	sh tests/clients/run.sh

test-kernels: setup
	$(PYTHON) -m pytest tests/kernels -m kernels

# install.sh in the shells that run it on a Mac: bash 3.2 as sh, if scripts/bash32.sh has built one.
BASH32 := $(wildcard .cache/bash32/bash)
test-shells: setup
	for shell in "bash --posix" $(if $(BASH32),"$(abspath $(BASH32)) --posix"); do \
	  INSTALL_SHELL="$$shell" $(PYTHON) -m pytest -m "not slow" -n 4 --dist loadfile \
	    tests/integration/test_install_scenarios.py tests/integration/test_install_users_files.py \
	    tests/integration/test_install_upgrades.py || exit 1; \
	done

bench: setup
	$(FAST) $(PYTHON) -m bench

bench-peers: setup
	$(FAST) PYTHONPATH=ctl:proto $(PYTHON) -m bench peers

bench-kv: setup
	$(FAST) $(PYTHON) bench/kv_quality.py

bench-stream: setup
	$(FAST) PYTHONPATH=engine:proto:daemon:tests/support $(PYTHON) -m bench.streaming

# What fits on a Mac, in README.md and docs/memory.md.
fits: setup
	PYTHONPATH=engine:proto:tests/support $(PYTHON) -m bench.mac_fits
	PYTHONPATH=engine:proto:tests/support $(PYTHON) -m bench.mac_plans

# Those of the web page in docs/img, of a scripted machine; the plots there name their own commands.
pictures: setup
	mkdir -p .cache/pictures
	COMPANION_PICTURES=.cache/pictures $(PYTHON) -m pytest -q tests/web/test_companion_looks.py -k every_view
	for file in docs/img/companion-*.png; do cp ".cache/pictures/$${file##*/}" "$$file" || exit 1; done

soak: setup
	$(FAST) $(PYTHON) -m pytest tests -m slow -s --timeout 3600

proto: setup
	PYTHON=$(PYTHON) scripts/generate_proto.sh

# Wheel, source archive, SBOM, hashes and the one-line installer in dist/; scripts/release.py says
# how to sign and publish them.
release: setup
	$(PYTHON) scripts/release.py

lock:
	scripts/lock.sh

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
