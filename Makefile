# knarr's build. `make build` gives bin/knarr, a static binary that holds every
# program the node runs. Nothing is rebuilt while its sources are unchanged.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT     ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
KUBERNETES := v1.36.3
LDFLAGS    := -s -w -X knarr/internal/version.Version=$(VERSION) -X knarr/internal/version.Commit=$(COMMIT)
TAGS       := grpcnotrace netgo osusergo no_systemd no_btrfs no_zfs no_devmapper nri_no_wasm

CB         := k8s.io/component-base/version
KUBECTL_LD := -s -w -X $(CB).gitVersion=$(KUBERNETES)+knarr -X $(CB).gitMajor=1 -X $(CB).gitMinor=36 \
              -X $(CB).gitCommit=$(COMMIT) -X $(CB).gitTreeState=clean

PROGRAMS := knarr-shim knarr-shim-verb kubectl knarr-cni knarr-holder knarr-kine pause gateway-definitions
EMBEDDED := $(PROGRAMS:%=internal/programs/bin/%.zst)
GOFILES  := $(shell find . -name '*.go' -not -name '*_test.go' -not -path './build/*' -not -path './docs/*' -not -path './test/*')
PACKAGES := libseccomp-dev pkg-config gcc libc6-dev make zstd

TEST_PACKAGES := busybox-static bsdutils iptables curl dbus-daemon

# Where `make up` keeps its cluster, and flags for its server.
DATA  ?= /var/lib/knarr
FLAGS ?=
SUDO  := $(if $(filter 0,$(shell id -u)),,sudo)

# The packages where goroutines meet are tested with the race detector too.
RACE := ./controlplane/apiserver/watchcache ./controlplane/apiserver/pieces ./controlplane/apiserver/storage/... ./controlplane/apiserver/endpoints ./controlplane/apiserver/endpoints/ownership ./controlplane/apiserver/serviceallocation ./controlplane/apiserver/connect ./controlplane/apiserver/transport ./controlplane/apiserver/overload ./internal/equal ./internal/run \
        ./internal/memnet ./internal/informer ./internal/controller ./internal/failover ./controlplane/etcd $(wildcard ./controlplane/scheduler) ./node/kubeproxy ./addons/dns \
        ./addons/gateway ./addons/gateway/backend ./addons/gateway/dataplane ./addons/gateway/http1 ./addons/gateway/acme ./addons/gateway/http2 ./addons/gateway/http3 ./addons/gateway/listener ./addons/gateway/proxy ./addons/gateway/tracing

.PHONY: build release deps test-deps up down test test-long lint unit race microbench fuzz smoke nodes vm vm-systemd vm-volumes vm-density vm-specs vm-node-specs storm helm envtest mutants faults bench pictures swap gateway-conformance gateway-soak soak warm-pods runtimes acme tour conformance conformance-sample e2e e2e-node clean

# Generated code that is called seldom is compiled without inlining: that makes
# bin/knarr 2 MB smaller.
COLD := k8s.io/client-go/kubernetes k8s.io/client-go/informers k8s.io/client-go/listers k8s.io/client-go/applyconfigurations \
        github.com/google/gnostic-models github.com/containerd/nri github.com/containerd/containerd/api go.opentelemetry.io
empty :=
comma := ,
# Everything is compiled with the same flags, so that what one target compiled
# no other compiles again: vet, the linter and the tests find bin/knarr's packages
# in Go's cache. KNARR_GO is go for what is linked into bin/knarr.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -tags=$(subst $(empty) $(empty),$(comma),$(TAGS)) $(COLD:%=-gcflags=%/...=-l))
export KNARR_GOFLAGS := $(GOFLAGS) -overlay=$(CURDIR)/build/template.json
KNARR_GO := GOFLAGS="$$KNARR_GOFLAGS" go

# Its programs are built side by side: linking one, or compiling SQLite in C, leaves
# the other cores idle.
build:
	@$(MAKE) --no-print-directory -j$$(nproc) bin/knarr

# Code that may call any method by a name known only when it runs makes the linker
# keep every exported method of every type: 20 MB of bin/knarr. Two places would:
# text/template, whose only users in it are containerd's templates, which name
# fields, so that it gets one that finds no methods (kubectl's and upstream's
# programs have the whole); and go-cmp, see internal/gocmp.
build/template.json: Makefile
	@mkdir -p $(@D)
	@from="$$(go env GOROOT)/src/text/template/exec.go" && \
	sed 's/:= ptr\.MethodByName(fieldName); method\.IsValid()/:= (reflect.Value{}); method.IsValid()/' "$$from" >build/template && \
	if cmp -s "$$from" build/template; then echo "text/template of $$(go version) reads otherwise: mend this rule" >&2; exit 1; fi && \
	printf '{"Replace":{"%s":"%s"}}' "$$from" "$(CURDIR)/build/template" >$@

bin/knarr: $(EMBEDDED) $(GOFILES) build/template.json
	$(KNARR_GO) build -ldflags "$(LDFLAGS)" -o $@ ./cmd/knarr

# release packs bin/knarr for downloads, into build: 50 MB at most. `zstd -d` unpacks it.
RELEASE = knarr-$(VERSION)-linux-$(shell go env GOARCH)
release: build
	zstd -q -f -19 bin/knarr -o build/$(RELEASE).zst
	cd build && sha256sum $(RELEASE).zst | tee $(RELEASE).zst.sha256 && \
	size=$$(stat -c %s $(RELEASE).zst) && echo "$$size bytes" && [ $$size -le 50000000 ]

# install installs what is missing, and asks nothing of a machine that has it all.
define install
	@missing=(); for p in $(1); do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing+=($$p); done; \
	if command -v apt-get >/dev/null && [ $${#missing[@]} -gt 0 ]; then \
	  $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$${missing[@]}"; fi
endef

deps:
	$(call install,$(PACKAGES))

test-deps:
	$(call install,$(TEST_PACKAGES))

build/pack: internal/programs/pack/main.go
	go build -o $@ ./internal/programs/pack

internal/programs/bin/%.zst: build/% build/pack | deps
	build/pack -o $(@D) $<

# Static, with seccomp: without it every pod with a profile fails to start.
SHIM_TAGS := seccomp netgo osusergo runc_nocriu grpcnotrace
build/knarr-shim: go.mod $(filter-out %_test.go,$(wildcard node/containerruntime/shim/*.go node/containerruntime/shim/program/*.go)) | deps
	GOFLAGS=-trimpath CGO_ENABLED=1 go build -tags "$(SHIM_TAGS)" -ldflags "-s -w -extldflags -static" -o $@ ./node/containerruntime/shim/program

# What upstream's node has in its place, for bench and swap.
build/runc: go.mod | deps
	CGO_ENABLED=1 go build -tags "seccomp netgo osusergo" -ldflags "-s -w -extldflags -static" -o $@ github.com/opencontainers/runc

build/containerd-shim-runc-v2: go.mod
	go build -ldflags "-s -w" -o $@ github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2

build/kubectl: go.mod $(wildcard kubectl/*.go)
	go build -ldflags "$(KUBECTL_LD)" -o $@ ./kubectl

build/knarr-cni: go.mod $(filter-out %_test.go,$(wildcard node/cni/network/*.go node/cni/plugin/*.go))
	go build -ldflags "-s -w" -o $@ ./node/cni/plugin

build/knarr-holder: go.mod $(wildcard internal/holder/holder.go internal/holder/program/*.go)
	go build -ldflags "-s -w" -o $@ ./internal/holder/program

# A module of its own, so that the SQL drivers do not enter this one's list.
# Small before fast: the database's disk is slower.
KINE := controlplane/kine/program
build/knarr-kine: $(wildcard $(KINE)/*.go $(KINE)/go.* $(KINE)/etcd/*/*.go) | deps
	GOFLAGS= CGO_ENABLED=1 CGO_CFLAGS=-Os go build -C $(KINE) -trimpath -tags "netgo osusergo sqlite_omit_load_extension" -gcflags=all=-l -ldflags "-s -w -extldflags -static" -o $(CURDIR)/$@ .

# The definitions of the Gateway API, from its module, which go list only finds once it is
# there.
build/gateway-definitions: go.mod $(wildcard addons/gateway/definitions/*.go)
	go mod download sigs.k8s.io/gateway-api
	go run ./addons/gateway/definitions "$$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard" >$@

# Programs without a C library.
SMALL := -Os -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
         -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,noexecstack -s -Wall -Wextra

build/pause: node/containerruntime/pause/pause.c | deps
	@mkdir -p $(@D)
	$(CC) $(SMALL) -o $@ $<

build/knarr-shim-verb: node/containerruntime/shim/verb/verb.c | deps
	@mkdir -p $(@D)
	$(CC) $(SMALL) -o $@ $<

# up starts a cluster on this machine that outlives the shell, and waits for it.
up: build
	@$(SUDO) setsid -f bin/knarr server --data-dir $(DATA) $(FLAGS) >>bin/knarr.log 2>&1 </dev/null
	@$(SUDO) bin/knarr wait --data-dir $(DATA) || { echo "the end of bin/knarr.log:"; tail -n 5 bin/knarr.log; exit 1; } >&2
	@echo "The cluster is ready. Try:"
	@echo "  export KUBECONFIG=$(DATA)/kubeconfig"
	@echo "  bin/knarr kubectl get nodes"
	@echo "  bin/knarr images load ARCHIVE.tar"
	@echo "make down removes it all again."

down:
	@if $(SUDO) test -e $(DATA)/cluster.json; then $(SUDO) bin/knarr down --purge --data-dir $(DATA); else echo "no cluster in $(DATA)"; fi
	@rm -f bin/knarr.log

# test answers whether a change is good: the linters, the tests of every package,
# scripts of commands, and a cluster from its start to its end. As root it includes
# the tests that need the kernel. A part that fails does not keep the others from
# running. test-long is what a push must pass besides: half an hour on two cores,
# and a quarter of an hour more where upstream's suite and Helm have not been
# compiled yet.
PARTS = $(MAKE) --no-print-directory -k -j1 MUST="$(if $(SUDO),,KNARR_MUST_RUN=1)"
test: build
	@$(PARTS) lint unit smoke tour

test-long: build
	@$(PARTS) staticcheck race microbench nodes storm helm envtest conformance-sample

lint: build/template.json | deps
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt these: $$unformatted"; exit 1; }
	$(KNARR_GO) vet ./...
	GOFLAGS=-trimpath CGO_ENABLED=1 go vet -tags "$(SHIM_TAGS)" ./node/containerruntime/shim/...

# staticcheck is one of the long ones: it reads the sources of all dependencies.
staticcheck: build/template.json
	$(KNARR_GO) tool staticcheck ./...

# What stands for libraries is modules of their names, below internal.
STANDINS := github.com/containerd/fifo github.com/moby/spdystream gopkg.in/inf.v0 k8s.io/cri-streaming/pkg/streaming
unit: build/template.json | test-deps
	$(MUST) $(KNARR_GO) test -timeout 10m $$(go list ./... | grep -v -e /test/smoke -e /test/tour -e /test/dev -e /test/storm -e /test/vm) $(STANDINS)
	cd internal/spdystream/interop && go test -timeout 5m .

race: build/template.json
	CGO_ENABLED=1 $(KNARR_GO) test -race -timeout 10m $(RACE) github.com/containerd/fifo k8s.io/cri-streaming/pkg/streaming github.com/moby/spdystream

# bench measures knarr and upstream alternately; BENCH=api,watch,sched,deploy,controllers,node,density,proxy,dns,select
# selects, ROUNDS says how often. AGAINST is another knarr, such as the one before a
# change, to measure in upstream's place. The first time it builds upstream.
# BENCH=gateway compares the data plane of Ingresses with Traefik, Caddy and nginx.
ROUNDS ?= 3
ifeq ($(BENCH),gateway)
bench: | build/nginx
	go build -C test/bench/gateway -o $(CURDIR)/build/bench-gateway . && \
	build/bench-gateway -rounds $(ROUNDS) -nginx build/nginx/usr/sbin/nginx -out build/bench-gateway.md
else
bench: build build/runc build/containerd-shim-runc-v2 | deps
	$(call install,$(TEST_PACKAGES))
	go build -C test/bench -o $(CURDIR)/build/run-bench . && cd test/bench && \
	exec $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" ../../build/run-bench -rounds $(ROUNDS) -bench '$(BENCH)' $(if $(AGAINST),-against '$(abspath $(AGAINST))') -out $(CURDIR)/build/bench.md
endif

# nginx is only unpacked: nothing of it is started or configured here.
build/nginx:
	rm -rf $@.part && mkdir -p $@.part && cd $@.part && apt-get download -q nginx && \
	dpkg-deb -x nginx_*.deb . && rm nginx_*.deb
	mv $@.part $@

# pictures draws those of README.md anew: the components, of the table that starts
# them, and the chart of the figures in docs/benchmarks.md.
pictures:
	go run ./docs/architecture
	go run -C test/bench . -chart $(CURDIR)/docs/benchmarks.md

# gateway-conformance runs the Gateway API's official suite on a cluster of one node.
# REPORT=docs/gateway-api-conformance.yaml writes its report there.
gateway-conformance: build | deps
	cd test/gatewayapi && $(SUDO) env "PATH=$$PATH" GOFLAGS= KNARR_GATEWAY_REPORT='$(abspath $(REPORT))' KNARR_GATEWAY_TEST=$(FOCUS) go test -timeout 40m -v -run TestConformance .

# tour types what README.md's tour does, to the page in a browser.
tour: build test-deps
	$(MUST) $(KNARR_GO) test -count=1 -v -timeout 10m ./test/tour

# acme gets certificates for an Ingress and a Gateway from Pebble, the test server of ACME's authors.
acme: build | deps
	cd test/acme && $(SUDO) env "PATH=$$PATH" GOFLAGS= go test -count=1 -v -timeout 10m .

# gateway-soak asks an Ingress of two nodes REQUESTS times in every version of HTTP, while
# what is behind it is replaced, a node drained, and the nodes' processes replaced and
# killed: none may fail.
REQUESTS ?= 1000000
gateway-soak: build test-deps
	KNARR_SOAK=$(REQUESTS) $(KNARR_GO) test -count=1 -v -timeout 30m -run TestGatewaySoak ./test/smoke

# soak makes and removes PODS pods, after which nothing of them may be left, and kills the
# server, and the shim, twenty times under 110 pods, none of which may notice.
PODS ?= 2000
soak: build test-deps
	KNARR_SOAK_PODS=$(PODS) $(KNARR_GO) test -count=1 -v -timeout 60m -run 'TestPod(Soak|Kills)' ./test/smoke

# warm-pods claims pods that kubernetes-sigs/agent-sandbox keeps ready, by its controller and
# manifests as they are; SANDBOX is where its sources are.
warm-pods: build test-deps
	KNARR_AGENT_SANDBOX='$(abspath $(SANDBOX))' $(KNARR_GO) test -count=1 -v -timeout 30m -run TestWarmPods ./test/smoke

# runtimes runs pods by other container runtimes, whose programs are in RUNTIMES:
# containerd with containerd-shim-runc-v2 and runc, or crio with pinns, conmon and runc.
runtimes: build test-deps
	KNARR_RUNTIMES='$(abspath $(RUNTIMES))' $(KNARR_GO) test -count=1 -v -timeout 30m -run TestForeignRuntimes ./test/smoke

# swap plays one scenario with each component in the other's place.
SWAP_PACKAGES := $(TEST_PACKAGES) nftables iproute2
swap: build build/runc build/containerd-shim-runc-v2 | deps
	$(call install,$(SWAP_PACKAGES))
	go build -C test/bench -o $(CURDIR)/build/run-swap ./swap && cd test/bench && \
	exec $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" ../../build/run-swap -run '$(RUN)'

# microbench compiles every benchmark and runs it once: that they work, not figures.
microbench: build/template.json
	$(KNARR_GO) test -timeout 10m -run '^$$' -bench . -benchtime 1x $$(git grep -l '^func Benchmark' -- '*_test.go' | xargs -n1 dirname | grep -v /interop | sort -u | sed 's,^,./,')
	cd internal/spdystream/interop && go test -timeout 5m -run '^$$' -bench . -benchtime 1x .

# fuzz tries every fuzz target for FUZZTIME, one after the other.
FUZZTIME ?= 60s
fuzz:
	@git grep -H '^func Fuzz' -- '*_test.go' | sed -E 's,^(.*)/[^/]*:func (Fuzz[A-Za-z0-9]*).*,\1 \2,' | while read -r dir target; do \
	  echo "$$dir $$target"; \
	  cd "$(CURDIR)/$$dir" && $(KNARR_GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 200x . </dev/null || exit 1; \
	done

# faults tries every disturbance of every controller's scenario: stopped before and
# after each write, blind, and with its object made anew.
faults: build/template.json
	KNARR_FAULTS=all $(KNARR_GO) test -count=1 -timeout 60m -run TestFaults ./controlplane/controllermanager ./controlplane/cloudcontrollermanager
	KNARR_FAULTS=all $(KNARR_GO) test -count=1 -timeout 20m -run TestFaults ./addons/localstorage

# mutants opens each hole of test/mutants/testdata again, one after the other: the
# test that guards it must fail.
mutants: build/template.json
	KNARR_MUTANTS=1 $(KNARR_GO) test -count=1 -v -timeout 60m ./test/mutants

smoke: build test-deps
	$(KNARR_GO) test -count=1 -v -timeout 15m ./test/smoke

# envtest runs an operator's tests on knarr; KNARR_UPSTREAM=DIR runs them on
# upstream's programs there.
envtest: build test-deps
	go test -C test/envtest -count=1 -v -timeout 10m .

# nodes tries several of them on this machine, and leaves none.
nodes: build test-deps
	$(KNARR_GO) test -count=1 -v -timeout 12m ./test/dev

# vm boots Debian's kernel in QEMU and tests knarr there. The kernel's package is
# only unpacked: this machine keeps its own. Only installing asks for root.
# RUN=regexp takes only smoke, nodes, systemd, volumes and the tests of folders that it matches.
VM_PACKAGES := $(TEST_PACKAGES) qemu-system-x86 e2fsprogs systemd dbus criu
build/vm:
	rm -rf build/vm.part && mkdir -p build/vm.part && $(SUDO) apt-get update -q && cd build/vm.part && \
	apt-get download -q "$$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p')" && \
	dpkg-deb -x linux-image-*.deb . && rm linux-image-*.deb
	mv build/vm.part $@

# Servers and clients of NFS and iSCSI for the guest, which must not start here.
VM_VOLUMES := nfs-common nfs-kernel-server open-iscsi libisns0 libnfsidmap1 libnsl2 libopeniscsiusr libtirpc3 libtirpc-common libwrap0
build/vm-volumes:
	rm -rf build/vm-volumes.part && mkdir -p build/vm-volumes.part && $(SUDO) apt-get update -q && cd build/vm-volumes.part && \
	apt-get download -q $(VM_VOLUMES) && for p in *.deb; do dpkg-deb -x "$$p" . && rm "$$p" || exit 1; done
	mv build/vm-volumes.part $@

# Programs of XFS for the guest: upstream's specs run one of them to see whether a file
# system has project quotas.
build/vm-xfs:
	rm -rf build/vm-xfs.part && mkdir -p build/vm-xfs.part && $(SUDO) apt-get update -q && cd build/vm-xfs.part && \
	apt-get download -q xfsprogs libedit2 libinih1 liburcu8 libbsd0 libmd0 && for p in *.deb; do dpkg-deb -x "$$p" . && rm "$$p" || exit 1; done
	mv build/vm-xfs.part $@

# AppArmor's programs for the guest: where they are, containers get its profiles.
build/vm-apparmor:
	rm -rf build/vm-apparmor.part && mkdir -p build/vm-apparmor.part && $(SUDO) apt-get update -q && cd build/vm-apparmor.part && \
	apt-get download -q apparmor && dpkg-deb -x apparmor_*.deb . && rm apparmor_*.deb
	mv build/vm-apparmor.part $@

vm: build | build/vm build/vm-apparmor build/vm-volumes build/vm-xfs
	$(call install,$(VM_PACKAGES))
	KNARR_VM='$(RUN)' $(KNARR_GO) test -count=1 -v -timeout 40m ./test/vm

# vm-systemd boots such a guest whose init is systemd, which makes the control groups.
vm-systemd: build | build/vm
	$(call install,$(VM_PACKAGES))
	$(KNARR_GO) test -count=1 -v -timeout 40m -run TestSystemd ./test/vm

# vm-density fills such a guest's node with 500 pods, and says what one of each hundred cost.
vm-density: build | build/vm
	$(call install,$(VM_PACKAGES))
	KNARR_VM_DENSITY=1 $(KNARR_GO) test -count=1 -v -timeout 120m -run TestDensity ./test/vm

# vm-volumes boots such a guest with an NFS server and iSCSI targets, for pods that use them.
vm-volumes: build | build/vm build/vm-volumes
	$(call install,$(VM_PACKAGES))
	$(KNARR_GO) test -count=1 -v -timeout 40m -run TestVolumes ./test/vm

# vm-specs runs specs of upstream's suite in that guest, which want what this machine has
# not: those of SCTP. The first time it compiles upstream.
vm-specs: build | build/vm deps
	$(call install,$(VM_PACKAGES))
	cd test/conformance && suite="$$(go run ./upstream e2e.test)" && images="$$(go run ./images agnhost)" && cd ../.. && \
	KNARR_VM='^$$' KNARR_VM_SUITE="$$suite" KNARR_VM_IMAGES="$$images" $(KNARR_GO) test -count=1 -v -timeout 120m -run TestVM ./test/vm

# vm-node-specs runs specs of upstream's suite for a node there, on a guest of more
# processors, with threads and NUMA: those of e2e-node-vm.txt, which must pass. RUN=regexp
# takes others that e2e-node-left.txt leaves for want of such a machine, and UPDATE=1 adds
# what passes to that list. NARROW=N gives it N processors and no more, and IMAGES=conformance
# the images of most specs alone, IMAGES=eviction those of pods that are evicted: all are faster.
# Each takes minutes.
vm-node-specs: build | build/vm build/vm-xfs deps
	$(call install,$(VM_PACKAGES))
	cd test/conformance && go build -o ../../build/run-conformance ./run && \
	suite="$$(go run ./upstream e2e_node.test ginkgo) $$(go run ./images $(IMAGES))" && cd ../.. && \
	KNARR_VM='$(RUN)' KNARR_VM_NARROW='$(NARROW)' KNARR_VM_NODE_SUITE="$(CURDIR)/build/run-conformance $$suite" $(KNARR_GO) test -count=1 -v -timeout $(VM_TIMEOUT) -run TestNodeSpecs ./test/vm $(if $(UPDATE),-update)
VM_TIMEOUT ?= 8h
IMAGES ?= conformance beyond

# storm abuses a server as bad clients do; KNARR_STORM=whole in full.
storm: build test-deps
	$(KNARR_GO) test -count=1 -v -timeout 30m ./test/storm

# helm builds Helm, which Go keeps in its cache, and lets it install, upgrade and
# remove a chart: with nodes that are only objects, then as root on a real one.
helm: build test-deps
	@helm=$$(go tool -C test/helm -n helm) && export KNARR_HELM=$$helm && \
	$(KNARR_GO) test -count=1 -timeout 5m -run '^TestHelm$$' ./cmd/knarr && $(KNARR_GO) test -count=1 -v -timeout 5m -run '^TestHelm$$' ./test/dev

# conformance runs upstream's conformance suite, or the specs of it that FOCUS
# matches and SKIP does not, on two nodes that it starts, or on the cluster of
# KUBECONFIG. CONFORMANCE holds more flags of test/conformance/run.
CONFORMANCE ?=
RUN_SUITE := go build -C test/conformance -o $(CURDIR)/build/run-conformance ./run && cd test/conformance && \
             exec $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" ../../build/run-conformance $(CONFORMANCE)

conformance: build | deps
	@$(RUN_SUITE) -focus '$(FOCUS)' -skip '$(SKIP)' $(if $(KUBECONFIG),-kubeconfig '$(KUBECONFIG)')

# e2e runs the other specs of upstream's suite in the same way: those that are not
# marked Conformance.
e2e: build | deps
	@$(RUN_SUITE) -beyond -focus '$(FOCUS)' -skip '$(SKIP)' $(if $(KUBECONFIG),-kubeconfig '$(KUBECONFIG)')

# e2e-node runs upstream's suite for a single node: its specs set the node's kubelet up
# and start it again.
e2e-node: build | deps
	$(call install,iproute2)
	@$(RUN_SUITE) -node -data-dir /var/lib/knarr-e2e-node -focus '$(FOCUS)' -skip '$(SKIP)'

# conformance-sample runs a part of the specs that are known to pass, another
# one for every commit, for ten minutes.
conformance-sample: build test-deps | deps
	@$(RUN_SUITE) -sample '$(COMMIT)' -procs 4

clean:
	rm -rf bin build $(EMBEDDED) $(EMBEDDED:.zst=.sha256)
