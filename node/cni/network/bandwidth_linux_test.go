package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func TestBucket(t *testing.T) {
	for _, c := range []struct {
		rate, burst, bytes uint64
		limit              uint32
	}{
		{8e6, unsaid, 1e6, 1e6/40 + 1e6/10}, {8e6, 8e5, 1e6, 1e6/40 + 1e5}, {8e3, 0, 1e3, 1e3/40 + minBurst}, {1, 0, 1, minBurst},
		{math.MaxUint64, unsaid, math.MaxUint64 / 8, math.MaxInt32},
	} {
		limit, buffer, bytes := bucket(c.rate, c.burst)
		if limit != c.limit || bytes != c.bytes || buffer == 0 {
			t.Errorf("%d, %d: limit %d, buffer %d, %d bytes", c.rate, c.burst, limit, buffer, bytes)
		}
	}
}

func TestProtocols(t *testing.T) {
	for name, want := range map[string]byte{"tcp": 6, "UDP": 17, "SCTP": 132} {
		if got := proto(name)[0]; got != want {
			t.Errorf("%s is %d", name, got)
		}
	}
}

// rates are those of the token buckets of a link in the node.
func (w *world) rates(t *testing.T, link string) (all []uint64) {
	must(t, w.node.do(func() error {
		l, err := netlink.LinkByName(link)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		list, err := netlink.QdiscList(l)
		for _, q := range list {
			if b, ok := q.(*netlink.Tbf); ok {
				all = append(all, b.Rate)
			}
		}
		return err
	}))
	return all
}

// TestBandwidth: what a pod receives and sends waits in queues of its own, which go with
// it; a pod without limits has none.
func TestBandwidth(t *testing.T) {
	w := newWorld(t)
	w.conf.RuntimeConfig.Bandwidth = &Bandwidth{IngressRate: 80e6, IngressBurst: unsaid, EgressRate: 40e6}
	pod, v4, v6 := w.add(t, "aaaa")
	w.conf.RuntimeConfig.Bandwidth = nil
	free, _, _ := w.add(t, "bbbb")
	pod.serve(t, ":80")
	if in, out := w.rates(t, hostLink("aaaa:eth0")), w.rates(t, ifbLink("aaaa:eth0")); len(in) != 1 || len(out) != 1 || in[0] != 10e6 || out[0] != 5e6 {
		t.Errorf("the pod receives %v bytes a second and sends %v", in, out)
	}
	if in, out := w.rates(t, hostLink("bbbb:eth0")), w.rates(t, ifbLink("bbbb:eth0")); len(in)+len(out) > 0 {
		t.Errorf("a pod without limits receives %v bytes a second and sends %v", in, out)
	}
	for _, at := range []string{v4 + ":80", "[" + v6 + "]:80"} {
		if _, err := free.ask("tcp", at); err != nil {
			t.Errorf("the pod at %s: %v", at, err)
		}
	}
	if out, code := w.command(t, "DEL", "aaaa", pod); code != 0 {
		t.Fatalf("DEL: %s", out)
	}
	must(t, w.node.do(func() error {
		if _, err := netlink.LinkByName(ifbLink("aaaa:eth0")); !errors.As(err, &netlink.LinkNotFoundError{}) {
			t.Errorf("the link that held the pod back is left: %v", err)
		}
		return nil
	}))
	var c Conf // as containerd writes it
	must(t, json.NewDecoder(bytes.NewReader([]byte(`{"runtimeConfig":{"bandwidth":{"IngressRate":1,"IngressBurst":2,"EgressRate":3,"EgressBurst":4}}}`))).Decode(&c))
	if got := c.RuntimeConfig.Bandwidth; got == nil || *got != (Bandwidth{1, 2, 3, 4}) {
		t.Errorf("containerd's words are read as %+v", got)
	}
}

// TestCollectGone: a pod whose link is gone for a while has nothing any more; one that has
// its link, or is new, keeps what it has.
func TestCollectGone(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"here", "gone", "new"} {
		w.add(t, id, PortMapping{HostPort: map[string]uint16{"here": 81, "gone": 82, "new": 83}[id], ContainerPort: 80, Protocol: "tcp"})
	}
	c := w.conf
	must(t, w.node.do(func() error {
		runtime.LockOSThread()
		for _, id := range []string{"gone", "new"} {
			if err := disconnect(key(id, "eth0")); err != nil {
				return err
			}
		}
		old := time.Now().Add(-time.Hour)
		for _, id := range []string{"here", "gone"} {
			if err := os.Chtimes(filepath.Join(attachmentDir(c.StateDir), key(id, "eth0")), old, old); err != nil {
				return err
			}
		}
		if _, err := allocate(c.StateDir, c.PodCIDRs, "never:eth0", nil); err != nil {
			return err
		}
		return CollectGone(&c, time.Now())
	}))
	left := map[string]bool{}
	for _, r := range c.PodCIDRs {
		taken, err := owners(rangeDir(c.StateDir, r))
		must(t, err)
		if len(taken) != 2 {
			t.Errorf("addresses of %s: %v", r, taken)
		}
		for _, o := range taken {
			left[o] = true
		}
	}
	if !left["here:eth0"] || !left["new:eth0"] {
		t.Errorf("addresses are left to %v", left)
	}
	all, err := loadAttachments(c.StateDir)
	if err != nil || len(all) != 2 {
		t.Errorf("attachments %v, %v", all, err)
	}
}
