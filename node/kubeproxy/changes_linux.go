package kubeproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// changes follows the kernel's notifications of transactions, and tells of those
// that are not this proxy's: a firewall that starts anew takes away the rules of
// others too.
type changes struct {
	c       chan struct{}
	conn    *netlink.Conn
	closing atomic.Bool
	done    chan struct{}

	mu  sync.Mutex
	own []uint32 // the last sockets of this proxy, by netlink's port
}

// ownSockets is how many sockets are remembered: those of both families, and a
// few that were closed and may still be spoken of.
const ownSockets = 16

// watchChanges follows the network namespace of the calling thread.
func watchChanges() (*changes, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	w := &changes{c: make(chan struct{}, 1), conn: conn, done: make(chan struct{})}
	filter, err := bpf.Assemble(onlyGenerations())
	if err == nil {
		err = conn.SetBPF(filter)
	}
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow changes of nftables: %w", err), conn.Close())
	}
	run.Go("kube-proxy: changes of nftables", w.follow)
	return w, nil
}

// onlyGenerations lets pass the message that ends a transaction, and not one for
// each of its elements.
func onlyGenerations() []bpf.Instruction {
	kind := uint32(4) // where the low byte of a message's type is
	if binaryutil.NativeEndian.PutUint32(1)[0] == 0 {
		kind = 5
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: kind, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NFT_MSG_NEWGEN, SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}

// ownSocket remembers a socket whose changes are this proxy's.
func (w *changes) ownSocket(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		addr, err := unix.Getsockname(int(fd))
		if at, ok := addr.(*unix.SockaddrNetlink); ok {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.own = append(w.own[max(0, len(w.own)-ownSockets+1):], at.Pid)
		}
		inner = err
	})
	return errors.Join(err, inner)
}

func (w *changes) isOwn(port uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.own, port)
}

func (w *changes) follow() {
	defer close(w.done)
	for {
		messages, err := w.conn.Receive()
		others := slices.ContainsFunc(messages, func(m netlink.Message) bool { return !w.isOwn(m.Header.PID) })
		switch {
		case errors.Is(err, unix.ENOBUFS): // some were lost
			others = true
		case err != nil:
			if !w.closing.Load() {
				slog.Warn("follow changes of nftables; the rules are looked at now and then", "err", err)
			}
			return
		}
		if others {
			select {
			case w.c <- struct{}{}:
			default:
			}
		}
	}
}

func (w *changes) close() error {
	w.closing.Store(true)
	err := w.conn.Close()
	<-w.done
	return err
}
