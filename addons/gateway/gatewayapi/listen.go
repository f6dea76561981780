package gatewayapi

import (
	"fmt"
	"hash/fnv"
	"slices"

	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/route"
)

// listen hands the listeners of a Gateway over, once their routes are known, where this node
// has a place for them.
func (c *compilation) listen(g *gateway) {
	place := c.Place(g.name)
	if place == nil || len(place.Addresses) == 0 || g.refused != nil {
		return
	}
	for _, l := range g.listeners {
		port, ok := place.Ports[Port{uint16(l.port), l.udp()}]
		if !ok || !l.usable() {
			continue
		}
		made := l.content
		made.Name, made.Addresses, made.Port, made.PublicPort = l.path(), place.Addresses, port, uint16(l.port)
		made.Protocol, made.Hostname, made.Certificates, made.Passthrough, made.ClientCAs = route.Protocol(l.protocol), l.host(), l.certificates, l.passthrough(), l.clientCAs
		made.ClientUnverified = l.unverified
		if l.http3 {
			made.HTTP3Port = place.Ports[Port{uint16(l.port), true}] // 0 until it has one
		}
		if l.protocol == gw.HTTPProtocolType && l.port == challengePort && place.Challenge != "" && len(g.challenged) > 0 {
			made.Challenge, made.ChallengeHosts = place.Challenge, g.challenged
			c.out.Of[made.Name] = g.Gateway
		}
		c.out.Listeners = append(c.out.Listeners, made)
	}
}

// reserve leaves out what gets no port of the nodes.
func (c *compilation) reserve() {
	if c.Reserve == nil {
		return
	}
	left := c.Reserve(c.out.Ports)
	for key, why := range left {
		g := c.gateways[key.Gateway]
		for _, l := range g.listeners {
			if (Port{uint16(l.port), l.udp()}) == key.Port && l.accepted.reason == "" {
				l.accepted = verdict{string(gw.ListenerReasonPortUnavailable), why}
			}
		}
		rest := slices.DeleteFunc(c.out.Ports[key.Gateway], func(p Port) bool { return p == key.Port })
		if c.out.Ports[key.Gateway] = rest; len(rest) == 0 {
			delete(c.out.Ports, key.Gateway)
		}
	}
}

// path is a listener's name in logs and metrics.
func (l *listener) path() string {
	if l.set != nil {
		return fmt.Sprintf("gateway %s/%s/%s", l.of.name, l.set.name, l.name)
	}
	return fmt.Sprintf("gateway %s/%s", l.of.name, l.name)
}

// ServiceName is the name of a Gateway's Service.
func ServiceName(gateway string) string {
	const suffix, most = "-knarr", 63
	if len(gateway)+len(suffix) <= most {
		return gateway + suffix
	}
	h := fnv.New32a()
	h.Write([]byte(gateway))
	return fmt.Sprintf("%s-%08x%s", gateway[:most-len(suffix)-9], h.Sum32(), suffix)
}
