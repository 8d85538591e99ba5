PYTHON ?= python3.11
VENV := .venv
INSTALLED := $(VENV)/.installed
# faiss for the CPU and for NVIDIA's GPUs are the same module
FAISS := $(if $(shell command -v nvidia-smi),gpu,cpu)

.PHONY: install train lint quick quick-with-ray quick-without-ray test test-all test-gpu docs clean

install: $(INSTALLED)

train: $(INSTALLED)
	$(VENV)/bin/python jobs/train.py bag-unidec --with-base

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

quick: $(INSTALLED)
	$(MAKE) --jobs 2 quick-with-ray quick-without-ray

# in one process, so that Ray and its workers start once
quick-with-ray: $(INSTALLED)
	$(VENV)/bin/pytest --durations 15 -m "ray and not slow"

quick-without-ray: $(INSTALLED)
	$(VENV)/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 15 -m "not ray and not slow"

# at the same time, as tests of Ray wait for much
test: $(INSTALLED)
	$(MAKE) --jobs 3 lint quick-with-ray quick-without-ray

test-all: test
	$(VENV)/bin/pytest -rs --durations 15 -m slow

# on a machine with a GPU; elsewhere all of them are skipped
test-gpu: $(INSTALLED)
	$(VENV)/bin/pytest -rs --durations 15 -m gpu

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

# torch first and by pip, so that a CPU build that pip finds is installed before anything requires
# torch; then uv, which takes seconds where pip takes minutes
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt torch uv
	$(VENV)/bin/uv pip install --quiet --python $(VENV) --compile-bytecode \
		--constraint constraints.txt --editable ".[$(FAISS),onnx,serve,weights,stores,dev]"
	touch $@

clean:
	rm -rf $(VENV) outputs site
