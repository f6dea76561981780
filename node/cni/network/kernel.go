package network

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"knarr/internal/nft"
)

// A Kernel is a connection to nftables that stays open for one command after another. To
// close one waits until the kernel has freed what transactions, anybody's, have taken away,
// which is some 30 ms, and all other transactions wait with it. A nil one opens a
// connection each time, which its process' end closes.
type Kernel struct {
	mu   sync.Mutex
	conn *nftables.Conn
}

// with gives f a connection that nobody else uses meanwhile.
func (k *Kernel) with(f func(*nftables.Conn) error) error {
	if k == nil {
		conn, err := nft.Open(nftables.WithSockOptions(roomy))
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		return f(conn)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		conn, err := nft.Open(nftables.AsLasting(), nftables.WithSockOptions(roomy))
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		k.conn = conn
	}
	whole := false
	defer func() {
		if !whole { // what is left in it, of messages and of answers, is not for the next
			_ = k.close()
		}
	}()
	err := f(k.conn)
	whole = err == nil
	return err
}

// Close closes what is open.
func (k *Kernel) Close() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.close()
}

func (k *Kernel) close() error {
	if k.conn == nil {
		return nil
	}
	conn := k.conn
	k.conn = nil
	return conn.CloseLasting()
}

// roomy makes place for a transaction that carries all pods of a node, which is
// sent at once, and for the kernel's answers.
func roomy(c *netlink.Conn) error {
	const buffer = 4 << 20
	return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
}
