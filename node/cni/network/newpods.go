package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// NewPods names the sets that a new pod's addresses are added to before it has
// its link, with the pod's UID as comment. Whoever holds pods to policies owns
// them: it lets nothing new through to or from what is in them, learns from them
// which pod has which address before the API does, and takes an address out once
// the pod's policies are in force. By themselves elements go after the time that
// the sets say. Without a table nobody is waited for.
type NewPods struct {
	Table string `json:"table"`
	IPv4  string `json:"ipv4"`
	IPv6  string `json:"ipv6"`
}

// podUID is that of the arguments that a runtime gives: KEY=VALUE;KEY=VALUE.
func podUID(args string) string {
	for kv := range strings.SplitSeq(args, ";") {
		if uid, ok := strings.CutPrefix(kv, "K8S_POD_UID="); ok {
			return uid
		}
	}
	return ""
}

// maxUID bounds the comment of an element. A UID has 36 characters.
const maxUID = 128

// closeNew adds a pod's addresses. What a former pod has left there is replaced.
func closeNew(c *Conf, a *Attachment) error {
	if c.NewPods == nil || c.podUID == "" || len(c.podUID) > maxUID {
		return nil
	}
	err := c.kernel.with(func(conn *nftables.Conn) error { return closeIn(conn, c, a) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func closeIn(conn *nftables.Conn, c *Conf, a *Attachment) error {
	for _, addr := range a.Addrs {
		s, list := c.NewPods.set(addr), []nftables.SetElement{{Key: addr.AsSlice(), Comment: c.podUID}}
		for _, do := range []func(*nftables.Set, []nftables.SetElement) error{
			conn.SetAddElements, // so that there is one to delete
			conn.SetDeleteElements,
			conn.SetAddElements,
		} {
			if err := do(s, list); err != nil {
				return fmt.Errorf("nftables set %s: %w", s.Name, err)
			}
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("close the pod until its policies are in force, in nftables table %s: %w", c.NewPods.Table, err)
	}
	return nil
}

func (n *NewPods) set(a netip.Addr) *nftables.Set {
	s := &nftables.Set{Table: tableOf(n.Table), Name: n.IPv4, KeyType: nftables.TypeIPAddr}
	if a.Is6() {
		s.Name, s.KeyType = n.IPv6, nftables.TypeIP6Addr
	}
	return s
}
