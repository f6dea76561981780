package main

import (
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestAskFrom: a pool's addresses are asked from the client's, the nodes from the link's
// own as before, and all of it goes with the link.
func TestAskFrom(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace of its own")
	}
	runtime.LockOSThread() // the thread ends with the test, and the namespace with it
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "nodes"
	link := &netlink.Bridge{LinkAttrs: attrs}
	own, pool := netip.MustParsePrefix("172.28.0.1/24"), netip.MustParsePrefix("172.28.0.192/27")
	if err := askFrom(client, own.Addr(), pool); err == nil {
		t.Error("no link has the address, and no error says so")
	}
	for _, do := range []func() error{
		func() error { return netlink.LinkAdd(link) },
		func() error { return netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet(own)}) },
		func() error { return netlink.LinkSetUp(link) },
		func() error { return askFrom(client, own.Addr(), pool) },
		func() error { return askFrom(client, own.Addr(), pool) }, // as after a run that was killed
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	for to, want := range map[string]string{"172.28.0.192": "198.51.100.1", "172.28.0.223": "198.51.100.1", "172.28.0.2": "172.28.0.1", "172.28.0.224": "172.28.0.1"} {
		routes, err := netlink.RouteGet(netip.MustParseAddr(to).AsSlice())
		if err != nil {
			t.Fatal(err)
		}
		if got := routes[0].Src.String(); got != want {
			t.Errorf("asks %s from %s, want %s", to, got, want)
		}
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4); err != nil || len(addrs) > 0 {
		t.Errorf("left: %v, %v", addrs, err)
	}
}
