package proxy

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// clientAddress is who a request is from: the peer, unless it is a trusted proxy; then
// the last address of X-Forwarded-For that is none.
func clientAddress(peer netip.Addr, h http.Header, trusted []netip.Prefix) netip.Addr {
	client := peer
	lines := h["X-Forwarded-For"]
	if len(trusted) == 0 || len(lines) == 0 || !within(peer, trusted) {
		return client
	}
	list := strings.Join(lines, ",")
	for list != "" && within(client, trusted) {
		i := strings.LastIndexByte(list, ',')
		item := strings.TrimSpace(list[i+1:])
		list = list[:max(i, 0)]
		a, err := netip.ParseAddr(item)
		if err != nil {
			withPort, err := netip.ParseAddrPort(item)
			if err != nil {
				break // nothing beyond it can be believed
			}
			a = withPort.Addr()
		}
		client = a.Unmap().WithZone("")
	}
	return client
}

func within(a netip.Addr, prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// hopByHop are the headers that belong to one connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// dropHopByHop removes what belongs to the connection that the headers came by, with what
// Connection names. It returns the protocol of an upgrade, if one is asked for.
func dropHopByHop(h http.Header) (upgrade string) {
	if lines := h["Connection"]; len(lines) > 0 {
		for _, line := range lines {
			for name := range strings.SplitSeq(line, ",") {
				name = strings.TrimSpace(name)
				if strings.EqualFold(name, "upgrade") {
					upgrade = h.Get("Upgrade")
				} else if !strings.EqualFold(name, "close") && !strings.EqualFold(name, "keep-alive") {
					delete(h, http.CanonicalHeaderKey(name))
				}
			}
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
	return upgrade
}

// forwardedHeaders are those by which proxies speak for clients. Those of clients that are no
// trusted proxies are replaced.
var forwardedHeaders = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Scheme",
	"X-Forwarded-Prefix", "X-Forwarded-Ssl", "X-Forwarded-Server", "X-Real-Ip", "X-Scheme", "X-Original-Forwarded-For"}

// forwarded finds out what the client asked of whom, as the headers to the backend say.
func (x *exchange) forwarded() {
	h, l := x.r.Header, x.site.Listener
	x.scheme, x.forwardedHost = "http", x.r.Host
	if x.port.tls {
		x.scheme = "https"
	}
	x.forwardedPort = publicPort(l.PublicPort)
	if len(l.TrustedProxies) > 0 && within(x.peer, l.TrustedProxies) {
		if v := h.Get("X-Forwarded-Proto"); v == "http" || v == "https" {
			x.scheme = v
		}
		if v := h.Get("X-Forwarded-Host"); v != "" {
			x.forwardedHost = v
		}
		if v := h.Get("X-Forwarded-Port"); v != "" {
			x.forwardedPort = v
		}
		x.setForwarded(strings.Join(append(h["X-Forwarded-For"], x.peer.String()), ", "), x.client.String())
		return
	}
	for _, name := range forwardedHeaders {
		delete(h, name)
	}
	peer := x.peer.String()
	x.setForwarded(peer, peer)
}

func (x *exchange) setForwarded(chain, client string) {
	h := x.r.Header
	values := []string{chain, client, x.scheme, x.forwardedHost, x.forwardedPort}
	for i, name := range []string{"X-Forwarded-For", "X-Real-Ip", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port"} {
		h[name] = values[i : i+1 : i+1]
	}
}

func publicPort(port uint16) string {
	switch port {
	case 80:
		return "80"
	case 443:
		return "443"
	}
	return strconv.Itoa(int(port))
}
