# make help lists the targets. Everything here works in a fresh clone with Go and, on Debian, apt.

# The golangci-lint that `make lint` installs into .tools.
LINT_VERSION := v2.15.0

GO          ?= go
PKG         ?= ./...
TEST_FLAGS  ?=
TIMEOUT     ?= 20m
# Packages tested at once. Several of them start servers of their own, so more than 2 need more than 2 cores.
TEST_P      ?= 2
# Packages that measure how long things take are tested after the others, when nothing else wants the cores.
TEST_ALONE  := /internal/misbehave$$|/orchestrator/pacing$$
# Packages whose tests are about commands, start other programs and wait for them, or calculate for long and have no
# goroutines. They are left out under the race detector: what they run is tested under it, too, by the tests of its own
# packages, and it would only be slow.
TEST_PLAIN  := /internal/(archtest|generate|embedded)$$|/internal/(cli|intake)(/|$$)|/orchestrator/schedule$$|/cmd/tranche$$|/migrations$$
# What measures memory or time, or compares with a model in one goroutine, finds nothing about races; nor do chunks of a
# million items. It takes the place of a -skip in TEST_FLAGS.
RACE_SKIP   := BoundedMemory$$|Quickly$$|AreFast$$|AnOracle$$|^TestSizeOfAutomaticChunks$$
# What is slow by nature, and is `make proof`, without the race detector: whole processes killed, clusters, other
# databases, services with each flaw there is, a browser, the demo. What measures frames or pace is alone.
PROOF_ALONE := /internal/dashboard/browsertest$$|/internal/systest/natscluster$$
PROOF       := /internal/(systest|demo|cluster|conformance)(/|$$)|/internal/dashboard/browsertest$$
PROOF_PKG   ?= ./...
# Packages whose tests wait much and take long: they begin first, while the others are compiled.
TEST_LONG   := /orchestrator(/(dispatch|streams|sweep))?$$|/workqueue$$
# Tests of a package at once. They wait more than they calculate.
TEST_PARALLEL ?= 4
# The packages to test are in $$all; pick chooses among them.
PICK         = all=$$($(GO) list $(PKG) | grep -vE '$(PROOF)'); pick() { echo "$$all" | grep -E "$$1" || true; }
FUZZTIME    ?= 10s
# The version of PostgreSQL to test on, 14 to 18; empty: the newest that is installed.
PG          ?=
ifneq ($(PG),)
export PG
export TRANCHE_POSTGRES_BIN = $(shell scripts/postgres.sh $(PG))
endif
# What `make matrix` runs on each of them, quickly: every migration up and down, all of package migrations; every
# statement prepared; runs from their loading to their end, with failures, a re-run, a reset, without prepared
# statements, and their deletion, as the role that serves; the audit log's guard; bits and the tracker in SQL.
MATRIX      ?= 14 15 16 17 18
MATRIX_RUN  := ^Test(EveryStatementIsPrepared|StoreThroughAPooler|OldThings|ADeletedRunIsGone|TheAuditLog|RerunOfFailedItems|ResetRedoes|LoadShowsNothing)
# What calculates for long, to compare with an oracle, finds nothing about a version.
MATRIX_SKIP := Machine|Oracle|Random|Deadlock|Mutants|UnknownBatch|OutOfReach
BENCH_FLAGS ?=
DEMO_FLAGS  ?=
CLUSTER_FLAGS ?=

# The programs of Go's that releases are made and charts are checked with; scripts/tool.sh builds them into .tools.
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.15.1
HELM       := helm.sh/helm/v3/cmd/helm@v3.22.0
# What images are called: tranche:$(TAG).
TAG        ?= dev

# The version comes by -ldflags. Go's own stamp would fail in a checkout that belongs to another user.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -buildvcs=false

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Settings: PKG=./workqueue PROOF_PKG=./internal/systest/… TEST_FLAGS='-run TestX -v' TIMEOUT=15m TEST_P=2 FUZZTIME=10s"
	@echo "            BENCH_FLAGS='…' DEMO_FLAGS='--pdfs all' CLUSTER_FLAGS='--items 20000' PG=18 MATRIX='14 18'"

.PHONY: demo
demo: postgres build ## set up what is missing, then make the year-end statements of a small bank
	bin/tranche demo $(DEMO_FLAGS)

.PHONY: cluster
cluster: postgres cluster-programs ## set up what is missing, then run three machines of all of it on this one, and break them
	bin/cluster $(CLUSTER_FLAGS)

# What cluster shows: this version and, under another name, the next one, and the nats-server that tests are made with.
.PHONY: cluster-programs
cluster-programs: build
	VERSION=$$(bin/tranche version --json | sed -n 's/.*"version": *"\([^"]*\)".*/\1/p')-next scripts/build.sh bin/tranche-next
	scripts/build.sh bin/nats-server github.com/nats-io/nats-server/v2
	scripts/build.sh bin/cluster ./cmd/cluster

# The tests for people: all but the slow ones, without the race detector. What vet has looked at is not vetted once more
# by each of the tests.
.PHONY: test
test: deps vet ## set up what is missing, then run the tests for people
	@set -e; $(PICK); long=$$(pick '$(TEST_LONG)'); alone=$$(pick '$(TEST_ALONE)'); \
	others=$$(echo "$$all" | grep -vE '$(TEST_LONG)|$(TEST_ALONE)' || true); \
	[ -z "$$long$$others" ] || $(GO) test -vet=off -timeout $(TIMEOUT) -p $(TEST_P) -parallel $(TEST_PARALLEL) $(TEST_FLAGS) $$long $$others; \
	[ -z "$$alone" ] || $(GO) test -vet=off -timeout $(TIMEOUT) -p 1 $(TEST_FLAGS) $$alone
	cd bench && $(GO) test -vet=off ./...

.PHONY: proof
proof: proof-deps race ## set up what is missing, then run what is slow by nature: races, processes, clusters, browsers
	@set -e; all=$$($(GO) list $(PROOF_PKG) | grep -E '$(PROOF)'); \
	alone=$$(echo "$$all" | grep -E '$(PROOF_ALONE)' || true); others=$$(echo "$$all" | grep -vE '$(PROOF_ALONE)' || true); \
	[ -z "$$others" ] || $(GO) test -vet=off -timeout $(TIMEOUT) -p $(TEST_P) $(TEST_FLAGS) $$others; \
	[ -z "$$alone" ] || $(GO) test -vet=off -timeout $(TIMEOUT) -p 1 $(TEST_FLAGS) $$alone

.PHONY: race
race: export GORACE = suppressions=$(CURDIR)/scripts/race.supp
race: proof-deps ## run the tests for people under the race detector
	@set -e; $(PICK); long=$$(pick '$(TEST_LONG)'); alone=$$(pick '$(TEST_ALONE)'); \
	others=$$(echo "$$all" | grep -vE '$(TEST_LONG)|$(TEST_PLAIN)|$(TEST_ALONE)' || true); \
	[ -z "$$long$$others" ] || $(GO) test -race -vet=off -timeout $(TIMEOUT) -p $(TEST_P) -parallel $(TEST_PARALLEL) $(TEST_FLAGS) -skip '$(RACE_SKIP)' $$long $$others; \
	[ -z "$$alone" ] || $(GO) test -race -vet=off -timeout $(TIMEOUT) -p 1 $(TEST_FLAGS) -skip '$(RACE_SKIP)' $$alone

.PHONY: matrix
matrix: ## run store, migrations and bitfield on PostgreSQL 14, 15, 16, 17 and 18, a part of the store's tests on each
	@set -e; for v in $(MATRIX); do bin=$$(scripts/postgres.sh $$v); echo "PostgreSQL $$v"; \
	export PG=$$v TRANCHE_POSTGRES_BIN=$$bin; \
	$(GO) test -count=1 -vet=off -timeout $(TIMEOUT) -p $(TEST_P) -skip '$(MATRIX_SKIP)' $(TEST_FLAGS) \
	./migrations ./bitfield ./bitfield/pgbits ./bitfield/tracker; \
	$(GO) test -count=1 -vet=off -timeout $(TIMEOUT) -p $(TEST_P) -run '$(MATRIX_RUN)' -skip '$(MATRIX_SKIP)' \
	$(TEST_FLAGS) ./workqueue ./workqueue/redo ./workqueue/retention; done

.PHONY: build
build: ## build bin/tranche
	scripts/build.sh bin/tranche

.PHONY: image
image: ## build the images tranche:TAG and tranche-interest:TAG, for amd64 and arm64 (podman or docker)
	scripts/image.sh $(TAG)

.PHONY: release-snapshot
release-snapshot: ## make what a release would have, into dist, for all systems, and publish nothing
	tool=$$(scripts/tool.sh $(GORELEASER)) && COMMIT=$$(git rev-parse HEAD) \
	DATE=$$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd) $$tool release --snapshot --clean

.PHONY: release
release: ## make a draft release of the tag that is checked out; GITHUB_TOKEN says who does
	tool=$$(scripts/tool.sh $(GORELEASER)) && $$tool release --clean

.PHONY: chart
chart: ## write what the chart makes of deploy/helm/testdata, for the test to compare with
	@set -e; tool=$$(scripts/tool.sh $(HELM)); cd deploy/helm; for v in least all; do \
	$$tool template batch tranche --kube-version 1.31.0 --namespace jobs --values testdata/$$v.yaml >testdata/$$v.golden.yaml; done

.PHONY: vuln
vuln: ## look for known vulnerabilities, where their database can be reached
	scripts/vuln.sh

.PHONY: bench
bench: postgres build ## measure against the floor and River (BENCH_FLAGS)
	cd bench && $(GO) run . $(BENCH_FLAGS)

.PHONY: lint
lint: tidy ## check style and import directions, and that go.mod is tidy
	tool=$$(scripts/golangci-lint.sh $(LINT_VERSION)) && $$tool run $(PKG)
	$(GO) test ./internal/archtest

# Empty, or it says what `go mod tidy` would change.
.PHONY: tidy
tidy:
	$(GO) mod tidy -diff
	cd bench && $(GO) mod tidy -diff

.PHONY: vet
vet: ## check that everything compiles, the bench module too
	$(GO) vet ./...
	cd bench && $(GO) vet ./...

.PHONY: fmt
fmt: ## format the code
	tool=$$(scripts/golangci-lint.sh $(LINT_VERSION)) && $$tool fmt

.PHONY: generate
generate: ## write what follows from the code: docs/openapi.json, tables of docs, the Go client
	$(GO) run ./internal/generate

.PHONY: images
images: ## take the pictures in docs/images, of a run that is always the same
	$(GO) test ./internal/dashboard/browsertest -count=1 -run '^TestImages$$' -images "$(CURDIR)/docs/images"

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: deps
deps: ## install PostgreSQL, Node.js and Python where they are missing
	@scripts/deps.sh postgres node python

# What only the proofs need.
.PHONY: proof-deps
proof-deps: deps
	@scripts/deps.sh cc chromium pgbouncer prometheus ship

# The part of deps that the binary itself needs.
.PHONY: postgres
postgres:
	@scripts/deps.sh postgres

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist dist-files .tools coverage.out
