// Package nft opens the connections over which everything here speaks with the
// kernel's nftables. It reads which generation the rules are of, to see that
// somebody answers, and writes nothing.
package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Open is nftables.New with an error where the kernel has no nf_tables. Such a kernel
// answers the first message of a transaction and no other, so that whoever sends one
// waits for ever. This may be for a moment only: the kernel loads the module when it is
// first asked for, which fails while the machine starts many programs.
func Open(opts ...nftables.ConnOption) (*nftables.Conn, error) {
	return nftables.New(append([]nftables.ConnOption{nftables.WithSockOptions(answers)}, opts...)...)
}

// errAbsent has in it what to do.
var errAbsent = errors.New("the kernel has no nf_tables: modprobe nf_tables says why its module is not loaded")

// answers asks for the number of the rules' generation, which is always answered.
func answers(c *netlink.Conn) error {
	_, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL): // netfilter has no such part
		err = fmt.Errorf("%w (%w)", errAbsent, err)
	}
	_ = c.Close() // the library leaves it to the collector
	return err
}
