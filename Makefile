# knarr's build. `make build` gives bin/knarr, a static binary that holds every
# program the node runs. Nothing is rebuilt while its sources are unchanged.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT     ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
KUBERNETES := v1.36.3
LDFLAGS    := -s -w -X knarr/internal/version.Version=$(VERSION) -X knarr/internal/version.Commit=$(COMMIT)
TAGS       := netgo osusergo no_systemd no_btrfs no_zfs no_devmapper

CB         := k8s.io/component-base/version
KUBECTL_LD := -s -w -X $(CB).gitVersion=$(KUBERNETES)+knarr -X $(CB).gitMajor=1 -X $(CB).gitMinor=36 \
              -X $(CB).gitCommit=$(COMMIT) -X $(CB).gitTreeState=clean

PROGRAMS := runc containerd-shim-runc-v2 kubectl knarr-cni pause
EMBEDDED := $(PROGRAMS:%=internal/programs/bin/%.zst)
GOFILES  := $(shell find . -name '*.go' -not -name '*_test.go' -not -path './build/*' -not -path './test/*')
PACKAGES := libseccomp-dev pkg-config gcc libc6-dev make

.PHONY: build programs deps clean-programs

build: bin/knarr

bin/knarr: $(EMBEDDED) $(GOFILES) go.mod go.sum
	CGO_ENABLED=0 go build -trimpath -tags "$(TAGS)" -ldflags "$(LDFLAGS)" -o $@ ./cmd/knarr

programs: $(EMBEDDED)

# deps installs what is missing, and asks nothing of a machine that has it all.
deps:
	@missing=(); for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing+=($$p); done; \
	if command -v apt-get >/dev/null && [ $${#missing[@]} -gt 0 ]; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$${missing[@]}"; fi

build/pack: internal/programs/pack/main.go
	CGO_ENABLED=0 go build -o $@ ./internal/programs/pack

internal/programs/bin/%.zst: build/% build/pack
	build/pack -o $(@D) $<

# Static, with seccomp: without it every pod with a profile fails to start.
build/runc: go.mod | deps
	CGO_ENABLED=1 go build -trimpath -tags "seccomp netgo osusergo" -ldflags "-s -w -extldflags -static" -o $@ github.com/opencontainers/runc

build/containerd-shim-runc-v2: go.mod
	CGO_ENABLED=0 go build -trimpath -tags "$(TAGS)" -ldflags "-s -w" -o $@ github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2

build/kubectl: go.mod $(wildcard kubectl/*.go)
	CGO_ENABLED=0 go build -trimpath -ldflags "$(KUBECTL_LD)" -o $@ ./kubectl

build/knarr-cni: go.mod $(filter-out %_test.go,$(wildcard node/cni/*.go node/cni/plugin/*.go))
	CGO_ENABLED=0 go build -trimpath -tags "$(TAGS)" -ldflags "-s -w" -o $@ ./node/cni/plugin

build/pause: node/containerruntime/pause/pause.c | deps
	@mkdir -p $(@D)
	$(CC) -Os -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
	  -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,noexecstack -s -Wall -Wextra -o $@ $<

clean-programs:
	rm -rf build $(EMBEDDED) $(EMBEDDED:.zst=.sha256)
