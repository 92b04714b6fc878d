# One image for the whole fleet; the command chooses the worker, as in compose.yaml:
#   docker build -t sendonce . && docker run --rm sendonce ingest --help
# No shell inside: a worker asks itself how it is (`ingest healthcheck`).

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY migrations migrations
# A member of the workspace, without which the lock file does not hold; nothing of it is built.
COPY tests tests
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --workspace --bins \
    && cd target/release \
    && install -D --strip --target-directory=/out \
        sendonce ingest sms-sender whatsapp-sender dlr-ingester reconciler provider-sim

# libc, CA certificates, time zones, and a user without rights.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /out/ /usr/local/bin/
# By number, so that Kubernetes can tell that it is not root.
USER 65532:65532
WORKDIR /
# 9090: health and metrics. 8080: receipts (dlr-ingester).
EXPOSE 9090 8080
# SIGTERM drains; give it longer than budgets.drain.
STOPSIGNAL SIGTERM
CMD ["sendonce", "--help"]
