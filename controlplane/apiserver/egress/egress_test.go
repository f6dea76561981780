package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
)

// TestNameIsResolvedOnce: the address that is dialled is the one that was
// checked, whatever the resolver says next.
func TestNameIsResolvedOnce(t *testing.T) {
	asked, dialled := 0, []string(nil)
	end := errors.New("enough")
	g := &Guard{
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			asked++
			if asked > 1 {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.2")}, nil
		},
		Connect: func(_ context.Context, _, address string) (net.Conn, error) {
			dialled = append(dialled, address)
			return nil, end
		},
	}
	_, err := g.DialProxied(t.Context(), "tcp", "node.example:80")
	if !errors.Is(err, end) || asked != 1 || len(dialled) != 2 || dialled[0] != "192.0.2.1:80" || dialled[1] != "192.0.2.2:80" {
		t.Errorf("asked %d times, dialled %v: %v", asked, dialled, err)
	}
	if _, err = g.DialProxied(t.Context(), "tcp", "node.example:80"); !errors.Is(err, ErrRefused) || len(dialled) != 2 {
		t.Errorf("dialled %v: %v", dialled, err)
	}
}

func TestRefusedAddresses(t *testing.T) {
	own := netip.MustParseAddrPort("10.0.0.1:6443")
	g := &Guard{Own: func(a netip.AddrPort) bool { return a == own }, Connect: func(context.Context, string, string) (net.Conn, error) { return nil, nil }}
	for address, want := range map[string]struct{ plain, proxied bool }{
		"10.0.0.1:6443":          {false, false},
		"[::ffff:10.0.0.1]:6443": {false, false},
		"10.0.0.1:10250":         {true, true},
		"127.0.0.1:10250":        {true, false},
		"[::1]:10250":            {true, false},
		"0.0.0.0:10250":          {true, false},
		"169.254.169.254:80":     {true, false},
		"[fe80::1%eth0]:80":      {true, false},
		"224.0.0.1:80":           {true, false},
		"255.255.255.255:80":     {true, false},
		"10.0.0.2:99999":         {false, false},
	} {
		if _, err := g.Dial(t.Context(), "tcp", address); (err == nil) != want.plain {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := g.DialProxied(t.Context(), "tcp", address); (err == nil) != want.proxied {
			t.Errorf("%s, for a proxy: %v", address, err)
		}
	}
}
