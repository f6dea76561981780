package kubeproxy

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
)

// The map of clients is bounded. Whoever fills it, from many addresses, must not
// keep other clients from the Service.
func TestFullMapOfClients(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	r := plan(svc, eps(slice("web", 8080, "10.1.0.1")), host{name: "n1"})
	write(t, k, one("web", r), true)
	c, err := nftables.New(nftables.WithSockOptions(roomy))
	if err != nil {
		t.Fatal(err)
	}
	f := k.tables[0]
	for name := range r.Pools {
		id := f.pools[name].id
		clients := f.clients[id%shards]
		var list []nftables.SetElement
		for i := range uint32(maxClients) {
			list = append(list, nftables.SetElement{Key: binary.BigEndian.AppendUint32(words(id), 198<<24+i), Val: endpoint(netip.MustParseAddrPort("10.1.0.9:8080")), Timeout: time.Hour})
		}
		for part := range parts(list) {
			if err := c.SetAddElements(clients, part); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask("10.43.0.7:80"); err != nil {
		t.Errorf("a client that finds the map full: %v", err)
	}
}
