# make help lists the targets. They need only Go and, on Debian, apt.

# Tools that scripts/tool.sh builds into .tools.
LINT       := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOTESTSUM  := gotest.tools/gotestsum@v1.13.0
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.15.1
HELM       := helm.sh/helm/v3/cmd/helm@v3.22.0

GO          ?= go
PKG         ?= ./...
TEST_FLAGS  ?=
TIMEOUT     ?= 20m
# Packages tested in parallel. Some start their own servers: use at most one per core.
TEST_P      ?= 2
# Pattern of the packages with goroutines or locks, which are tested with the race detector. TEST_PLAIN lists the
# exceptions: packages that mostly wait for programs or compute for long, examples (their goroutines are the SDK's), and
# packages whose lock guards a cache or pool that tests do not share. Whole nodes in the tests of orchestrator use the
# rest.
CONCURRENT   = /tranche/($$(git grep -lE '^[[:space:]]+go (func|[[:alnum:]_.]+)\(|\.Go\(|"sync(/[a-z]+)?"|/errgroup"' -- '*.go' ':!*_test.go' | xargs -n1 dirname | sort -u | paste -sd'|'))$$
TEST_CACHES := /internal/(api|backoff|connections|dashboard|fault)$$|/workqueue/(health|inspect|settle)$$|/endpoints/wire$$|/gather/fetch/sqlfetch$$|/tools/demokit$$|/examples(/|$$)
# Goroutines here only fan out requests and are waited for, or the API's many dependencies would be compiled a second
# time; make soak tests these with the race detector.
TEST_ASKS   := /internal/(alerts|archive|metrics|startup|api/(apicore|runs))$$|/gather/fetch/httpfetch$$|/orchestrator/embed$$|/workqueue/report$$
TEST_PLAIN  := /tools/generate$$|/internal/(cli|intake)(/|$$)|/workqueue/internal/plane$$|/migrations$$|$(TEST_CACHES)|$(TEST_ASKS)
# Tests that measure memory or time, or need very many rows: make soak runs them alone, without the race detector.
MEASURES    := SeriesAreBounded$$|ChunksOfUnevenParts$$|ErasurePagesErrors$$|ForecastsAreBounded$$|BoundedMemory$$|MemoryIsFlat$$|FewRoundTrips$$|ForecastsAreClose$$|DoneByTheirTime$$
# Slow tests, run by make proof: processes and commands, clusters, other databases, NATS failures, faulty services, a
# browser, the demo. PROOF_ALONE measures pace, so it runs alone. make soak, which measures frame rates, runs all so.
PROOF_ALONE := /tools/faultyservice$$|/internal/systest/natscluster$$
PROOF       := /internal/(systest|embedded)(/|$$)|/cmd/tranche$$|/orchestrator/streams$$|/tools/(demo|cluster|conformance|faultyservice)(/|$$)|/internal/dashboard/browsertest$$
PROOF_PKG   ?= ./...
# Packages of make proof in parallel. They mostly wait for processes.
PROOF_P     ?= 3
# Run only by make soak: installed artifacts, and tests that a change rarely breaks. make proof keeps one fault of each
# kind, Go conformance and the main paths through the dashboard.
SOAK_SHIP   := TestChart|TestCompose|TestImagesAsComposeRunsThem|TestReleaseArtifacts|TestTwoCheckoutsMakeTheSameBytes
SOAK_WALKS  := TestDashboard/a_million|TestDashboard/together/(in_4K|a_gate_that|a_list_that|a_part_is|a_run_that_stands|items_in|keyboard|many_tabs|parallel|two_runs|why_nothing)
SOAK_FAULTS := TestCluster/(one|two|all)_|TestTheDiskIsFull/the_private|TestStandbyThatLagsTakesOver/(two|nodes)|TestBackupIsPutBack/nodes_live|TestAFlowLoses/the_(states|questions)|TestNothingIsLostWithoutAFault
SOAK_TESTS  := $(SOAK_SHIP)|$(SOAK_WALKS)|$(SOAK_FAULTS)|TestMakeCluster|TestNodeServicePasses|TestNodePackage|TestProxiesOfTheDocs|TestTheSmallestServiceDoesWhatItMust|TestMutantsAreCaught|TestFlawsAreFound|TestARunIsArchivedInS3
# The longest packages start first, while the rest compile.
TEST_LONG   := /orchestrator(/(dispatch|sweep))?$$|/workqueue$$
# Tests in parallel within a package. They mostly wait.
TEST_PARALLEL ?= 4
# TESTED lists packages with tests; among and except filter $$all; tested runs packages and retries failures.
TESTED      := $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}'
PICK         = all=$$($(TESTED) $(PKG) | grep -vE '$(PROOF)|/internal/archtest$$'); \
	among() { grep -E "$$1" || true; }; except() { grep -vE "$$1" || true; }; \
	tool=$$(scripts/tool.sh $(GOTESTSUM)); tested() { $(SERVER) scripts/test.sh $$tool "$$@" -vet=off -timeout $(TIMEOUT); }
FUZZTIME    ?= 10s
# Number of histories of make simulate; SEED=n repeats one.
SEEDS       ?= 200
SEED        ?= 0
# PostgreSQL version for tests, 14 to 18. Default: the newest installed.
PG          ?=
ifneq ($(PG),)
export PG
export TRANCHE_POSTGRES_BIN = $(shell scripts/postgres.sh $(PG))
endif
# make matrix, per version: all tests of migrations, bitfield and trackers. Of the store: every statement prepared; runs
# from loading to deletion with failures, rerun and reset, also without prepared statements; the audit log's guard.
MATRIX      ?= 14 15 16 17 18
MATRIX_RUN  := ^Test(EveryStatementIsPrepared|StoreThroughAPooler|OldThings|ADeletedRunIsGone|TheAuditLog|RerunOfAnOpenRun|ResetAPartThatFailedAnotherStep|LoadShowsNothing)
# Long computations against an oracle do not depend on the version.
MATRIX_SKIP := Machine|Oracle|Deadlock|Mutants|OutOfReach
BENCH_FLAGS ?=
DEMO_FLAGS  ?=
CLUSTER_FLAGS ?=

# Tag of the images.
TAG        ?= dev

# -ldflags sets the version: Go's own VCS stamp fails in another user's checkout. -trimpath lets clones share the build
# cache.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -buildvcs=false -trimpath

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Settings: PKG=./workqueue PROOF_PKG=./internal/systest/… TEST_FLAGS='-run TestX -v' TIMEOUT=15m TEST_P=2 FUZZTIME=10s SEEDS=200"
	@echo "            BENCH_FLAGS='…' DEMO_FLAGS='--pdfs all' CLUSTER_FLAGS='--items 20000' PG=18 MATRIX='14 18'"

.PHONY: demo
demo: postgres build ## produce the year-end statements of a small bank (DEMO_FLAGS)
	bin/tranche demo $(DEMO_FLAGS)

.PHONY: cluster
cluster: postgres cluster-programs ## run three local machines and break them in turn (CLUSTER_FLAGS)
	bin/cluster $(CLUSTER_FLAGS)

# Builds this version, the same as the "next" version, and the nats-server of go.mod.
.PHONY: cluster-programs
cluster-programs: build
	VERSION=$$(bin/tranche version --json | sed -n 's/.*"version": *"\([^"]*\)".*/\1/p')-next scripts/build.sh bin/tranche-next
	scripts/build.sh bin/nats-server github.com/nats-io/nats-server/v2
	scripts/build.sh bin/cluster ./tools/cluster

# Tests each package once, with the race detector if it has goroutines. Only tests are retried, not compilation, vet or
# archtest. GOGC=400 saves a seventh of the time, in vet, the compiler, the linker and tests; no DWARF as much of the
# compiler's.
test proof: export GOFLAGS += -gcflags=all=-dwarf=false
.PHONY: test
test: export GOGC = 400
test: export GORACE = suppressions=$(CURDIR)/scripts/race.supp atexit_sleep_ms=0
test: SERVER = $(GO) run ./internal/testing/testenv/withpostgres
test: deps vet no-flaky ## install dependencies and run the tests
	$(GO) test -vet=off ./internal/archtest
	@set -e; $(PICK); flags="-p $(TEST_P) -parallel $(TEST_PARALLEL) $(TEST_FLAGS)"; \
	raced=$$(echo "$$all" | except '$(TEST_PLAIN)' | among "$(CONCURRENT)"); \
	plain=$$(echo "$$all" | grep -vFx "$$raced" || true); \
	first() { echo "$$1" | among '$(TEST_LONG)'; echo "$$1" | except '$(TEST_LONG)'; }; \
	tested "$$(first "$$raced")" -race $$flags -skip '$(MEASURES)'; \
	tested "$$(first "$$plain")" $$flags -skip '$(MEASURES)'

.PHONY: proof
proof: proof-deps no-flaky ## run the slow tests: processes, clusters, browsers
	@set -e; $(PICK); all=$$($(TESTED) $(PROOF_PKG) | among '$(PROOF)'); \
	tested "$$(echo "$$all" | except '$(PROOF_ALONE)')" -p $(PROOF_P) -parallel $(TEST_PARALLEL) $(TEST_FLAGS) -skip '$(SOAK_TESTS)'; \
	tested "$$(echo "$$all" | among '$(PROOF_ALONE)')" -p 1 $(TEST_FLAGS) -skip '$(SOAK_TESTS)'

.PHONY: soak
soak: soak-deps ## run all checks of a release: all slow tests, measurements, 10,000 simulations, every PostgreSQL, fuzzing
	$(MAKE) proof SOAK_TESTS='^$$' PROOF_P=1
	@set -e; $(PICK); \
	tested "$$all" -p 1 $(TEST_FLAGS) -run '$(MEASURES)|OfAnySize$$'
	$(MAKE) test TEST_ASKS='^$$' PKG='./internal/... ./gather/fetch/... ./orchestrator/embed ./workqueue/report'
	$(MAKE) simulate SEEDS=10000
	$(MAKE) matrix fuzz

.PHONY: simulate
simulate: postgres ## check invariants in SEEDS random histories of nodes, services and operators; SEED=n repeats one
	$(GO) test ./internal/testing/modeltest -count=1 -vet=off -timeout 5h -v -run '^TestSimulationAgainstAnOracle$$' \
	-parallel 4 -simulate.seeds=$(SEEDS) -simulate.seed=$(SEED)

# flaky.txt is written by scripts/test.sh.
.PHONY: no-flaky
no-flaky:
	@rm -f flaky.txt

.PHONY: matrix
matrix: ## run the migration, bitfield and main store tests on PostgreSQL 14 to 18
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
image: ## build images tranche:TAG and tranche-interest:TAG for amd64 and arm64 (podman or docker)
	scripts/image.sh $(TAG)

.PHONY: release-snapshot
release-snapshot: ## build all release artifacts into dist, without publishing
	tool=$$(scripts/tool.sh $(GORELEASER)) && COMMIT=$$(git rev-parse HEAD) \
	DATE=$$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd) $$tool release --snapshot --clean

.PHONY: release
release: ## draft a release of the checked-out tag (needs GITHUB_TOKEN and MINISIGN_KEY)
	@test -n "$$MINISIGN_KEY" || { echo "MINISIGN_KEY is not set; set it to the file of the signing key" >&2; exit 2; }
	tool=$$(scripts/tool.sh $(GORELEASER)) && $$tool release --clean

.PHONY: chart
chart: ## update the chart's golden files in deploy/helm/testdata
	@set -e; tool=$$(scripts/tool.sh $(HELM)); cd deploy/helm; for v in least all; do \
	$$tool template batch tranche --kube-version 1.31.0 --namespace jobs --values testdata/$$v.yaml >testdata/$$v.golden.yaml; done

.PHONY: vuln
vuln: ## check for known vulnerabilities; fail if the database is unreachable
	scripts/vuln.sh

.PHONY: bench
bench: postgres build ## benchmark against hand-written code (the floor) and River (BENCH_FLAGS)
	cd tools/bench && $(GO) run . $(BENCH_FLAGS)

.PHONY: lint
lint: tidy ## check style, import directions and go.mod
	tool=$$(scripts/tool.sh $(LINT)) && $$tool run $(PKG)
	$(GO) test ./internal/archtest

# Fails with a diff if go.mod is not tidy.
.PHONY: tidy
tidy:
	$(GO) mod tidy -diff
	cd tools/bench && $(GO) mod tidy -diff

.PHONY: vet
vet: ## vet all packages, including tools/bench
	$(GO) vet ./...
	cd tools/bench && $(GO) vet ./...

.PHONY: fmt
fmt: ## format the code
	tool=$$(scripts/tool.sh $(LINT)) && $$tool fmt

.PHONY: generate
generate: ## regenerate docs/openapi.json, the tables in docs and the Go client
	$(GO) run ./tools/generate

.PHONY: images
images: ## retake the screenshots in docs/images
	$(GO) test ./internal/dashboard/browsertest -count=1 -run '^TestImages$$' -images "$(CURDIR)/docs/images"

.PHONY: fuzz
fuzz: ## run each fuzz test for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: deps
deps: ## install PostgreSQL, Node.js, Python and a C compiler if missing
	@scripts/deps.sh postgres node python cc

# Needed only by make proof.
.PHONY: proof-deps
proof-deps: deps
	@scripts/deps.sh chromium pgbouncer prometheus

# Needed only by make soak.
.PHONY: soak-deps
soak-deps: proof-deps
	@scripts/deps.sh ship

# The only dependency of the binary itself.
.PHONY: postgres
postgres:
	@scripts/deps.sh postgres

.PHONY: clean
clean: ## remove build output
	rm -rf bin dist dist-files .tools coverage.out
