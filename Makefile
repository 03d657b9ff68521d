# make help lists the targets. Everything here works in a fresh clone with Go and, on Debian, apt.

# The golangci-lint that `make lint` installs into .tools.
LINT_VERSION := v2.15.0

GO          ?= go
PKG         ?= ./...
TEST_FLAGS  ?=
TIMEOUT     ?= 15m
# Packages tested at once. Several of them start servers of their own, so more than 2 need more than 2 cores.
TEST_P      ?= 2
# Packages that measure how long things take are tested after the others, when nothing else wants the cores.
TEST_ALONE  := /internal/misbehave$$|/orchestrator/pacing$$
# Packages whose tests are about whole processes and commands, or calculate for long and have no goroutines. They run
# first, without the race detector: what they run is tested under it, too, by the tests of its own packages, and as
# processes it would only be slow.
TEST_PLAIN  := /internal/(systest|demo|conformance|intake|archtest|clientgen)$$|/orchestrator/schedule$$|/cmd/tranche$$
# The dashboard in a browser: likewise, and alone, since it measures frames.
TEST_BROWSE := /internal/dashboard/browsertest$$
# Packages whose tests wait much and take long: they begin first, while the others are compiled.
TEST_LONG   := /internal/systest$$|/orchestrator$$|/workqueue$$
FUZZTIME    ?= 10s
BENCH_FLAGS ?=
DEMO_FLAGS  ?=

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# The version comes by -ldflags. Go's own stamp would fail in a checkout that belongs to another user.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -buildvcs=false

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Settings: PKG=./workqueue TEST_FLAGS='-run TestX -v' TIMEOUT=15m TEST_P=2 FUZZTIME=10s"
	@echo "            BENCH_FLAGS='…' DEMO_FLAGS='--pdfs all'"

.PHONY: demo
demo: postgres build ## set up what is missing, then make the year-end statements of a small bank
	bin/tranche demo $(DEMO_FLAGS)

# What vet has looked at is not vetted once more by each of the tests.
.PHONY: test
test: deps vet ## set up what is missing, then run all tests
	@set -e; all=$$($(GO) list $(PKG)); pick() { echo "$$all" | grep -E "$$1" || true; }; \
	all=$$(pick '$(TEST_LONG)'; echo "$$all" | grep -vE '$(TEST_LONG)' || true); \
	plain=$$(pick '$(TEST_PLAIN)'); browse=$$(pick '$(TEST_BROWSE)'); alone=$$(pick '$(TEST_ALONE)'); \
	others=$$(echo "$$all" | grep -vE '$(TEST_PLAIN)|$(TEST_BROWSE)|$(TEST_ALONE)' || true); \
	[ -z "$$plain" ] || $(GO) test -vet=off -timeout $(TIMEOUT) -p $(TEST_P) $(TEST_FLAGS) $$plain; \
	[ -z "$$browse" ] || $(GO) test -vet=off -timeout $(TIMEOUT) -p 1 $(TEST_FLAGS) $$browse; \
	[ -z "$$others" ] || $(GO) test -race -vet=off -timeout $(TIMEOUT) -p $(TEST_P) $(TEST_FLAGS) $$others; \
	[ -z "$$alone" ] || $(GO) test -race -vet=off -timeout $(TIMEOUT) -p 1 $(TEST_FLAGS) $$alone
	cd bench && $(GO) test -vet=off ./...

.PHONY: build
build: ## build bin/tranche
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/tranche ./cmd/tranche

.PHONY: bench
bench: postgres build ## measure against the floor and River (BENCH_FLAGS)
	cd bench && $(GO) run . $(BENCH_FLAGS)

.PHONY: lint
lint: ## check style and import directions
	tool=$$(scripts/golangci-lint.sh $(LINT_VERSION)) && $$tool run $(PKG)
	$(GO) test ./internal/archtest

.PHONY: vet
vet: ## check that everything compiles, the bench module too
	$(GO) vet ./...
	cd bench && $(GO) vet ./...

.PHONY: fmt
fmt: ## format the code
	tool=$$(scripts/golangci-lint.sh $(LINT_VERSION)) && $$tool fmt

.PHONY: generate
generate: ## write what follows from the API: docs/openapi.json, the table in docs/api.md, the Go client
	$(GO) run ./internal/clientgen

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: deps
deps: ## install PostgreSQL, a C compiler (for the race detector), Node.js and Chromium where they are missing
	@scripts/deps.sh postgres cc node chromium

# The part of deps that the binary itself needs.
.PHONY: postgres
postgres:
	@scripts/deps.sh postgres

.PHONY: clean
clean: ## remove what was built
	rm -rf bin .tools coverage.out
