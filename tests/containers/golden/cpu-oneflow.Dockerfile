FROM ubuntu:22.04 AS system
LABEL org.opencontainers.image.title="Levelfield: oneflow on cpu" \
      levelfield.image="oneflow-cpu"
# Debian keeps one version of a package at a time, so none is pinned; the image's digest says which it became.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libgomp1 libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/*

FROM system AS wheels
COPY wheels/ /wheels/
# The wheel of pip is what installs the others: an image needs no pip of its own.
RUN python3 -m venv --without-pip /opt/levelfield \
    && PYTHONPATH=/wheels/pip-26.3-py3-none-any.whl /opt/levelfield/bin/python -m pip install \
        --no-index --find-links=/wheels --no-cache-dir --disable-pip-version-check \
        --requirement /wheels/requirements.txt

FROM system
COPY --from=wheels /opt/levelfield /opt/levelfield
# What cannot be imported fails here, and not in a run.
RUN /opt/levelfield/bin/python -c "import oneflow"
ENV LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1
