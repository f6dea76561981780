package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"knarr/addons/dns/corefile"
)

// addressOf is where a forwarder's only server is.
func addressOf(f *forwarder) string { return (*f.upstreams.Load())[0].Address }

// A server that refuses or fails is followed by another; its failure is what
// clients hear only if all fail.
func TestServersAreTriedInTurn(t *testing.T) {
	var failing atomic.Int32
	bad := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg {
		failing.Add(1)
		return []*dns.Msg{new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)}
	})
	good := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg { return []*dns.Msg{says(q, "192.0.2.1")} })
	f := forwarderTo(t, fmt.Sprintf("forward . %s %s {\npolicy sequential\n}", addressOf(bad), addressOf(good)))
	a, err := f.ask(questionOf(asks("www.example.")), aPod)
	if err != nil || answerOf(messageOf(a)) != "192.0.2.1" || failing.Load() != 1 {
		t.Errorf("%v, %v, %d questions to the first", messageOf(a), err, failing.Load())
	}
	f = forwarderTo(t, "forward . "+addressOf(bad))
	if a, err = f.ask(questionOf(asks("www.example.")), aPod); err != nil || messageOf(a).Rcode != dns.RcodeServerFailure {
		t.Errorf("all fail: %v, %v", messageOf(a), err)
	}
	f = forwarderTo(t, fmt.Sprintf("forward . %s %s {\npolicy round_robin\n}", addressOf(bad), addressOf(good)))
	first := map[string]int{}
	for range 4 {
		first[f.order()[0].Address]++
	}
	if first[addressOf(bad)] != 2 {
		t.Errorf("first are %v", first)
	}
	(*f.upstreams.Load())[0].fails.Store(2)
	for range 4 {
		if f.order()[0].Address == addressOf(bad) {
			t.Error("a server that is down is asked first")
		}
	}
}

// While servers fail, an answer whose time is over is better than none, and they
// are not asked again at once.
func TestStaleAnswers(t *testing.T) {
	var asked atomic.Int32
	var fails atomic.Bool
	f := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg {
		asked.Add(1)
		if fails.Load() {
			return []*dns.Msg{new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)}
		}
		return []*dns.Msg{says(q, "192.0.2.1")}
	})
	f.cache.StaleImmediate = false
	key := questionOf(asks("www.example."))
	a, err := f.ask(key, aPod)
	if err != nil {
		t.Fatal(err)
	}
	a.until = time.Now().Add(-time.Minute)
	fails.Store(true)
	for range 3 {
		if got, err := f.ask(key, aPod); err != nil || got != a {
			t.Errorf("%v, %v", got, err)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d questions, want 2", n)
	}
	q := query{message: make([]byte, headerSize), name: []byte(key.name), size: dns.MaxMsgSize}
	out, _ := a.appendTo(nil, &q, time.Now())
	m := new(dns.Msg)
	if err := m.Unpack(out); err != nil || m.Answer[0].Header().Ttl != staleTTL {
		t.Errorf("%v, %v", m, err)
	}
	a.stale = time.Now().Add(-time.Second) // for too long
	if got, err := f.ask(key, aPod); err == nil && messageOf(got).Rcode != dns.RcodeServerFailure {
		t.Errorf("%v", messageOf(got))
	}
	fails.Store(false)
	if got, err := f.ask(key, aPod); err != nil || answerOf(messageOf(got)) != "192.0.2.1" {
		t.Errorf("%v, %v", messageOf(got), err)
	}
}

// A popular answer is asked for again before its time is over, once.
func TestPrefetch(t *testing.T) {
	asked := make(chan struct{}, 10)
	f := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg {
		asked <- struct{}{}
		return []*dns.Msg{says(q, "192.0.2.1")}
	})
	s := configured(t, ". {\nforward . "+addressOf(f)+"\ncache 30 {\nprefetch 3\n}\n}\n")
	if got := answerTo(t, s, "www.example.", dns.TypeA); got != "NOERROR 192.0.2.1" {
		t.Fatal(got)
	}
	<-asked
	key := questionOf(asks("www.example."))
	a := s.plan.Load().memory.part(key.name).recall(key)
	if a == nil {
		t.Fatal("nothing is remembered")
	}
	for range 5 {
		answerTo(t, s, "www.example.", dns.TypeA)
	}
	if a.due(time.Now()) || !a.due(a.until.Add(-2*time.Second)) {
		t.Error("the answer is asked for again at the wrong time")
	}
	a.until = time.Now().Add(time.Second)
	for range 5 {
		answerTo(t, s, "www.example.", dns.TypeA)
	}
	<-asked
	s.plan.Load().wg.wait()
	if len(asked) != 0 {
		t.Errorf("%d questions more", len(asked))
	}
}

// What leads back here is found by a name that comes back, and is not asked.
func TestLoops(t *testing.T) {
	var itself atomic.Pointer[Server]
	f := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg {
		data, err := q.Pack()
		m := new(dns.Msg)
		if err != nil || m.Unpack(itself.Load().later(data, anotherPod, false)) != nil {
			return nil
		}
		return []*dns.Msg{m}
	})
	s := configured(t, ". {\nloop\nforward . "+addressOf(f)+"\n}\n")
	itself.Store(s)
	u := (*s.plan.Load().forwards[0].upstreams.Load())[0]
	s.plan.Load().forwards[0].detectLoop(u)
	if !u.looped.Load() || len(s.loops.names) != 0 {
		t.Errorf("looped %v, names %v", u.looped.Load(), s.loops.names)
	}
	if got := answerTo(t, s, "www.example.", dns.TypeA); got != "SERVFAIL" {
		t.Errorf("a question that would not end: %s", got)
	}
	f.probeLoops = true
	other := (*f.upstreams.Load())[0]
	f.detectLoop(other) // its name is known to another process's server alone
	if other.looped.Load() {
		t.Error("a loop that is none")
	}
}

// What a server says of names that nobody asked for is not passed on, and its
// absence is remembered as long as its SOA says.
func TestWhatIsKept(t *testing.T) {
	rrs := func(texts ...string) (all []dns.RR) {
		for _, text := range texts {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, rr)
		}
		return all
	}
	for _, c := range []struct {
		answer []dns.RR
		want   int
	}{
		{rrs("www.example. 60 IN A 192.0.2.1", "bank.example. 60 IN A 192.0.2.66"), 1},
		{rrs("b.example. 60 IN A 192.0.2.1", "a.example. 60 IN CNAME b.example.", "WWW.example. 60 IN CNAME a.example."), 3},
		{rrs("www.example. 60 IN CNAME www.example.", "c.example. 60 IN A 192.0.2.1"), 1},
		{rrs("example. 60 IN DNAME x.", "www.example. 60 IN CNAME www.x.", "y. 60 IN DNAME z."), 2},
	} {
		if got := about("www.example.", c.answer); len(got) != c.want {
			t.Errorf("%v", got)
		}
	}
	c := &corefile.Cache{Success: 30 * time.Second, Denial: 20 * time.Second, Servfail: 5 * time.Second, MinSuccess: 3 * time.Second}
	for want, m := range map[time.Duration]*dns.Msg{
		7 * time.Second:  {Ns: rrs("example. 60 IN SOA a. b. 1 2 3 4 7"), MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}},
		9 * time.Second:  {Ns: rrs("example. 9 IN SOA a. b. 1 2 3 4 70")},
		20 * time.Second: {Ns: rrs("example. 90 IN SOA a. b. 1 2 3 4 70")},
		30 * time.Second: {Answer: rrs("www.example. 90 IN A 192.0.2.1")},
		3 * time.Second:  {Answer: rrs("www.example. 1 IN A 192.0.2.1")},
		5 * time.Second:  {MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure}},
		0:                {MsgHdr: dns.MsgHdr{Rcode: dns.RcodeRefused}},
	} {
		if got := lifetime(m, c); got != want {
			t.Errorf("%v is remembered for %s, want %s", m, got, want)
		}
	}
}

// An answer that is cut short is asked for by TCP.
func TestTruncatedAnswersAreAskedForByTCP(t *testing.T) {
	f := serverOnLoopback(t, func(q *dns.Msg, from net.Addr) []*dns.Msg {
		if from.Network() == "udp" {
			return []*dns.Msg{says(q, "203.0.113.66", func(m *dns.Msg) { m.Truncated = true })}
		}
		return []*dns.Msg{says(q, "192.0.2.1")}
	})
	if a, err := f.ask(questionOf(asks("www.example.")), aPod); err != nil || answerOf(messageOf(a)) != "192.0.2.1" {
		t.Errorf("%v, %v", messageOf(a), err)
	}
}

// The node's servers are those of its file as it is now, each as it was known.
func TestResolverConfigurationChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(servers ...string) []string {
		if err := os.WriteFile(file, []byte("nameserver "+strings.Join(servers, "\nnameserver ")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return resolvServers(file, []netip.AddrPort{netip.MustParseAddrPort("10.42.0.1:53")})
	}
	f := forwarderTo(t, "forward . /etc/resolv.conf")
	f.setUpstreams(write("192.0.2.1", "10.42.0.1", "not-an-address", "192.0.2.2"))
	was := *f.upstreams.Load()
	if len(was) != 2 || was[1].Address != "192.0.2.2:53" {
		t.Fatalf("%v", was)
	}
	f.setUpstreams(write("192.0.2.2", "fd00::53"))
	is := *f.upstreams.Load()
	if len(is) != 2 || is[0] != was[1] || is[1].Address != "[fd00::53]:53" {
		t.Errorf("%v", is)
	}
	if got := write("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"); len(got) != maxResolvConf {
		t.Errorf("%v", got)
	}
}
