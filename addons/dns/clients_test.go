package dns

import (
	"net/netip"
	"testing"
)

// TestClients: who is not of the ranges is not answered, however its address is written.
func TestClients(t *testing.T) {
	s := &Server{}
	if !s.answers(netip.MustParseAddr("192.0.2.1")) {
		t.Error("without ranges somebody is not answered")
	}
	s.cfg.Clients = []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/56")}
	for client, want := range map[string]bool{
		"10.42.0.7": true, "::ffff:10.42.0.7": true, "fd00:42::1%eth0": true, "10.43.0.7": false, "fd00:43::1": false,
	} {
		if got := s.answers(netip.MustParseAddr(client)); got != want {
			t.Errorf("%s: %v", client, got)
		}
	}
	if s.answers(netip.Addr{}) {
		t.Error("a client without an address is answered")
	}
}
