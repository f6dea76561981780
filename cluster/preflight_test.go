package cluster

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

// Two clusters on one host with the same pods' addresses would take each
// other's traffic; the second is told before anything of it is there.
func TestNoTwoClustersWithTheSamePods(t *testing.T) {
	address := func(s string) net.Addr {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	others := map[string][]net.Addr{"knarr0-fa6d6d": {address("fe80::1/64"), address("10.42.0.1/24")}}
	want := "--cluster-cidr 10.42.0.0/16: another cluster on this machine has pods at 10.42.0.0/24 (link knarr0-fa6d6d); "
	if err := overlap(ranges{netip.MustParsePrefix("fd00:42::/56"), netip.MustParsePrefix("10.42.0.0/16")}, others); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s…", err, want)
	}
	if err := overlap(ranges{netip.MustParsePrefix("10.52.0.0/16")}, others); err != nil {
		t.Error(err)
	}
}

// That the time is up is not what a cluster lacks: a server, or an answer of it.
func TestWaitNamesWhatIsMissing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close() // nobody listens there now
	l := layout{t.TempDir()}
	text := "kind: Config\napiVersion: v1\nclusters: [{name: c, cluster: {server: \"http://" + ln.Addr().String() + "\"}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(l.kubeconfig(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	expectError := func(want string) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := Wait(ctx, l.dir, "cluster.local"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	expectError("no server of --data-dir " + l.dir + " runs on this machine")
	lock, err := os.OpenFile(l.lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	expectError("connection refused")
}

// A server that leaves DNS or Services to others is not waited for until its
// own answer.
func TestWaitGoesByTheServersSettings(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	no := false
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns-a",
		Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}}, Endpoints: []discoveryv1.Endpoint{{}}}
	unready := slice.DeepCopy()
	unready.Endpoints[0].Conditions.Ready = &no
	for name, c := range map[string]struct {
		have    settings
		objects []runtime.Object
		lacks   string
	}{
		"no node":                 {settings{"disable": "coredns"}, nil, "no node is Ready"},
		"no DNS of ours":          {settings{"disable": "coredns,network"}, []runtime.Object{node}, ""},
		"DNS of ours":             {settings{}, []runtime.Object{node, slice}, `"kube-dns" not found`},
		"no proxy, DNS not there": {settings{"disable": "kube-proxy"}, []runtime.Object{node}, "no node is behind Service kube-system/kube-dns"},
		"no proxy, DNS not ready": {settings{"disable": "kube-proxy"}, []runtime.Object{node, unready}, "no node is behind Service kube-system/kube-dns"},
		"no proxy":                {settings{"disable": "kube-proxy"}, []runtime.Object{node, slice}, ""},
		"no node here":            {settings{"disable-agent": "true"}, []runtime.Object{node, slice}, ""},
	} {
		dir := layout{t.TempDir()}
		if err := c.have.write(dir); err != nil {
			t.Fatal(err)
		}
		have, err := dir.readSettings()
		if err != nil {
			t.Fatal(err)
		}
		err = clusterLacks(t.Context(), fake.NewClientset(c.objects...), have, defaultDomain)
		if c.lacks == "" && err != nil || c.lacks != "" && (err == nil || !strings.Contains(err.Error(), c.lacks)) {
			t.Errorf("%s: %v, want %q", name, err, c.lacks)
		}
	}
}
