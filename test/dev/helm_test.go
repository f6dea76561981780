package dev

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestHelm installs, tests, upgrades and removes a release whose hooks and workloads are
// pods, waiting for each, and another that has a claim. make helm builds Helm and names it in
// $KNARR_HELM.
func TestHelm(t *testing.T) {
	if os.Getenv("KNARR_HELM") == "" {
		t.Skip("no Helm: make helm builds it and runs this test")
	}
	temp, archive := prepare(t)
	w := newWorld(t, temp, "e2e-1")
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "1", "--timeout", "40s")
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	for _, v := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		t.Setenv(v, temp)
	}
	w.knarr("images", "load", "--all-nodes", "--name", "e2e", "--dir", w.base, archive)
	w.steps([]step{
		{"install", helmInstall}, {"test", helmTest}, {"upgrade", helmUpgrade}, {"failing upgrade", helmFailing}, {"uninstall", helmUninstall},
		{"claim", helmClaim}, {"claim gone", helmClaimGone},
	}...)
}

const chart, ledger = "../helm/chart", "../helm/ledger"

func helmInstall(w *world) {
	w.helm("install", "ship", chart, "--set", "pods=true,replicas=2", "--wait", "--wait-for-jobs", "--timeout", "40s")
	if got := w.knarr("kubectl", "get", "deployment", "ship", "-o", "jsonpath={.status.readyReplicas}"); got != "2" {
		w.t.Errorf("install --wait returned with %q of 2 ready", got)
	}
	if got := w.knarr("kubectl", "logs", "job/ship-migrate"); got != "migrated to 1\n" {
		w.t.Errorf("the hook says %q", got)
	}
}

func helmTest(w *world) {
	out := w.helm("test", "ship", "--logs", "--timeout", "40s")
	for _, want := range []string{"TEST SUITE:     ship-answers", "Phase:          Succeeded", "POD LOGS: ship-answers (ask)\nhello from ship-"} {
		if !strings.Contains(out, want) {
			w.t.Errorf("helm test does not say %q:\n%s", want, out)
		}
	}
}

func helmUpgrade(w *world) {
	before := w.knarr("kubectl", "get", "replicasets", "-o", "name")
	w.helm("upgrade", "ship", chart, "--reuse-values", "--set", "replicas=1,greeting=hello", "--wait", "--timeout", "40s")
	if got := w.knarr("kubectl", "logs", "job/ship-migrate"); got != "migrated to 2\n" {
		w.t.Errorf("the hook says %q", got)
	}
	if after := w.knarr("kubectl", "get", "replicasets", "-o", "name"); after != before {
		w.t.Errorf("an upgrade that leaves the template alone made %q of %q", after, before)
	}
}

// helmFailing waits for an image that this node will never have.
func helmFailing(w *world) {
	out, err := w.tryHelm("upgrade", "ship", chart, "--reuse-values", "--set", "pods=false,image=knarr.test/nosuch:1,policy=Never", "--rollback-on-failure", "--timeout", "8s")
	if err == nil || !strings.Contains(out, "UPGRADE FAILED: release ship failed, and has been rolled back due to rollback-on-failure being set") {
		w.t.Fatalf("%v:\n%s", err, out)
	}
	if got := w.knarr("kubectl", "get", "deployment", "ship", "-o", "jsonpath={.spec.template.spec.containers[0].image} {.status.readyReplicas}"); got != "knarr.test/hello:1 1" {
		w.t.Errorf("after going back: %q", got)
	}
	if out := w.helm("history", "ship"); !strings.Contains(out, "Rollback to 2") {
		w.t.Errorf("history:\n%s", out)
	}
}

// helmUninstall does not take Helm's word that all is gone: it may return before.
func helmUninstall(w *world) {
	w.helm("uninstall", "ship", "--wait", "--cascade", "foreground", "--timeout", "40s")
	w.until("the release's objects are gone", func() bool {
		return w.knarr("kubectl", "get", "deployments,replicasets,pods", "-l", "app.kubernetes.io/instance=ship", "-o", "name") == ""
	})
}

// helmClaim installs a chart with a claim of the default class: --wait waits for its
// volume, and what a pod wrote is there for the next.
func helmClaim(w *world) {
	w.helm("install", "ledger", ledger, "--wait", "--timeout", "40s")
	if got := w.knarr("kubectl", "get", "pvc", "ledger", "-o", "jsonpath={.status.phase} {.spec.storageClassName} {.status.capacity.storage}"); got != "Bound local-path 16Mi" {
		w.t.Errorf("install --wait returned with the claim %q", got)
	}
	if n := len(w.volumes()); n != 1 {
		w.t.Errorf("%d volumes on the node's disk", n)
	}
	w.knarr("kubectl", "exec", "ledger-0", "--", "sh", "-c", "echo kept > /pages/one")
	before := w.knarr("kubectl", "get", "pod", "ledger-0", "-o", "jsonpath={.metadata.uid}")
	w.knarr("kubectl", "delete", "pod", "ledger-0", "--timeout=30s")
	w.until("the next pod reads what its predecessor wrote", func() bool {
		got, err := w.try("kubectl", "exec", "ledger-0", "--", "cat", "/pages/one")
		return err == nil && got == "kept\n"
	})
	if after := w.knarr("kubectl", "get", "pod", "ledger-0", "-o", "jsonpath={.metadata.uid}"); after == before {
		w.t.Error("the pod is still the one that wrote")
	}
}

// helmClaimGone uninstalls it: the claim is the chart's, and takes the volume with it.
func helmClaimGone(w *world) {
	w.helm("uninstall", "ledger", "--wait", "--timeout", "40s")
	w.until("the volume is gone, with its data", func() bool {
		return w.knarr("kubectl", "get", "pvc,pv", "-o", "name") == "" && len(w.volumes()) == 0
	})
}

// volumes are those on the node's disk.
func (w *world) volumes() []string {
	all, err := filepath.Glob(filepath.Join(w.dir(), "e2e-1", "storage", "pvc-*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func (w *world) helm(args ...string) string {
	w.t.Helper()
	out, err := w.tryHelm(args...)
	if err != nil {
		w.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (w *world) tryHelm(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, os.Getenv("KNARR_HELM"), args...).CombinedOutput()
	return string(out), err
}
