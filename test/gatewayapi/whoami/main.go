// Command whoami answers DNS queries by UDP with the address of the client, as CoreDNS'
// plugin of that name does: the suite's backend of UDPRoutes.
package main

import (
	"log"
	"net"

	"github.com/miekg/dns"
)

func main() {
	dns.HandleFunc(".", func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(q)
		answer.Authoritative = true
		if host, _, err := net.SplitHostPort(w.RemoteAddr().String()); err == nil && len(q.Question) == 1 {
			answer.Extra = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(host)}}
		}
		_ = w.WriteMsg(answer)
	})
	log.Fatal((&dns.Server{Addr: ":53", Net: "udp"}).ListenAndServe())
}
