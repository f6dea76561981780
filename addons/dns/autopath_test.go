package dns

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// withPods makes pods known by their addresses, as NAMESPACE/ADDRESS.
func withPods(t *testing.T, s *Server, pods ...*corev1.Pod) {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byAddress: func(o any) ([]string, error) {
		return []string{o.(*corev1.Pod).Status.PodIPs[0].IP}, nil
	}})
	for _, p := range pods {
		if err := index.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	s.records.pods.Store(&podIndex{index, func() bool { return true }})
}

func podAt(namespace, name, addr string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr}}}}
	for _, e := range edit {
		e(p)
	}
	return p
}

// TestAutopath: a pod's first query of its search list is answered with what the whole
// list leads to; the same query of anybody else is not.
func TestAutopath(t *testing.T) {
	var asked atomic.Int32
	elsewhere := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg {
		asked.Add(1)
		switch q.Question[0].Name {
		case "www.example.", "printer.corp.example.":
			return []*dns.Msg{says(q, "192.0.2.1")}
		case "broken.example.":
			return []*dns.Msg{new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)}
		}
		return []*dns.Msg{new(dns.Msg).SetRcode(q, dns.RcodeNameError)}
	})
	s := withCluster(t, configured(t, ".:53 {\nautopath @kubernetes\nkubernetes cluster.local {\npods verified\n}\ncache 30\nforward . "+addressOf(elsewhere)+"\n}\n"))
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("search corp.example .\nnameserver 192.0.2.53\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.search.Store(searchList(file))
	const node, shared, ended = "192.0.2.10", "10.42.0.7", "10.42.0.8"
	withPods(t, s, podAt("default", "a", aPod.String()), podAt("kube-system", "b", anotherPod.String()),
		podAt("default", "host", node, func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		podAt("default", "c", shared), podAt("kube-system", "d", shared),
		podAt("default", "e", ended), podAt("kube-system", "f", ended, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	for _, c := range []struct {
		client, name string
		qtype        uint16
		want         string
	}{
		{"", "www.example.default.svc.cluster.local.", dns.TypeA, "NOERROR www.example. www.example.=192.0.2.1"},
		{anotherPod.String(), "www.example.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"}, // not first in its list
		{anotherPod.String(), "www.example.kube-system.svc.cluster.local.", dns.TypeA, "NOERROR www.example. www.example.=192.0.2.1"},
		{"", "printer.default.svc.cluster.local.", dns.TypeA, "NOERROR printer.corp.example. printer.corp.example.=192.0.2.1"},
		{"", "kube-dns.kube-system.default.svc.cluster.local.", dns.TypeA, "NOERROR kube-dns.kube-system.svc.cluster.local. kube-dns.kube-system.svc.cluster.local.=10.43.0.10"},
		{"", "kube-dns.kube-system.svc.default.svc.cluster.local.", dns.TypeA, "NOERROR kube-dns.kube-system.svc.cluster.local. kube-dns.kube-system.svc.cluster.local.=10.43.0.10"},
		{"", "kube-dns.kube-system.svc.cluster.local.default.svc.cluster.local.", dns.TypeA, "NOERROR kube-dns.kube-system.svc.cluster.local. kube-dns.kube-system.svc.cluster.local.=10.43.0.10"},
		{"", "web.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"", "web.default.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR web.default.svc.cluster.local. web.default.svc.cluster.local.=fd43::80"},
		{"", "kube-dns.kube-system.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR"}, // there is the name, with no such record
		{"", "www.example.default.svc.cluster.local.", dns.TypeTXT, "NXDOMAIN"},
		{"", "broken.example.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"}, // the pod asks on, and hears that it failed
		{"", "none.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"", "default.svc.cluster.local.", dns.TypeA, "NOERROR"},
		{node, "www.example.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{shared, "www.example.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{ended, "www.example.default.svc.cluster.local.", dns.TypeA, "NOERROR www.example. www.example.=192.0.2.1"},
		{"192.0.2.99", "www.example.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	} {
		client := aPod
		if c.client != "" {
			client = netip.MustParseAddr(c.client)
		}
		if got := answerFor(t, s, client, c.name, c.qtype); got != c.want {
			t.Errorf("%s asks for %s %s: %s, want %s", client, dns.TypeToString[c.qtype], c.name, got, c.want)
		}
	}
	before := asked.Load()
	answerFor(t, s, aPod, "www.example.default.svc.cluster.local.", dns.TypeA)
	if n := asked.Load() - before; n != 0 {
		t.Errorf("what is remembered was asked for again, %d times", n)
	}
}
