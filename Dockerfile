# lullm on a CPU: the wheel is built with its native ops, and torch comes without CUDA, whose libraries take gigabytes.
#   docker build -t lullm . && docker run -p 127.0.0.1:8000:8000 lullm
FROM python:3.12-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends cmake g++ make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY --from=build /wheels /wheels
# hadolint ignore=DL3013
RUN pip install --no-cache-dir /wheels/*.whl \
 && useradd --create-home --uid 1000 lullm \
 && mkdir -p /home/lullm/.cache/huggingface \
 && chown -R lullm /home/lullm/.cache
USER 1000
WORKDIR /home/lullm
VOLUME /home/lullm/.cache/huggingface
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=600s CMD ["lullm", "ps"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["lullm"]
CMD ["serve", "demo", "--host", "0.0.0.0"]
