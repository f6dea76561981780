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
