package cni

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Changes calls for each change of nftables that another program than knarr makes, until
// ctx ends: a firewall that starts anew takes away the rules of others too. It follows
// the network namespace of the calling thread.
func Changes(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("follow changes of nftables: %w", err)
	}
	defer conn.Close()
	filter, err := bpf.Assemble(onlyGenerations())
	if err == nil {
		err = conn.SetBPF(filter)
	}
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return fmt.Errorf("follow changes of nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some were lost
			changed()
			continue
		case err != nil:
			return fmt.Errorf("follow changes of nftables: %w", err)
		}
		for _, m := range messages {
			if !strings.HasPrefix(programOf(m), "knarr") {
				changed()
				break
			}
		}
	}
}

// programOf is the name of the program whose transaction a message ends.
func programOf(m netlink.Message) (name string) {
	if len(m.Data) < 4 {
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_GEN_PROC_NAME {
			name = ad.String()
		}
	}
	return name
}

// onlyGenerations lets pass the message that ends a transaction, and not one for each of
// its parts.
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
