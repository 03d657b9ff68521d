# make help lists the targets. Everything here works in a fresh clone with Go and, on Debian, apt.

# Programs that scripts/tool.sh builds into .tools.
LINT       := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOTESTSUM  := gotest.tools/gotestsum@v1.13.0
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.15.1
HELM       := helm.sh/helm/v3/cmd/helm@v3.22.0

GO          ?= go
PKG         ?= ./...
TEST_FLAGS  ?=
TIMEOUT     ?= 20m
# Packages tested at once. Several of them start servers of their own, so more than 2 need more than 2 cores.
TEST_P      ?= 2
# Packages that have goroutines or locks of their own, as an expression: tested under the race detector, but for those
# that start programs and wait for them, or calculate for long, or whose lock guards a cache or a pool that no test
# shares; and for examples, whose goroutines are the SDK's. The whole nodes of orchestrator's tests use the rest.
CONCURRENT   = /tranche/($$(git grep -lE '^[[:space:]]+go (func|[[:alnum:]_.]+)\(|\.Go\(|"sync(/[a-z]+)?"|/errgroup"' -- '*.go' ':!*_test.go' | xargs -n1 dirname | sort -u | paste -sd'|'))$$
TEST_CACHES := /internal/(api|backoff|connections|dashboard|fault)$$|/workqueue/(health|inspect|settle)$$|/endpoints/wire$$|/gather/fetch/sqlfetch$$|/tools/demokit$$|/examples(/|$$)
# Those whose goroutines only ask or send several things at once and are waited for: raced by make soak.
TEST_ASKS   := /internal/(alerts|archive|metrics|api/runs)$$|/gather/fetch/httpfetch$$|/workqueue/report$$
TEST_PLAIN  := /tools/generate$$|/internal/(cli|intake)(/|$$)|/workqueue/internal/plane$$|/migrations$$|$(TEST_CACHES)|$(TEST_ASKS)
# Tests that measure memory or time, which other programs change, or need very many rows. Run by make soak only, without
# the race detector.
MEASURES    := SeriesAreBounded$$|ChunksOfUnevenParts$$|ErasurePagesErrors$$|ForecastsAreBounded$$|BoundedMemory$$|MemoryIsFlat$$|FewRoundTrips$$|ForecastsAreClose$$|DoneByTheirTime$$
# Slow by nature, and run by make proof: whole processes and commands, clusters, other databases, NATS servers of every
# kind under attack, services with each flaw there is, a browser, the demo. What measures frames or pace runs alone.
PROOF_ALONE := /internal/dashboard/browsertest$$|/tools/faultyservice$$|/internal/systest/natscluster$$
PROOF       := /internal/(systest|embedded)(/|$$)|/cmd/tranche$$|/orchestrator/streams$$|/tools/(demo|cluster|conformance|faultyservice)(/|$$)|/internal/dashboard/browsertest$$
PROOF_PKG   ?= ./...
# Packages of make proof at once: they wait for processes more than they calculate.
PROOF_P     ?= 3
# Run by make soak only: what users install, and tests that one change can hardly break. make proof keeps one fault of
# each kind, the conformance of Go, and people's main ways through the dashboard.
SOAK_SHIP   := TestChart|TestCompose|TestImagesAsComposeRunsThem|TestReleaseArtefacts|TestTwoCheckoutsMakeTheSameBytes
SOAK_WALKS  := TestDashboard/a_million|TestDashboard/together/(in_4K|a_gate_that|a_list_that|a_part_is|a_run_that_stands|items_in|keyboard|many_tabs|parallel|two_runs|why_nothing)
SOAK_FAULTS := TestCluster/(one|two|all)_|TestTheDiskIsFull/the_private|TestStandbyThatLagsTakesOver/(two|nodes)|TestBackupIsPutBack/nodes_live|TestAFlowLoses/the_(states|questions)|TestNothingIsLostWithoutAFault
SOAK_TESTS  := $(SOAK_SHIP)|$(SOAK_WALKS)|$(SOAK_FAULTS)|TestMakeCluster|TestNodeServicePasses|TestNodePackage|TestProxiesOfTheDocs|TestTheSmallestServiceDoesWhatItMust|TestMutantsAreCaught|TestFlawsAreFound|TestARunIsArchivedInS3
# Packages whose tests wait much and take long: they begin first, while the others are compiled.
TEST_LONG   := /orchestrator(/(dispatch|sweep))?$$|/workqueue$$
# Tests of a package at once. They wait more than they calculate.
TEST_PARALLEL ?= 4
# among chooses packages of $$all, except leaves some out; tested runs packages, and what fails again.
PICK         = all=$$($(GO) list $(PKG) | grep -vE '$(PROOF)|/internal/archtest$$'); \
	among() { grep -E "$$1" || true; }; except() { grep -vE "$$1" || true; }; \
	tool=$$(scripts/tool.sh $(GOTESTSUM)); tested() { $(SERVER) scripts/test.sh $$tool "$$@" -vet=off -timeout $(TIMEOUT); }
FUZZTIME    ?= 10s
# Histories of make simulate; SEED=n repeats one.
SEEDS       ?= 200
SEED        ?= 0
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
MATRIX_RUN  := ^Test(EveryStatementIsPrepared|StoreThroughAPooler|OldThings|ADeletedRunIsGone|TheAuditLog|RerunOfAnOpenRun|ResetAPartThatFailedAnotherStep|LoadShowsNothing)
# What calculates for long, to compare with an oracle, finds nothing about a version.
MATRIX_SKIP := Machine|Oracle|Deadlock|Mutants|OutOfReach
BENCH_FLAGS ?=
DEMO_FLAGS  ?=
CLUSTER_FLAGS ?=

# What images are called: tranche:$(TAG).
TAG        ?= dev

# The version comes by -ldflags. Go's own stamp would fail in a checkout that belongs to another user. With -trimpath
# clones share what is built.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -buildvcs=false -trimpath

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Settings: PKG=./workqueue PROOF_PKG=./internal/systest/… TEST_FLAGS='-run TestX -v' TIMEOUT=15m TEST_P=2 FUZZTIME=10s SEEDS=200"
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
	scripts/build.sh bin/cluster ./tools/cluster

# Each package once: under the race detector where it has goroutines. Compilation, vet and archtest have no second try.
# Collections of garbage cost much, with the race detector and in the linker: fewer of them save a seventh of the time.
.PHONY: test
test: export GORACE = suppressions=$(CURDIR)/scripts/race.supp atexit_sleep_ms=0
test: SERVER = $(GO) run ./internal/testing/testenv/withpostgres
test: deps vet no-flaky ## set up what is missing, then run the tests
	$(GO) test -vet=off ./internal/archtest
	@set -e; $(PICK); flags="-p $(TEST_P) -parallel $(TEST_PARALLEL) $(TEST_FLAGS)"; \
	raced=$$(echo "$$all" | except '$(TEST_PLAIN)' | among "$(CONCURRENT)"); \
	plain=$$(echo "$$all" | grep -vFx "$$raced" || true); \
	first() { echo "$$1" | among '$(TEST_LONG)'; echo "$$1" | except '$(TEST_LONG)'; }; \
	export GOGC=400; tested "$$(first "$$raced")" -race $$flags -skip '$(MEASURES)'; \
	tested "$$(first "$$plain")" $$flags -skip '$(MEASURES)'

.PHONY: proof
proof: proof-deps no-flaky ## set up what is missing, then run what is slow by nature: processes, clusters, browsers
	@set -e; $(PICK); all=$$($(GO) list $(PROOF_PKG) | among '$(PROOF)'); \
	tested "$$(echo "$$all" | except '$(PROOF_ALONE)')" -p $(PROOF_P) -parallel $(TEST_PARALLEL) $(TEST_FLAGS) -skip '$(SOAK_TESTS)'; \
	tested "$$(echo "$$all" | among '$(PROOF_ALONE)')" -p 1 $(TEST_FLAGS) -skip '$(SOAK_TESTS)'

.PHONY: soak
soak: soak-deps ## run what a release wants besides: all proofs, measurements, 10,000 simulated histories, every PostgreSQL, fuzzing
	$(MAKE) proof SOAK_TESTS='^$$'
	@set -e; $(PICK); \
	tested "$$all" -p 1 $(TEST_FLAGS) -run '$(MEASURES)|OfAnySize$$'
	$(MAKE) test TEST_ASKS='^$$' PKG='./internal/... ./gather/fetch/... ./workqueue/report'
	$(MAKE) simulate SEEDS=10000
	$(MAKE) matrix fuzz

.PHONY: simulate
simulate: postgres ## simulate SEEDS histories of nodes, streams, services, a collector and operators on a real store; SEED=n repeats one
	$(GO) test ./internal/testing/modeltest -count=1 -vet=off -timeout 5h -v -run '^TestSimulationAgainstAnOracle$$' \
	-parallel 4 -simulate.seeds=$(SEEDS) -simulate.seed=$(SEED)

# What scripts/test.sh writes.
.PHONY: no-flaky
no-flaky:
	@rm -f flaky.txt

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
	@test -n "$$MINISIGN_KEY" || { echo "set MINISIGN_KEY, the file of the key that signs the checksums" >&2; exit 2; }
	tool=$$(scripts/tool.sh $(GORELEASER)) && $$tool release --clean

.PHONY: chart
chart: ## write what the chart makes of deploy/helm/testdata, for the test to compare with
	@set -e; tool=$$(scripts/tool.sh $(HELM)); cd deploy/helm; for v in least all; do \
	$$tool template batch tranche --kube-version 1.31.0 --namespace jobs --values testdata/$$v.yaml >testdata/$$v.golden.yaml; done

.PHONY: vuln
vuln: ## look for known vulnerabilities; fails if it cannot look
	scripts/vuln.sh

.PHONY: bench
bench: postgres build ## measure against the floor and River (BENCH_FLAGS)
	cd tools/bench && $(GO) run . $(BENCH_FLAGS)

.PHONY: lint
lint: tidy ## check style and import directions, and that go.mod is tidy
	tool=$$(scripts/tool.sh $(LINT)) && $$tool run $(PKG)
	$(GO) test ./internal/archtest

# Empty, or it says what `go mod tidy` would change.
.PHONY: tidy
tidy:
	$(GO) mod tidy -diff
	cd tools/bench && $(GO) mod tidy -diff

.PHONY: vet
vet: ## check that everything compiles, the bench module too
	$(GO) vet ./...
	cd tools/bench && $(GO) vet ./...

.PHONY: fmt
fmt: ## format the code
	tool=$$(scripts/tool.sh $(LINT)) && $$tool fmt

.PHONY: generate
generate: ## write what follows from the code: docs/openapi.json, tables of docs, the Go client
	$(GO) run ./tools/generate

.PHONY: images
images: ## take the pictures in docs/images, of a run that is always the same
	$(GO) test ./internal/dashboard/browsertest -count=1 -run '^TestImages$$' -images "$(CURDIR)/docs/images"

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: deps
deps: ## install PostgreSQL, Node.js, Python and a C compiler where they are missing
	@scripts/deps.sh postgres node python cc

# What only the proofs need.
.PHONY: proof-deps
proof-deps: deps
	@scripts/deps.sh chromium pgbouncer prometheus

# What only make soak needs.
.PHONY: soak-deps
soak-deps: proof-deps
	@scripts/deps.sh ship

# The part of deps that the binary itself needs.
.PHONY: postgres
postgres:
	@scripts/deps.sh postgres

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist dist-files .tools coverage.out
