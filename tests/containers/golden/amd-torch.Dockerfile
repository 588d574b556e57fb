FROM rocm/pytorch:rocm7.2_ubuntu24.04_py3.12_pytorch_release_2.9.1 AS system
LABEL org.opencontainers.image.title="Levelfield: torch on amd" \
      levelfield.image="torch-amd"
ENV LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1
