package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/internal/references"
)

// challengePort is where authorities validate hosts.
const challengePort = 80

// order says which certificates a Gateway wants to be got by ACME: those of Secrets of its own
// namespace that its own listeners name, for the hosts of these. An authority asks a host at
// port 80, where a listener of the same Gateway must be: who gets no requests for a host
// there gets no certificate for it.
func (c *compilation) order(g *gateway) {
	if g.Annotations[references.ACMEAnnotation] != "true" || g.refused != nil {
		return
	}
	first := len(c.out.Orders)
	for _, l := range g.listeners {
		if l.set != nil || l.accepted.reason != "" || l.conflicted.reason != "" {
			continue
		}
		for name := range references.IssuedForListener(&gw.Listener{Protocol: l.protocol, TLS: l.tls}, g.Namespace) {
			at := slices.IndexFunc(c.out.Orders[first:], func(o ingress.Order) bool { return o.Secret.Name == name })
			if at < 0 {
				at = len(c.out.Orders) - first
				c.out.Orders = append(c.out.Orders, ingress.Order{Secret: types.NamespacedName{Namespace: g.Namespace, Name: name}, Owner: g.Gateway})
			}
			o := &c.out.Orders[first+at]
			switch host := l.host(); {
			case host == "":
				o.Faults = append(o.Faults, fmt.Sprintf("no certificate is ordered for listener %s: it names no host", l.name))
			case !g.answers(host):
				o.Faults = append(o.Faults, fmt.Sprintf("no certificate is ordered for host %s of listener %s: the Gateway has no listener of protocol HTTP at port %d for it, where authorities validate hosts", host, l.name, challengePort))
			case !slices.Contains(o.Hosts, host):
				o.Hosts = append(o.Hosts, host)
			}
		}
	}
	for i := range c.out.Orders[first:] {
		o := &c.out.Orders[first+i]
		slices.Sort(o.Hosts)
		g.challenged = append(g.challenged, o.Hosts...)
	}
}

// answers says whether requests for a host reach a listener of the Gateway where authorities
// ask.
func (g *gateway) answers(host string) bool {
	return slices.ContainsFunc(g.listeners, func(l *listener) bool {
		if l.protocol != gw.HTTPProtocolType || l.port != challengePort || l.accepted.reason != "" || l.conflicted.reason != "" {
			return false
		}
		suffix, wild := strings.CutPrefix(l.host(), "*")
		return l.host() == "" || l.host() == host || wild && strings.HasSuffix(host, suffix)
	})
}
