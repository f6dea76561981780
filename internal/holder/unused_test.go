package holder_test

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"knarr/internal/holder"
)

// A process lets go of what the one before has left and it does not need: of nothing that
// it has taken over or opened, and of nothing that another part of it may still ask for.
func TestDropUnused(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "holder")
	if out, err := exec.Command("go", "build", "-o", program, "./program").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	socket := filepath.Join(dir, "sock")
	first, err := holder.Start(program, socket)
	if err != nil {
		t.Fatal(err)
	}
	var left []net.Listener
	for range 4 {
		l, err := first.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Keep(l); err != nil {
			t.Fatal(err)
		}
		left = append(left, l)
	}
	slices.SortFunc(left, func(a, b net.Listener) int {
		return netip.MustParseAddrPort(a.Addr().String()).Compare(netip.MustParseAddrPort(b.Addr().String()))
	})
	var at []string
	for _, l := range left {
		at = append(at, l.Addr().String())
		l.Close()
	}
	second, err := holder.Connect(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer second.End()
	taken, err := second.Listen("tcp", at[0])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	opened, err := second.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := second.Keep(opened); err != nil {
		t.Fatal(err)
	}
	others := netip.MustParseAddrPort(at[1])
	dropped, err := second.DropUnused(func(network string, at netip.AddrPort) bool { return network == "tcp" && at != others })
	slices.Sort(dropped)
	want := []string{"tcp " + at[2], "tcp " + at[3]}
	slices.Sort(want)
	if err != nil || !slices.Equal(dropped, want) {
		t.Errorf("%v are dropped, want %v, %v", dropped, want, err)
	}
	for i, address := range append(at, opened.Addr().String()) {
		c, err := net.Dial("tcp", address)
		if there := err == nil; there != (i != 2 && i != 3) {
			t.Errorf("socket %d is there: %v", i, there)
		}
		if err == nil {
			c.Close()
		}
	}
	if _, err := (*holder.Client)(nil).DropUnused(nil); err != nil {
		t.Error(err)
	}
}
