# The base is an argument: any image with python3 (3.11 or newer) and its venv module. For a release, pass it by digest.
ARG BASE=docker.io/library/python:3.13-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements.txt requirements-build.txt ./
# Two environments: one with the tools that build, and the one that is shipped, which has no pip.
RUN python3 -m venv /build \
    && /build/bin/pip install --require-hashes --requirement requirements-build.txt \
    && python3 -m venv --without-pip /opt/kvwatch \
    && /build/bin/pip --python /opt/kvwatch/bin/python install --require-hashes --requirement requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY kvwatch kvwatch
COPY rules/RUNBOOK.md rules/RUNBOOK.md
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
    && /build/bin/pip --python /opt/kvwatch/bin/python install --no-deps --no-index /dist/*.whl

FROM ${BASE}
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="kvwatch" \
      org.opencontainers.image.description="A watchdog for vLLM: says whether the KV cache, the compute side or nothing holds a server back" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=build /opt/kvwatch /opt/kvwatch
# One heap for all threads: Python lets one of them run at a time, and a heap of its own for each costs a fleet a sixth of its memory.
ENV PATH=/opt/kvwatch/bin:$PATH \
    MALLOC_ARENA_MAX=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /
# Numeric, so that Kubernetes can tell that it is not root. Nothing is written to the root file system.
USER 65532:65532
EXPOSE 20058
# Kubernetes ignores it and has its own probes; Docker, Podman and Compose use it.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s --retries=3 CMD ["python", "-m", "kvwatch.daemon.healthcheck"]
ENTRYPOINT ["kvwatch"]
CMD ["run"]
