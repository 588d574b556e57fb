FROM ascendai/pytorch:ubuntu-python3.8-cann8.0.rc1.beta1-pytorch2.1.0 AS system
LABEL org.opencontainers.image.title="Levelfield: torch on ascend" \
      levelfield.image="torch-ascend"
ENV LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1
