package kubeproxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// fedSyncer is that of a proxy whose informers are fed by the test.
func fedSyncer(t *testing.T, d Dataplane) (*syncer, *record.FakeRecorder) {
	t.Helper()
	p, err := New(Config{Kube: &rest.Config{Host: "127.0.0.1:1"}, NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	events := record.NewFakeRecorder(100)
	y := newSyncer(p, d, events)
	t.Cleanup(y.stop)
	return y, events
}

func (y *syncer) put(t *testing.T, age time.Duration, svc *corev1.Service, addr string) {
	t.Helper()
	svc.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0).Add(-age))
	if err := y.proxy.services.GetStore().Add(svc); err != nil {
		t.Fatal(err)
	}
	if err := y.proxy.slices.GetStore().Add(slice(svc.Name, 8080, addr)); err != nil {
		t.Fatal(err)
	}
	y.pending.add(cache.MetaObjectToName(svc))
}

// Services that claim one front are distinguished in the plan: the rest of the
// node's Services get their rules, and the loser's user an event.
func TestConflictingServices(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	serve(t, "10.1.0.2:8080")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	y, events := fedSyncer(t, k)
	sync := func(all bool) {
		t.Helper()
		if err := y.sync(t.Context(), all); err != nil {
			t.Fatalf("write the rules: %v", err)
		}
		if len(y.refused) > 0 {
			t.Fatalf("refused: %v", y.refused)
		}
	}
	want := func(addr, answer string) {
		t.Helper()
		if got, err := ask(addr); err != nil || got != answer {
			t.Errorf("%s: %q, %v, want %s", addr, got, err, answer)
		}
	}
	port := corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}
	external := func(name, ip string, addrs ...string) *corev1.Service {
		svc := service(name, ip, port)
		svc.Spec.ExternalIPs = addrs
		return svc
	}
	old := external("old", "10.43.0.7", "192.0.2.7")
	y.put(t, time.Hour, old, "10.1.0.1")
	y.put(t, 0, external("new", "10.43.0.8", "192.0.2.7"), "10.1.0.2")
	y.put(t, 2*time.Hour, external("thief", "10.43.0.9", "10.43.0.10"), "10.1.0.1")
	y.put(t, 0, service("victim", "10.43.0.10", port), "10.1.0.2")
	y.put(t, 0, service("zebra", "10.43.0.11", port), "10.1.0.2")
	for _, all := range []bool{true, false, true} {
		sync(all)
		want("192.0.2.7:80", "10.1.0.1:8080")
		want("10.43.0.10:80", "10.1.0.2:8080")
		want("10.43.0.11:80", "10.1.0.2:8080")
		want("10.43.0.8:80", "10.1.0.2:8080")
	}
	var got []string
	for len(events.Events) > 0 {
		got = append(got, <-events.Events)
	}
	if all := strings.Join(got, "\n"); len(got) != 2 ||
		!strings.Contains(all, "Warning ServicePortConflict Port 80/TCP of 192.0.2.7 is already in use by Service ns/old, and leads there") ||
		!strings.Contains(all, "Warning ServicePortConflict Port 80/TCP of 10.43.0.10 is already in use by Service ns/victim, and leads there") {
		t.Errorf("events:\n%s", all)
	}
	// The owner goes, and the next gets the address.
	if err := y.proxy.services.GetStore().Delete(old); err != nil {
		t.Fatal(err)
	}
	y.pending.add(cache.MetaObjectToName(old))
	sync(false)
	want("192.0.2.7:80", "10.1.0.2:8080")
}

// A Service that the kernel refuses keeps no other from its rules, whether it
// is there at the start or comes later.
func TestKernelRefusesOneService(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	port := corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}
	changes := map[cache.ObjectName]Rules{}
	for i := range 250 {
		name := fmt.Sprint("s", i)
		changes[cache.NewObjectName("ns", name)] = plan(service(name, fmt.Sprintf("10.43.1.%d", i), port), eps(slice(name, 8080, "10.1.0.1")), host{name: "n1"})
	}
	// The kernel does not take an endpoint of the other family.
	bad := cache.NewObjectName("ns", "s100")
	broken := changes[bad]
	broken.Pools = map[string]Pool{}
	for name, p := range changes[bad].Pools {
		p.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("[fd01::1]:8080")}
		broken.Pools[name] = p
	}
	good := changes[bad]
	changes[bad] = broken
	for _, all := range []bool{true, false} {
		refused, err := k.Apply(changes, all)
		if err != nil || len(refused) != 1 || refused[bad] == nil {
			t.Fatalf("%v, refused %v, want %s alone", err, refused, bad)
		}
		for _, addr := range []string{"10.43.1.0:80", "10.43.1.99:80", "10.43.1.101:80", "10.43.1.249:80"} {
			if _, err := ask(addr); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		}
	}
	write(t, k, map[cache.ObjectName]Rules{bad: good}, false)
	if _, err := ask("10.43.1.100:80"); err != nil {
		t.Error(err)
	}
	write(t, k, map[cache.ObjectName]Rules{bad: good}, false)
	// What it had goes, when it is refused later.
	if refused, err := k.Apply(map[cache.ObjectName]Rules{bad: broken}, false); err != nil || refused[bad] == nil {
		t.Fatalf("%v, refused %v", err, refused)
	}
	// Addresses go round among more Services than one transaction carries.
	turned := map[cache.ObjectName]Rules{}
	for i := range 250 {
		name := fmt.Sprint("s", i)
		turned[cache.NewObjectName("ns", name)] = plan(service(name, fmt.Sprintf("10.43.1.%d", (i+1)%250), port), eps(slice(name, 8080, "10.1.0.1")), host{name: "n1"})
	}
	write(t, k, turned, false)
	// Somebody takes the table away: the whole is written again.
	if err := k.Intact(); err != nil {
		t.Error(err)
	}
	for _, f := range k.tables {
		if err := removeTable(f.table); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Apply(changes, false); err == nil {
		t.Error("the lack of the table is not reported")
	}
	if err := k.Intact(); err == nil {
		t.Error("the lack of the table is not seen")
	}
	write(t, k, turned, true)
}
