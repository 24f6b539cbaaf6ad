# "make help" lists the targets. Everything but build, lint and test-unit needs root and a Debian machine; what is
# missing there is installed by scripts/setup.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOBUILD     := CGO_ENABLED=0 go build -trimpath -ldflags='-s -w'
# The side-by-side benchmark, for make bench: it lies beside this repository, or nowhere.
COMPARE     := ../shared/bench/compare
# Of make soak.
SESSIONS    := 1000
FOR         := 10m
# Packages with goroutines of their own are tested with the race detector too.
RACE        := ./cmd/harbor ./control/... ./controller/... ./harbor ./images/... ./lifecycle/... ./proxy/... ./e2e/lab/internet
# Packages whose tests make network namespaces of their own.
KERNEL      := ./dockernet/cut ./dockernet/engine ./dockernet/gate ./dockernet/guard ./dockernet/netns ./dockernet/nflog ./dockernet/nft ./dockernet/resolver ./harbor
# Engines and network namespaces are made by root alone.
AS_ROOT     := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=PATH,HOME,DOCKER_HOST)
GO_TEST     := go test $(if $(AS_ROOT),-exec '$(AS_ROOT)')

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## the programs and the demo into bin/, static
	@mkdir -p bin
	$(GOBUILD) -o bin/sluice-proxy ./cmd/proxy
	$(GOBUILD) -o bin/sluice ./cmd/controller
	$(GOBUILD) -o bin/sluice-modal ./cmd/modal
	$(GOBUILD) -o bin/sluice-harbor ./cmd/harbor
	$(GOBUILD) -o bin/demo ./e2e/demo

.PHONY: demo
demo: setup-demo build ## the main job in one screen, on the running engine or in a lab of its own
	@$(AS_ROOT) bin/demo

.PHONY: test
test: setup-test lint test-unit test-race test-bench test-kernel test-browser test-e2e ## every check and every test; installs what is missing

.PHONY: test-unit
test-unit: ## what needs no privilege, no engine and no network
	go test ./...

.PHONY: test-race
test-race: ## packages with goroutines, under the race detector
	go test -race $(RACE)

.PHONY: test-bench
test-bench: # every benchmark once, so that they keep working
	go test -run '^$$' -bench . -benchtime 1x ./...

.PHONY: test-kernel
test-kernel: ## rules, sockets and conntrack in network namespaces, as root
	$(GO_TEST) -count=1 -timeout 15m $(KERNEL) -run-kernel
	$(GO_TEST) -count=1 -timeout 15m ./dockernet/engine -run-docker

.PHONY: test-browser
test-browser: ## the report in a browser, as a phone and as a desktop show it
	go test -count=1 -timeout 5m ./lifecycle/evidence -run-browser

.PHONY: test-e2e
test-e2e: build ## scenarios on an engine in a closed network, as root
	$(GO_TEST) -count=1 -timeout 30m ./e2e/lab/closed -run-docker
	$(GO_TEST) -count=1 -timeout 30m ./e2e -run-docker -bin '$(CURDIR)/bin'

.PHONY: test-engines
test-engines: setup-engines build ## the same on a current engine, with its rules made by iptables and by nftables, as root
	@engine=$$(scripts/engine); for firewall in iptables nftables; do \
	  echo "test-engines: $$(basename "$$engine"), $$firewall"; \
	  $(GO_TEST) -count=1 -timeout 15m ./dockernet/engine -run-docker -engine "$$engine" -firewall $$firewall; \
	  $(GO_TEST) -count=1 -timeout 30m ./e2e -run-docker -bin '$(CURDIR)/bin' -engine "$$engine" -firewall $$firewall; \
	done

.PHONY: bench
bench: build ## every figure beside its target, in one table, as root: COMPARE=../shared/bench/compare
	go build -o bin/bench ./e2e/bench
	$(AS_ROOT) bin/bench -bin '$(CURDIR)/bin' -compare '$(wildcard $(COMPARE))'

.PHONY: bench-go
bench-go: ## benchmarks of packages, with allocations
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-controller
bench-controller: build ## what the controller costs, beside AgentCompass and simulated containers, as root
	go build -o bin/figures ./e2e/figures
	$(AS_ROOT) bin/figures -bin '$(CURDIR)/bin'

.PHONY: growth
growth: build ## what many containers, targets and flows cost, as a picture, as root
	go build -o bin/figures ./e2e/figures
	$(AS_ROOT) bin/figures -bin '$(CURDIR)/bin' -only growth -points docs/pictures/growth.csv
	scripts/plot-growth docs/pictures/growth.csv docs/pictures/growth.png

.PHONY: soak
soak: build ## containers used in every way while their phases change, as root: SESSIONS=1000 FOR=10m
	go build -o bin/figures ./e2e/figures
	$(AS_ROOT) bin/figures -bin '$(CURDIR)/bin' -only soak -beside '$(SESSIONS)' -for '$(FOR)'

.PHONY: test-long
test-long: ## what takes longer than a change can wait for: every fuzz target, the stress test, ten minutes of soak
	scripts/fuzz 20s
	go test -race ./proxy -run 'TestStress$$' -count=1 -stress.time 1m
	$(MAKE) soak

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt -w needed:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what the code calls, but for those that docs/dependencies.md explains
	@scripts/vulncheck

.PHONY: images
images: build ## load sluice-proxy:dev and sluice:dev into the engine that DOCKER_HOST names
	go run ./images/load bin/sluice-proxy bin/sluice

.PHONY: man
man: ## dist/man: a manual page of every command
	@mkdir -p dist/man/man1
	SOURCE_DATE_EPOCH=$$(git show --no-patch --format=%ct HEAD) \
	  go test -count=1 ./cmd/controller ./cmd/proxy -run '^TestManualPages$$' -man '$(CURDIR)/dist/man/man1'

.PHONY: release
release: ## dist/: tarballs, checksums and SBOMs of the last commit
	@scripts/release

.PHONY: release-verify
release-verify: ## the same, built twice and compared
	@scripts/release --verify

.PHONY: clean
clean: ## remove what was built; caches outside the tree stay
	rm -rf bin dist

.PHONY: setup-demo setup-test setup-engines
setup-demo:
	@scripts/setup demo
setup-test:
	@scripts/setup test
setup-engines:
	@scripts/setup engines
