package network

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bandwidth is what a pod may receive and send: bits per second, and bits at once. A
// burst that is 0, or as large as the runtime writes when nobody has said any, is made
// from the rate.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// unsaid is the burst by which the runtime says nothing.
const unsaid = math.MaxUint32

// A pod's packets wait for at most this part of a second, and a burst is of what passes in
// that part of one, but never smaller than what the kernel sends in one piece.
const (
	latencyPart = 40
	burstPart   = 10
	minBurst    = 64 << 10
)

// ifbLink names the link that holds back what a pod sends, before the node sees it.
func ifbLink(key string) string { return strings.Replace(hostLink(key), "veth", "ifb", 1) }

// limitBandwidth holds the pod's link to what the configuration says: what the node sends
// to the pod by the queue of the pod's link, what the pod sends by that of a link of its
// own, to which everything is led.
func limitBandwidth(c *Conf, a *Attachment) error {
	b := c.RuntimeConfig.Bandwidth
	if b == nil || b.IngressRate == 0 && b.EgressRate == 0 {
		return nil
	}
	host, err := netlink.LinkByName(hostLink(a.key()))
	if err != nil {
		return fmt.Errorf("link %s: %w", hostLink(a.key()), err)
	}
	if b.IngressRate > 0 {
		if err := shape(host, b.IngressRate, b.IngressBurst); err != nil {
			return err
		}
	}
	if b.EgressRate == 0 {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = ifbLink(a.key()), host.Attrs().MTU
	if err := removeIFB(a.key()); err != nil { // one of a try that was cut short
		return err
	}
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); errors.Is(err, unix.EOPNOTSUPP) {
		return errors.New("the pod's bandwidth: this kernel has no link that holds packets back (CONFIG_IFB)")
	} else if err != nil {
		return fmt.Errorf("add link %s: %w", attrs.Name, err)
	}
	ifb, err := netlink.LinkByName(attrs.Name)
	if err == nil {
		err = netlink.LinkSetUp(ifb)
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", attrs.Name, err)
	}
	if err := shape(ifb, b.EgressRate, b.EgressBurst); err != nil {
		return err
	}
	return lead(host, ifb)
}

// shape has a link send no faster than a rate.
func shape(link netlink.Link, rate, burst uint64) error {
	limit, buffer, bytes := bucket(rate, burst)
	err := netlink.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes, Limit: limit, Buffer: buffer,
	})
	if err != nil {
		return fmt.Errorf("limit what %s sends to %d bit/s: %w", link.Attrs().Name, rate, err)
	}
	return nil
}

// bucket gives the parameters of a token bucket: the bytes that may wait, the burst as the
// time that it takes in the kernel's ticks, and the bytes per second. Pure but for the
// length of a tick.
func bucket(rate, burst uint64) (limit, buffer uint32, bytes uint64) {
	bytes = max(rate/8, 1)
	size := float64(burst / 8)
	if burst == 0 || burst >= unsaid {
		size = max(float64(bytes)/burstPart, minBurst)
	}
	most := func(f float64) uint32 { return uint32(min(f, math.MaxInt32)) }
	ticks := size * netlink.TIME_UNITS_PER_SEC / float64(bytes) * netlink.TickInUsec()
	return most(float64(bytes)/latencyPart + size), most(max(ticks, 1)), bytes
}

// lead sends what comes by a link to another one, which gives it back when its time is
// there.
func lead(from, to netlink.Link) error {
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := netlink.QdiscReplace(ingress); err != nil {
		return fmt.Errorf("look at what comes by %s: %w", from.Attrs().Name, err)
	}
	err := netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(to.Attrs().Index)},
	})
	if err != nil {
		return fmt.Errorf("lead what comes by %s to %s: %w", from.Attrs().Name, to.Attrs().Name, err)
	}
	return nil
}

// removeIFB removes the link that holds back what a pod sends, if there is one.
func removeIFB(key string) error {
	link, err := netlink.LinkByName(ifbLink(key))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil && link.Type() == "ifb" && link.Attrs().Flags&net.FlagLoopback == 0 {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", ifbLink(key), err)
	}
	return nil
}
