# The front of the project: `make` lists what can be done. Everything is made below build/.
#
#   PRESET=dev|release|asan|tsan   for build, check and test of another preset than the usual one
#   ARGS="..."                     goes to the demo or the benchmark as it is
#   ENGINE=no                      leaves vLLM out of `make test`; the tests that need it are then skipped

BUILD := build
JOBS ?= $(shell nproc)
ARGS ?=
ENGINE ?= yes
PYTHON_ENV = PYTHONPATH="$(CURDIR)/$(BUILD)/release/python:$(CURDIR)" PATH="$(CURDIR)/$(BUILD)/release/bin:$$PATH"
ENGINE_PYTHON := $(BUILD)/engine-venv/bin/python
RESULTS := $(BUILD)/test-results

.DEFAULT_GOAL := help
.PHONY: help demo test check soak coverage bench-engine bench-net bench-sim bench-store gpu-roofline fuzz fuzz-hours format lint tidy setup build clean
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

help:  ## List the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Installs the engine while the build runs, which leaves one of two cores idle now and then; shows the end of it.
define BUILD_BESIDE_ENGINE
log=$(BUILD)/engine-setup.log; trap '[ -z "$$engine" ] || kill -- -$$engine 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
echo "setup: the engine is installed while the build runs; see $$log"; \
setsid tools/setup.sh --engine >$$log 2>&1 & engine=$$!; \
$(MAKE) build PRESET=$(PRESET) TARGETS="$(TARGETS)" || exit 1; \
tail -n 2 -f --pid=$$engine $$log & wait $$engine || { sleep 1; echo "setup: the engine can't be installed" >&2; exit 1; }
endef

demo: PRESET := release
demo: TARGETS := kvdepot _kvdepot kvd_python_package
demo:  ## The main job with real engines: installs, builds, runs, shows a table and a report (10 minutes)
	@tools/setup.sh
	@$(BUILD_BESIDE_ENGINE)
	@$(PYTHON_ENV) $(ENGINE_PYTHON) -m kvdepot.demo $(ARGS)

test: PRESET := release
test:  ## Unit, simulated, tidy and short end-to-end tests of the release build (25 minutes from nothing)
	@date '+test: %T setup and build'
	@tools/setup.sh --test
ifeq ($(ENGINE),yes)
	@$(BUILD_BESIDE_ENGINE)
else
	@$(MAKE) build PRESET=$(PRESET)
endif
	@rm -rf $(RESULTS)/$(PRESET) && mkdir -p $(RESULTS)/$(PRESET)
	@failed=0; date '+test: %T unit, simulated and tidy tests'; \
	ctest --test-dir $(BUILD)/$(PRESET) -L '^(unit|sim|tidy)$$' -j $(JOBS) --output-on-failure --no-tests=error \
	  --output-junit "$(CURDIR)/$(RESULTS)/$(PRESET)/unit.xml" || failed=1; \
	date '+test: %T end-to-end tests'; \
	ctest --test-dir $(BUILD)/$(PRESET) -L '^e2e$$' -j $(JOBS) --output-on-failure --no-tests=error \
	  --output-junit "$(CURDIR)/$(RESULTS)/$(PRESET)/e2e.xml" || failed=1; \
	date '+test: %T end'; tools/test_summary.py $(RESULTS)/$(PRESET)/*.xml; \
	exit $$failed

check: PRESET := dev
check:  ## The contributor's loop: debug build, unit and tidy tests (2 minutes when warm)
	@tools/setup.sh --test
	@$(MAKE) build PRESET=$(PRESET)
	@ctest --test-dir $(BUILD)/$(PRESET) -L '^(unit|tidy)$$' -j $(JOBS) --output-on-failure --no-tests=error

soak:  ## The long runs; the log goes to build/soak.log
	@tools/setup.sh --test --engine
	@$(MAKE) build PRESET=release
	@bash -o pipefail -c "ctest --test-dir $(BUILD)/release -L '^soak$$' -V --no-tests=error 2>&1 | tee $(BUILD)/soak.log"

coverage:  ## Which lines that deal with errors the tests of io, policy and store reach, into docs/results/coverage.md
	@tools/setup.sh --dev
	@$(MAKE) build PRESET=coverage TARGETS="kvd_io_test kvd_policy_test kvd_store_test kvd_store_sim_test"
	@tools/error_coverage.py $(BUILD)/coverage/bin >$(BUILD)/coverage.md && mv $(BUILD)/coverage.md docs/results/coverage.md

bench-engine:  ## Time to first token against the peers; ARGS="--quick", ARGS="--check"
	@tools/setup.sh --bench --engine
	@$(MAKE) build PRESET=release TARGETS="kvdepot _kvdepot kvd_python_package"
	@$(PYTHON_ENV) $(ENGINE_PYTHON) -m bench.engine $(ARGS)

bench-sim:  ## The IPDPS'25 study predicted anew into build/bench/study.json, and the simulator's speed
	@tools/setup.sh
	@$(MAKE) build PRESET=release
	@PYTHONPATH="$(CURDIR)" python3 -m bench.sim $(ARGS)

bench-store:  ## A store against its drive (fio), RocksDB BlobDB and memcpy; ARGS="--quick", ARGS="--check"
	@tools/setup.sh --bench
	@$(MAKE) build PRESET=release TARGETS="kvdepot kvd_store_bench"
	@PYTHONPATH="$(CURDIR)" python3 -m bench.store $(ARGS)

bench-net:  ## A depot over loopback TCP against iperf3, Redis, memcached and Mooncake; ARGS="--quick", ARGS="--check"
	@tools/setup.sh --bench
	@$(MAKE) build PRESET=release TARGETS="kvdepot kvd_net_bench kvd_connection_driver"
	@PYTHONPATH="$(CURDIR)" python3 -m bench.net $(ARGS)

gpu-roofline:  ## Measure this GPU and write a catalogue entry for kvdepot plan (needs nvcc; runs where a GPU is)
	@command -v nvcc >/dev/null || { echo "gpu-roofline: no nvcc: install the CUDA toolkit"; exit 1; }
	@mkdir -p $(BUILD)
	@nvcc -O3 -std=c++20 -o $(BUILD)/gpu_roofline bench/gpu_roofline.cu -ldl
	@if nvidia-smi >/dev/null 2>&1; then $(BUILD)/gpu_roofline measured > $(BUILD)/gpu.toml && echo "$(BUILD)/gpu.toml"; \
	  else echo "gpu-roofline: built as $(BUILD)/gpu_roofline; there is no GPU here to run it on"; fi

fuzz:  ## Fuzz every parser for ARGS seconds in all (default 300)
	@tools/setup.sh --dev
	@.ci/fuzz $(or $(ARGS),300)

fuzz-hours:  ## Each fuzz target for an hour of a core, going on where it stopped; ARGS="--only kvd_wire --seconds 600"
	@tools/setup.sh --dev
	@$(MAKE) build PRESET=asan TARGETS=kvd_fuzzers
	@tests/fuzz/hours.py $(ARGS)

format:  ## Format all C++ sources in place
	@tools/format.sh

lint: PRESET := dev
lint:  ## clang-tidy over the sources that differ from main, or over ARGS="src/store/pool.cc ..."
	@$(MAKE) build PRESET=$(PRESET)
	@tools/lint.sh $(BUILD)/$(PRESET) $(ARGS)

tidy:  ## House rules: include direction, lengths, comments, environment reads, links
	@tools/tidy.py

setup:  ## Install what is missing, with all that contributors need
	@tools/setup.sh --dev

build: PRESET ?= release
build:  ## Configure and build PRESET (default release), all of it or TARGETS
	@test -f $(BUILD)/$(PRESET)/build.ninja || cmake --preset $(PRESET)
	@cmake --build $(BUILD)/$(PRESET) -j $(JOBS) $(if $(TARGETS),--target $(TARGETS))

clean:  ## Remove what was built; Python environments and the model stay (rm -r build removes them too)
	@rm -rf $(addprefix $(BUILD)/,dev release asan tsan test-results fuzz-corpus fuzz-hours demo bench soak.log)
