package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"knarr/internal/nft"
)

// dialNotices opens the socket that the kernel tells of changes by, of all tables.
func dialNotices() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	if err := c.SetReadBuffer(buffer); err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), c.Close())
	}
	return c, nil
}

// Why rules are written anew: they are gone, or nobody knows.
const (
	rulesDeleted = "somebody deleted them"
	noticesLost  = "notices of the kernel were lost"
)

// Watch reads notices until ctx ends. Where the kernel has lost some, and at the
// beginning, it looks at what there is instead.
func (k *kernel) Watch(ctx context.Context, gone func(why string), attached func(uid string, a netip.Addr)) error {
	c := k.notices
	if k.notices = nil; c == nil { // the first is opened where the rules are written
		var err error
		if c, err = dialNotices(); err != nil {
			return err
		}
		gone(noticesLost) // who knows what has happened meanwhile
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	k.readNewPods(attached)
	for {
		messages, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			gone(noticesLost)
			k.readNewPods(attached)
			continue
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		}
		lost := false
		for _, m := range messages {
			n, ok := noticeOf(m)
			if !ok || n.table != k.table.Name {
				continue
			}
			isNew := n.set == NewPods4 || n.set == NewPods6
			switch {
			case n.gone && !isNew && !k.isMine(m.Header.PID):
				lost = true
			case !n.gone && isNew:
				for _, e := range n.elements {
					report(e, attached)
				}
			}
		}
		if lost {
			gone(rulesDeleted)
		}
	}
}

// readNewPods reports the new pods there are.
func (k *kernel) readNewPods(attached func(uid string, a netip.Addr)) {
	for _, v6 := range families {
		list, err := k.listNewPods(v6)
		if err != nil {
			continue // there is no table yet, and so no pod in it
		}
		for _, e := range list {
			report(e, attached)
		}
	}
}

func report(e newPod, attached func(uid string, a netip.Addr)) {
	if a, ok := netip.AddrFromSlice(e.key); ok && e.comment != "" {
		attached(e.comment, a)
	}
}

// listNewPods asks the kernel, by a socket of its own.
func (k *kernel) listNewPods(v6 bool) (all []newPod, err error) {
	c, err := nft.Open()
	if err != nil {
		return nil, err
	}
	list, err := c.GetSetElements(newPods(k.table, v6))
	for _, e := range list {
		all = append(all, newPod{e.Key, e.Comment})
	}
	return all, err
}

// A newPod is an element of the sets of new pods.
type newPod struct {
	key     []byte
	comment string
}

// A notice is what the kernel tells of one change: something of a table is gone,
// or elements came.
type notice struct {
	table, set string
	gone       bool
	elements   []newPod
}

// Attributes of the messages, by the kernel's uapi.
const (
	attrTable       = 1 // of tables (their name), chains, rules, sets and elements
	attrElementsSet = 2
	attrElements    = 3
	attrKey         = 1
	attrUserData    = 6
	attrValue       = 1
)

func noticeOf(m netlink.Message) (n notice, ok bool) {
	if uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < 4 {
		return n, false
	}
	elements := false
	switch uint16(m.Header.Type) & 0xff {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET:
		n.gone = true
	case unix.NFT_MSG_DELSETELEM:
		n.gone, elements = true, true
	case unix.NFT_MSG_NEWSETELEM:
		elements = true
	default:
		return n, false
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return n, false
	}
	for ad.Next() {
		switch ad.Type() {
		case attrTable:
			n.table = ad.String()
		case attrElementsSet:
			if elements {
				n.set = ad.String()
			}
		case attrElements:
			if elements && !n.gone && strings.HasPrefix(n.set, "new") {
				ad.Nested(n.decode)
			}
		}
	}
	return n, ad.Err() == nil
}

func (n *notice) decode(list *netlink.AttributeDecoder) error {
	for list.Next() {
		list.Nested(func(ad *netlink.AttributeDecoder) error {
			var e newPod
			for ad.Next() {
				switch ad.Type() {
				case attrKey:
					ad.Nested(func(value *netlink.AttributeDecoder) error {
						for value.Next() {
							if value.Type() == attrValue {
								e.key = value.Bytes()
							}
						}
						return nil
					})
				case attrUserData:
					e.comment, _ = userdata.GetString(ad.Bytes(), userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
				}
			}
			n.elements = append(n.elements, e)
			return nil
		})
	}
	return nil
}
