# Everything a newcomer needs: `make demo` and `make test`. Each target sets up what it uses.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# A file's tests share what it sets up; some wait for servers, so there is one worker more than cores.
WORKERS := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
DEV    := $(VENV)/.dev

.PHONY: demo test quick e2e-long lint bench tools generated image-test requirements clean

demo: $(READY) ## The built-in simulated vLLM runs out of KV cache, storms and recovers: a terminal and a status page
	$(BIN)/kvwatch demo

test: $(DEV) tools ## Every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

quick: lint ## Lint and the tests of the pure packages: no network, no binaries
	$(BIN)/python -m pytest -q -n auto tests/classifier tests/test_docs.py tests/test_contributing.py

e2e-long: $(DEV) tools ## Storms after busy minutes, through dead Alertmanagers and restarts, on real binaries (15 minutes)
	$(BIN)/python -m pytest tests/e2e/long_storms.py -n 3 -s

lint: $(DEV) ## Style, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

bench: $(DEV) tools ## Timings against a peer in the same run; the results stand in docs/figures.md
	$(BIN)/python -m pytest tests/bench --benchmarks -s

tools: ## What the tests ask of others: Prometheus, Alertmanager, models of custom resources, Helm, axe-core; into .cache
	-sh tests/tools/fetch.sh
	-PYTHON=$(PYTHON) sh tests/tools/fetch_crd_models.sh
	-PYTHON=$(PYTHON) sh tests/tools/fetch_helm.sh
	-sh tests/tools/fetch_axe.sh

generated: $(READY) ## The rule file, its wrapping for the Prometheus operator, the Grafana dashboards
	$(BIN)/python rules/build.py
	$(BIN)/python deploy/grafana/build.py
	$(BIN)/python deploy/kubernetes/prometheus_rule.py

image-test: ## Build the image and run it, without a Docker daemon (needs root, buildah, debootstrap; minutes)
	bash tests/e2e/image_test.sh

requirements: ## Pin every dependency again
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --universal pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --universal --group build -o requirements-build.txt
	$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --universal pyproject.toml --group dev --group build -o requirements-dev.txt

$(READY): requirements.txt requirements-build.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --require-hashes -r requirements.txt -r requirements-build.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

$(DEV): $(READY) requirements-dev.txt
	$(BIN)/python -m pip install -q --require-hashes -r requirements-dev.txt
	touch $@

clean: ## Everything that was made
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache dist
