package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/client-go/rest"

	"knarr/addons/dns/corefile"
)

// serverOnLoopback is a server of the node's on loopback, UDP and TCP, that answers as
// told, with as many messages as are returned.
func serverOnLoopback(t testing.TB, answer func(q *dns.Msg, from net.Addr) []*dns.Msg) *forwarder {
	t.Helper()
	var packets net.PacketConn
	var stream net.Listener
	for try := 0; stream == nil; try++ { // until a port is free for both
		var err error
		if packets, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if stream, err = net.Listen("tcp", packets.LocalAddr().String()); err != nil {
			packets.Close()
			if stream = nil; try == 20 {
				t.Fatal(err)
			}
		}
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		for _, m := range answer(q, w.RemoteAddr()) {
			_ = w.WriteMsg(m)
		}
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: stream, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return forwarderTo(t, "forward . "+packets.LocalAddr().String()+"\ncache 30 {\nservfail 0s\n}")
}

// forwarderTo is the first one of a server block with these directives.
func forwarderTo(t testing.TB, directives string) *forwarder {
	t.Helper()
	s := configured(t, ". {\n"+directives+"\n}\n")
	return s.plan.Load().forwards[0]
}

// configured is a server with this configuration, which is not run.
func configured(t testing.TB, text string) *Server {
	t.Helper()
	s, err := New(Config{Kube: &rest.Config{Host: "127.0.0.1:1"}, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, ResolvConf: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	servers, problems, err := s.read(corefile.Files{corefileName: text})
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	s.use(servers)
	t.Cleanup(s.plan.Load().close)
	return s
}

// messageOf is an answer as clients read it.
func messageOf(a *stored) *dns.Msg {
	m := new(dns.Msg)
	if a == nil || m.Unpack(a.wire) != nil {
		return nil
	}
	return m
}

var aPod, anotherPod = netip.MustParseAddr("10.42.0.5"), netip.MustParseAddr("10.42.0.6")

func asks(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }

func questionOf(q *dns.Msg) question {
	key := question{qtype: q.Question[0].Qtype, class: q.Question[0].Qclass, cd: q.CheckingDisabled}
	if o := q.IsEdns0(); o != nil {
		key.edns, key.do = true, o.Do()
	}
	key, _ = named(key, q.Question[0].Name)
	return key
}

func says(q *dns.Msg, addr string, edit ...func(*dns.Msg)) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(addr)}}
	for _, e := range edit {
		e(m)
	}
	return m
}

func answerOf(m *dns.Msg) string {
	if m == nil || len(m.Answer) == 0 {
		return "nothing"
	}
	return strings.TrimPrefix(m.Answer[0].String(), m.Answer[0].Header().String())
}

// What is not the answer to the question that was asked is not heard.
func TestAnswersAreThoseToTheQuestion(t *testing.T) {
	for name, forge := range map[string]func(*dns.Msg){
		"id":       func(m *dns.Msg) { m.Id++ },
		"name":     func(m *dns.Msg) { m.Question[0].Name = "other.example." },
		"type":     func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA },
		"class":    func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		"question": func(m *dns.Msg) { m.Response = false },
		"none":     func(m *dns.Msg) { m.Question = nil },
		"opcode":   func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify },
	} {
		t.Run(name, func(t *testing.T) {
			f := serverOnLoopback(t, func(q *dns.Msg, from net.Addr) []*dns.Msg {
				if from.Network() == "tcp" {
					return []*dns.Msg{says(q, "192.0.2.1")}
				}
				return []*dns.Msg{says(q, "203.0.113.66", forge), says(q, "192.0.2.1")}
			})
			for _, what := range []string{"asked", "remembered"} {
				if m, err := f.ask(questionOf(asks("www.example.")), aPod); err != nil || answerOf(messageOf(m)) != "192.0.2.1" {
					t.Errorf("%s: %s, %v, want 192.0.2.1", what, answerOf(messageOf(m)), err)
				}
			}
		})
	}
}

// Neither the id nor the port by which a server is asked follows from what the
// client sent.
func TestServersAreAskedAnew(t *testing.T) {
	ids, ports := map[uint16]bool{}, map[string]bool{}
	options := 0
	var mu sync.Mutex
	f := serverOnLoopback(t, func(q *dns.Msg, from net.Addr) []*dns.Msg {
		mu.Lock()
		defer mu.Unlock()
		ids[q.Id], ports[from.String()] = true, true
		if o := q.IsEdns0(); o != nil {
			options += len(o.Option)
		}
		return []*dns.Msg{says(q, "192.0.2.1", func(m *dns.Msg) { m.Answer[0].Header().Ttl = 0 })}
	})
	for range 8 {
		q := asks("www.example.")
		q.Id = 4711
		q.SetEdns0(4096, false)
		q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("the client's own")}}
		if _, err := f.ask(questionOf(q), aPod); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ids) < 7 || ids[4711] && len(ids) == 1 || len(ports) < 7 || options > 0 {
		t.Errorf("eight questions were asked with the ids %v, from %v, with %d of the client's options", ids, ports, options)
	}
}

// One client that asks a server that does not answer leaves places to others,
// and others that ask the same wait for the same answer.
func TestOneClientLeavesPlaces(t *testing.T) {
	answer, asked := make(chan struct{}), map[string]int{}
	var mu sync.Mutex
	f := serverOnLoopback(t, func(q *dns.Msg, _ net.Addr) []*dns.Msg {
		mu.Lock()
		asked[q.Question[0].Name]++
		mu.Unlock()
		if strings.HasPrefix(q.Question[0].Name, "slow") {
			<-answer
		}
		return []*dns.Msg{says(q, "192.0.2.1")}
	})
	var wg sync.WaitGroup
	refused := 0
	for i := range underWay {
		// The place is taken here, so that the test knows when all are.
		if !f.limiter.take(aPod) {
			refused++
			continue
		}
		wg.Go(func() {
			defer f.limiter.release(aPod)
			if i < 2 {
				_, _ = f.ask(questionOf(asks("slow.example.")), anotherPod)
			}
			<-answer
		})
	}
	if refused == 0 {
		t.Errorf("one client has all %d places", underWay)
	}
	if m, err := f.ask(questionOf(asks("quick.example.")), netip.MustParseAddr("10.42.0.7")); err != nil || answerOf(messageOf(m)) != "192.0.2.1" {
		t.Errorf("another client: %s, %v", answerOf(messageOf(m)), err)
	}
	close(answer)
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	if n := asked["slow.example."]; n > 1 {
		t.Errorf("the server was asked the same %d times at once", n)
	}
	if f.limiter.free != underWay || len(f.limiter.inUse) > 0 {
		t.Errorf("%d places are free, %v are taken", f.limiter.free, f.limiter.inUse)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	f := forwarderTo(t, "forward . 192.0.2.53\ncache 30")
	p, now := &f.memory.parts[0], time.Now()
	add := func(i int, ttl uint32, size int) question {
		q := asks(fmt.Sprintf("n%d.example.", i))
		m := says(q, "192.0.2.1", func(m *dns.Msg) {
			m.Answer[0].Header().Ttl = ttl
			for size > 0 {
				n := min(size, 255)
				m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: ttl}, Txt: []string{strings.Repeat("x", n)}})
				size -= n
			}
		})
		a, err := f.keep(questionOf(q), m)
		if err != nil {
			t.Fatal(err)
		}
		f.remember(p, questionOf(q), a)
		return questionOf(q)
	}
	popular := add(-1, 3600, 0)
	p.recall(popular).hit(now)
	most := 0
	for i := range 5000 {
		before := len(p.answers)
		add(i, 3600, 1000)
		if p.bytes > p.most {
			t.Fatalf("%d bytes are remembered", p.bytes)
		}
		if most = max(most, len(p.answers)); len(p.answers) < before-3 {
			t.Fatalf("one more answer gives up %d", before-len(p.answers))
		}
	}
	if most < 100 || f.memory.parts[0].most*len(f.memory.parts) > memoryBytes {
		t.Errorf("%d answers are remembered, in %d bytes", most, f.memory.parts[0].most)
	}
	if p.recall(popular) == nil {
		t.Error("a flood of names makes room of an answer that is asked for")
	}
	sum := 0
	for k, r := range p.answers {
		sum += cost(k, r)
	}
	if sum != p.bytes {
		t.Errorf("%d bytes are counted as %d", sum, p.bytes)
	}
	for name, key := range map[string]question{"large": add(6000, 3600, 5000), "without a lifetime": add(6001, 0, 0)} {
		if p.recall(key) != nil {
			t.Errorf("an answer that is %s is remembered", name)
		}
	}
	a := p.recall(add(6002, 1<<31-1, 0))
	if a == nil || a.valid(time.Now().Add(31*time.Second)) {
		t.Fatal("an answer is remembered for more than 30 s")
	}
	q := query{message: make([]byte, headerSize), name: a.wire[headerSize:headerSize], size: dns.MaxMsgSize}
	out, ok := a.appendTo(nil, &q, now)
	m := new(dns.Msg)
	if !ok || m.Unpack(out) != nil || m.Answer[0].Header().Ttl > 31 {
		t.Errorf("a long lifetime is given as %v", m)
	}
}

// A panic in an answer ends that answer alone.
func TestHandlerRecovers(t *testing.T) {
	s := &Server{} // without records
	a := &answered{local: &net.UDPAddr{}}
	s.metrics = newMetrics()
	s.ServeDNS(a, asks("x."))
	if a.msg == nil || a.msg.Rcode != dns.RcodeServerFailure {
		t.Errorf("answered with %v", a.msg)
	}
}
