package apiserver

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/storage"
)

// shared is a store that outlives one of its servers.
type shared struct{ *storage.Memory }

func (shared) Close() error { return nil }

// endpointsOf the Service kubernetes, as a server shows them in both kinds.
func endpointsOf(t *testing.T, s *Server) string {
	t.Helper()
	var slice discoveryv1.EndpointSlice
	var old corev1.Endpoints
	for path, into := range map[string]any{
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes": &slice, "/api/v1/namespaces/default/endpoints/kubernetes": &old,
	} {
		if err := json.Unmarshal(ask(s.Handler(), "GET", path, "root").Body.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
	var a, b []string
	for _, e := range slice.Endpoints {
		a = append(a, e.Addresses...)
	}
	for _, e := range old.Subsets[0].Addresses {
		b = append(b, e.IP)
	}
	if strings.Join(a, " ") != strings.Join(b, " ") {
		t.Errorf("the slice says %v, the Endpoints %v", a, b)
	}
	return strings.Join(a, " ")
}

// A server is among the endpoints from its start to its end, whichever way it
// ends, and others see it come and go.
func TestServerLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory()
		defer store.Close()
		at := func(address string) func(*Config) {
			return func(c *Config) { c.Store, c.Advertise = shared{store}, netip.MustParseAddrPort(address) }
		}
		a, stopA := newServer(t, at("10.0.0.1:6443"))
		if got := endpointsOf(t, a); got != "10.0.0.1" {
			t.Errorf("at its start: %s", got)
		}
		b, stopB := newServer(t, at("10.0.0.2:6443"))
		synctest.Wait()
		if got := endpointsOf(t, a); got != "10.0.0.1 10.0.0.2" {
			t.Errorf("two servers: %s", got)
		}
		// A third comes and is killed: its key is not renewed.
		value, err := leaseValue(netip.MustParseAddrPort("10.0.0.3:6443"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok, err := store.Put(t.Context(), leasePrefix+"10.0.0.3", value, 0, leaseTTL); err != nil || !ok {
			t.Fatal(ok, err)
		}
		synctest.Wait()
		if got := endpointsOf(t, b); got != "10.0.0.1 10.0.0.2 10.0.0.3" {
			t.Errorf("three servers: %s", got)
		}
		<-time.After(leaseTTL + time.Second)
		synctest.Wait()
		if got := endpointsOf(t, a); got != "10.0.0.1 10.0.0.2" {
			t.Errorf("after one was killed: %s", got)
		}
		stopB()
		synctest.Wait()
		if got := endpointsOf(t, a); got != "10.0.0.1" {
			t.Errorf("after one has ended: %s", got)
		}
		stopA()
		// Who ends alone leaves the way to itself for its next start.
		c, stopC := newServer(t, at("10.0.0.1:6443"))
		if got := endpointsOf(t, c); got != "10.0.0.1" {
			t.Errorf("after a restart: %s", got)
		}
		stopC()
	})
}

// What stands under the key is Endpoints in protobuf, as upstream reads it.
func TestServerLeaseValue(t *testing.T) {
	b, err := leaseValue(netip.MustParseAddrPort("10.0.0.1:6443"))
	if err != nil || !strings.HasPrefix(string(b), "k8s\x00") {
		t.Fatalf("%q, %v", b, err)
	}
	var u runtime.Unknown
	var e corev1.Endpoints
	if err := u.Unmarshal(b[4:]); err != nil || u.Kind != "Endpoints" || u.APIVersion != "v1" {
		t.Fatalf("%+v, %v", u.TypeMeta, err)
	}
	if err := e.Unmarshal(u.Raw); err != nil || e.Subsets[0].Addresses[0].IP != "10.0.0.1" || e.Subsets[0].Ports[0].Port != 6443 {
		t.Errorf("%v, %v", e.Subsets, err)
	}
}
