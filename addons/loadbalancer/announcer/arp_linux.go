package announcer

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"

	"knarr/internal/run"
)

// An arpResponder answers ARP on one link.
type arpResponder struct {
	ifi       *net.Interface
	client    *arp.Client
	addrs     atomic.Pointer[map[netip.Addr]bool]
	contested chan<- netip.Addr
	wait      run.Group
}

func openARP(ifi *net.Interface, contested chan<- netip.Addr) (responder, error) {
	client, err := arp.Dial(ifi)
	if err != nil {
		return nil, err
	}
	r := &arpResponder{ifi: ifi, client: client, contested: contested}
	r.addrs.Store(&map[netip.Addr]bool{})
	r.wait.Go("ARP", r.serve)
	return r, nil
}

// serve answers requests for the addresses. A packet is 28 bytes, of whatever the
// network sends; what is none is passed over.
func (r *arpResponder) serve() {
	for {
		p, _, err := r.client.Read()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			var failed net.Error
			if errors.As(err, &failed) && !failed.Timeout() {
				return // the link is gone; whoever sets the addresses next learns of it
			}
			continue
		}
		addrs := *r.addrs.Load()
		if addrs[p.SenderIP] && !bytes.Equal(p.SenderHardwareAddr, r.ifi.HardwareAddr) {
			select {
			case r.contested <- p.SenderIP:
			default:
			}
		}
		if p.Operation == arp.OperationRequest && addrs[p.TargetIP] && p.SenderIP != p.TargetIP {
			_ = r.client.Reply(p, r.ifi.HardwareAddr, p.TargetIP) // it asks again
		}
	}
}

func (r *arpResponder) set(addrs map[netip.Addr]bool) error {
	if _, err := net.InterfaceByIndex(r.ifi.Index); err != nil {
		return err
	}
	r.addrs.Store(&addrs)
	return nil
}

// announce sends a gratuitous request and a gratuitous reply: some machines heed one of
// them only.
func (r *arpResponder) announce(a netip.Addr) error {
	var errs []error
	for _, op := range []arp.Operation{arp.OperationRequest, arp.OperationReply} {
		p, err := arp.NewPacket(op, r.ifi.HardwareAddr, a, ethernet.Broadcast, a)
		if err == nil {
			err = r.client.WriteTo(p, ethernet.Broadcast)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (r *arpResponder) close() {
	r.client.Close()
	r.wait.Wait()
}
