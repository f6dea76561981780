package serviceallocation

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
)

// cluster is what API servers of one cluster share, in memory.
type cluster struct {
	t     *testing.T
	cache *watchcache.Cache
}

func newCluster(t *testing.T) cluster {
	ctx, cancel := context.WithCancel(context.Background())
	store := storage.NewMemory()
	cache := watchcache.New(store, registry.Resources)
	done := make(chan error, 1)
	go func() { done <- cache.Run(ctx) }()
	<-cache.Ready()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cache: %v", err)
		}
		store.Close()
	})
	return cluster{t, cache}
}

func (c cluster) stored(resource string) *watchcache.Resource {
	if resource == "services" {
		return c.cache.Resource(corev1.SchemeGroupVersion.WithResource(resource))
	}
	return c.cache.Resource(networkingv1.SchemeGroupVersion.WithResource(resource))
}

// server is another API server's allocator.
func (c cluster) server(change ...func(*Config)) *Allocator {
	c.t.Helper()
	cfg := Config{Cache: c.cache, Services: c.stored("services"), Addresses: c.stored("ipaddresses"), Ranges: c.stored("servicecidrs")}
	for _, f := range change {
		f(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// has says that the store holds the IPAddress.
func (c cluster) has(ip string) bool {
	_, err := c.stored("ipaddresses").Fetch(context.Background(), ip)
	return err == nil
}

func service(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"a": "b"},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func nodePort(p int32) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, p }
}

func dualStack(c *Config) {
	c.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/24"), netip.MustParsePrefix("fd00:43::/112")}
}

func TestNewRefusesTwoRangesOfOneFamily(t *testing.T) {
	if _, err := New(Config{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/24"), netip.MustParsePrefix("10.44.0.0/24")}}); err == nil {
		t.Error("two ranges of IPv4 were taken")
	}
}

// TestFamilies: how many addresses a Service has, and of which families.
func TestFamilies(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*corev1.ServiceSpec)
		config   func(*Config)
		families int
		prefixes []string
	}{
		"one family":                {nil, func(*Config) {}, 1, []string{"10.43."}},
		"both, preferred":           {func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack) }, dualStack, 2, []string{"10.43.0.", "fd00:43::"}},
		"preferred, there is one":   {func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack) }, func(*Config) {}, 1, []string{"10.43."}},
		"headless, without choice":  {func(s *corev1.ServiceSpec) { s.ClusterIP, s.Selector = "None", nil }, func(*Config) {}, 2, []string{"None"}},
		"a name elsewhere has none": {func(s *corev1.ServiceSpec) { s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "a.b" }, dualStack, 0, nil},
	} {
		svc := service("s", c.change)
		finish, err := newCluster(t).server(c.config).Allocate(t.Context(), svc, nil, false)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		finish(true)
		ok := len(svc.Spec.IPFamilies) == c.families && len(svc.Spec.ClusterIPs) == len(c.prefixes)
		for i, p := range c.prefixes {
			ok = ok && strings.HasPrefix(svc.Spec.ClusterIPs[i], p)
		}
		if !ok {
			t.Errorf("%s: %+v", name, svc.Spec)
		}
	}
}

// TestFinish: what a write was given stays if its Service was stored, and is free
// again if it was not; a dry run takes nothing.
func TestFinish(t *testing.T) {
	c := newCluster(t)
	a := c.server()
	for _, tt := range []struct{ dryRun, stored, kept bool }{{false, true, true}, {false, false, false}, {true, false, false}} {
		svc := service("s", nodePort(0))
		finish, err := a.Allocate(t.Context(), svc, nil, tt.dryRun)
		if err != nil {
			t.Fatal(err)
		}
		ip, port := svc.Spec.ClusterIP, svc.Spec.Ports[0].NodePort
		if port < 30000 || port > 32767 || !strings.HasPrefix(ip, "10.43.") {
			t.Errorf("%+v: allocated %s, %d", tt, ip, port)
		}
		finish(tt.stored)
		if c.has(ip) != tt.kept {
			t.Errorf("%+v: whether %s is kept: %v", tt, ip, !tt.kept)
		}
		a.Release(svc)
		if c.has(ip) {
			t.Errorf("%+v: %s is not free once its Service is deleted", tt, ip)
		}
		// The port is held by the write alone.
		if finish, err := a.Allocate(t.Context(), service("other", nodePort(port)), nil, true); err != nil {
			t.Errorf("%+v: %v", tt, err)
		} else {
			finish(false)
		}
	}
}

// TestTwoServers: while one API server writes a Service, another gives away
// neither its address nor its port.
func TestTwoServers(t *testing.T) {
	c := newCluster(t)
	one, other := c.server(), c.server()
	svc := service("s", nodePort(30007))
	finish, err := one.Allocate(t.Context(), svc, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*corev1.ServiceSpec){
		errIPTaken.Error():   func(s *corev1.ServiceSpec) { s.ClusterIP = svc.Spec.ClusterIP },
		errPortTaken.Error(): nodePort(30007),
	} {
		if _, err := other.Allocate(t.Context(), service("other", change), nil, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	finish(false)
	finish, err = other.Allocate(t.Context(), service("other", nodePort(30007)), nil, false)
	if err != nil {
		t.Fatalf("let go, but not free: %v", err)
	}
	finish(false)
}

// TestUpdateGivesBack: a Service that needs its address no longer gives it back
// once that is stored, not before.
func TestUpdateGivesBack(t *testing.T) {
	c := newCluster(t)
	a := c.server()
	old := service("s", nil)
	finish, err := a.Allocate(t.Context(), old, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(true)
	for _, stored := range []bool{false, true} {
		svc := service("s", func(s *corev1.ServiceSpec) { s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "a.b" })
		if finish, err = a.Allocate(t.Context(), svc, old, false); err != nil {
			t.Fatal(err)
		}
		if finish(stored); c.has(old.Spec.ClusterIP) == stored {
			t.Errorf("stored %v: whether the store holds %s: %v", stored, old.Spec.ClusterIP, stored)
		}
	}
}

// TestMoreRanges: addresses come from every ServiceCIDR that is ready, and from the
// configured range unless its own is not.
func TestMoreRanges(t *testing.T) {
	c := newCluster(t)
	a := c.server(func(cfg *Config) { cfg.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/29")} })
	ask := func(name, ip string) (string, error) {
		t.Helper()
		svc := service(name, func(s *corev1.ServiceSpec) {
			if ip != "" {
				s.ClusterIP, s.ClusterIPs = ip, []string{ip}
			}
		})
		finish, err := a.Allocate(t.Context(), svc, nil, false)
		if err != nil {
			return "", err
		}
		finish(true)
		return svc.Spec.ClusterIP, nil
	}
	define := func(name string, ready metav1.ConditionStatus, cidrs ...string) {
		t.Helper()
		o := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
		o.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: ready}}
		if _, err := c.stored("servicecidrs").Create(t.Context(), name, o); err != nil {
			t.Fatal(err)
		}
		if err := c.cache.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask("early", "10.50.0.9"); err == nil || !strings.Contains(err.Error(), string(errIPRange)) {
		t.Errorf("an address of no range: %v", err)
	}
	define("new", metav1.ConditionFalse, "10.50.0.0/24", "fd00:50::/112")
	if _, err := ask("early", "10.50.0.9"); err == nil {
		t.Error("an address of a range that is not ready was given")
	}
	define("more", metav1.ConditionTrue, "10.60.0.0/24")
	if ip, err := ask("named", "10.60.0.9"); err != nil || ip != "10.60.0.9" {
		t.Errorf("%s, %v", ip, err)
	}
	for i := range 6 {
		if ip, err := ask(fmt.Sprint("first-", i), ""); err != nil || !strings.HasPrefix(ip, "10.43.0.") {
			t.Fatalf("%s, %v: the configured range is not used first", ip, err)
		}
	}
	if ip, err := ask("next", ""); err != nil || !strings.HasPrefix(ip, "10.60.0.") {
		t.Errorf("%s, %v: a full range is not followed by the next", ip, err)
	}
	define("kubernetes", metav1.ConditionFalse, "10.43.0.0/29")
	if _, err := ask("late", "10.43.0.1"); err == nil || !strings.Contains(err.Error(), string(errIPRange)) {
		t.Errorf("the configured range is not ready any more: %v", err)
	}
}
