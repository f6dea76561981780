package dev

import (
	"context"
	byteorder "encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStalledServer stops the process of the server that an agent speaks with, whose kernel goes
// on taking what it is sent: the agent's node stays Ready by another server, before its Lease has
// run out, and sees new pods, while that of the server is found silent. When the server goes on,
// whose controllers may have led, it takes nobody for silent. There are three servers, for two
// could not agree without one.
func TestStalledServer(t *testing.T) {
	temp, _ := prepare(t)
	w := newWorld(t, temp, "e2e-1", "e2e-2", "e2e-3", "e2e-4")
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "4", "--servers", "3", "--timeout", "60s")
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	w.client = w.through("")
	at := w.addresses()
	var stalled, other string // a server that does not answer, and the address of one that does
	w.until("the agent speaks with a server", func() bool {
		with := w.connections("e2e-4", 6443)
		for name, address := range at {
			if with[address] > 0 {
				stalled = name
			}
		}
		return len(with) == 1 && stalled != ""
	})
	for name, address := range at {
		if name != stalled {
			other = address
		}
	}
	client := w.through(other)
	pid := w.pid(filepath.Join(w.dir(), stalled))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // before the cluster is taken down, which asks it to end
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var renewed time.Time // of the agent's Lease
	var longest time.Duration
	ready := func(node string) bool {
		n, err := client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
		if err != nil || isReady(n) { // while the store has no leader nobody can say
			return true
		}
		t.Logf("%s: %+v", node, n.Status.Conditions)
		return false
	}
	w.within("the stalled server's node is not Ready", 3*time.Minute, func() bool {
		if !ready("e2e-4") {
			t.Fatalf("the agent's node is not Ready %v after %s stopped", time.Since(began), stalled)
		}
		l, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(context.Background(), "e2e-4", metav1.GetOptions{})
		if err == nil && !renewed.IsZero() {
			longest = max(longest, l.Spec.RenewTime.Sub(renewed))
			if most := time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second; longest > most {
				t.Fatalf("the agent did not renew its Lease for %v, which lasts %v", longest, most)
			}
		}
		if err == nil {
			renewed = l.Spec.RenewTime.Time
		}
		return !ready(stalled)
	})
	t.Logf("%s found silent after %v; the agent renewed its Lease every %v at worst", stalled, time.Since(began).Round(time.Second), longest.Round(time.Millisecond))
	if with := w.connections("e2e-4", 6443); with[at[stalled]] > 0 {
		t.Errorf("the agent still speaks with %s: %v", at[stalled], with)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: corev1.PodSpec{NodeName: "e2e-4", TerminationGracePeriodSeconds: new(int64),
		Containers: []corev1.Container{{Name: "app", Image: "knarr.test/hello:1"}}}}
	if _, err := client.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	w.until("the agent sees a new pod", func() bool { // whether it runs is up to this machine's disk
		p, err := client.CoreV1().Pods("default").Get(context.Background(), "late", metav1.GetOptions{})
		return err == nil && p.Status.StartTime != nil
	})
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.within("the server's node is Ready again", time.Minute, func() bool {
		n, err := client.CoreV1().Nodes().Get(context.Background(), stalled, metav1.GetOptions{})
		return err == nil && isReady(n)
	})
	if !ready("e2e-4") {
		t.Error("the agent's node is not Ready when the server is back")
	}
	w.noTraces()
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// within is until with another bound, for what takes the cluster longer: it looks less often.
func (w *world) within(what string, most time.Duration, ok func() bool) {
	w.t.Helper()
	deadline := time.After(most)
	for !ok() {
		select {
		case <-time.After(250 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("not in time: %s", what)
		}
	}
}

// connections are the established ones of a node to a port of others, how many to each address.
func (w *world) connections(node string, port uint16) map[string]int {
	w.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", w.pid(filepath.Join(w.dir(), node))))
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]int{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // number, local, remote, state
		if len(f) < 4 || f[3] != "01" {
			continue
		}
		host, at, _ := strings.Cut(f[2], ":")
		raw, err := hex.DecodeString(host)
		if err != nil || len(raw) != 4 || at != fmt.Sprintf("%04X", port) {
			continue
		}
		var a [4]byte
		byteorder.BigEndian.PutUint32(a[:], byteorder.NativeEndian.Uint32(raw))
		all[netip.AddrFrom4(a).String()]++
	}
	return all
}
