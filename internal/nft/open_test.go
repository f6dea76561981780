package nft

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/run"
)

// A kernel without nf_tables refuses what belongs to no part of it, and answers one
// message of a transaction only: the second answer would never come.
func TestOpenWithoutNFTables(t *testing.T) {
	absent := func(req []netlink.Message) ([]netlink.Message, error) {
		if len(req) == 1 {
			return nltest.Error(int(syscall.EINVAL), req)
		}
		t.Error("a transaction is sent")
		return nltest.Error(int(syscall.EOPNOTSUPP), req[:1])
	}
	c, err := Open(nftables.WithTestDial(absent))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "one"})
	c.DelTable(table)
	_, listed := c.ListTables()
	_, lasting := Open(nftables.WithTestDial(absent), nftables.AsLasting())
	for what, err := range map[string]error{"write": c.Flush(), "list": listed, "open a lasting connection": lasting} {
		if !errors.Is(err, errAbsent) || !strings.Contains(err.Error(), "modprobe nf_tables") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What the kernel refuses for another reason is said as it is.
func TestOpenRefused(t *testing.T) {
	c, err := Open(nftables.WithTestDial(func(req []netlink.Message) ([]netlink.Message, error) {
		return nltest.Error(int(syscall.EPERM), req)
	}))
	if err != nil {
		t.Fatal(err)
	}
	c.AddTable(&nftables.Table{Name: "one"})
	if err := c.Flush(); !errors.Is(err, unix.EPERM) || errors.Is(err, errAbsent) {
		t.Error(err)
	}
}

// The kernel of this machine answers, and both kinds of connections work.
func TestOpen(t *testing.T) {
	need.Root(t)
	err := run.OnThread("test", func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, opts := range [][]nftables.ConnOption{nil, {nftables.AsLasting()}} {
			c, err := Open(opts...)
			if err != nil {
				return err
			}
			c.AddTable(&nftables.Table{Name: "one", Family: nftables.TableFamilyINet})
			if err := c.Flush(); err != nil {
				return err
			}
			if tables, err := c.ListTables(); err != nil || len(tables) != 1 {
				t.Errorf("the kernel has tables %v, %v", tables, err)
			}
			if err := c.CloseLasting(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
