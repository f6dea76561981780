package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/ipv4"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/test/bench/rig"
)

const (
	// dnsNames is how many names of each kind are asked for, one after the other.
	dnsNames = 100
	// dnsEndpoints is how many a headless Service has.
	dnsEndpoints = 10
	// dnsSockets ask as fast as answers come, each with so many questions on their way.
	dnsSockets, dnsWindow = 4, 8
	// dnsTime is how long a part of a measurement lasts, of which there are dnsParts.
	dnsTime, dnsParts = time.Second, 4
	// dnsPace is the time between two questions when their answers are timed.
	dnsPace = time.Millisecond
)

// A dnsKind is what is asked for: a question by its number, and what it is answered with.
type dnsKind struct {
	what    string
	name    func(i int) string
	answers int // 0: there is no such name
}

var dnsKinds = []dnsKind{
	{"a Service", func(i int) string { return fmt.Sprintf("service-%d.%s.svc.cluster.local.", i, namespace) }, 1},
	{"a headless Service of 10 endpoints", func(i int) string { return fmt.Sprintf("headless-%d.%s.svc.cluster.local.", i, namespace) }, dnsEndpoints},
	{"a name of elsewhere", elsewhere, 1},
	{"a name that the search list makes", func(i int) string { return elsewhere(i) + namespace + ".svc.cluster.local." }, 0},
}

func elsewhere(i int) string { return fmt.Sprintf("host-%d.example.com.", i) }

var dnsLines = func() (lines []line) {
	for _, k := range dnsKinds {
		lines = append(lines, line{k.line("queries"), "/s", true, 3}, line{k.line("server CPU per query"), "µs", false, 3},
			line{k.line("answer at 1,000/s, p50"), "µs", false, 0}, line{k.line("answer at 1,000/s, p99"), "µs", false, 0})
	}
	return append(lines, line{"memory of the DNS server", "MB", false, 0})
}()

func (k *dnsKind) line(what string) string { return k.what + ": " + what }

// runDNS measures a DNS server alone, each side's against knarr's API server.
func runDNS(ctx context.Context, r *run) error {
	c, err := rig.ControlPlane(ctx, r.e.programs, filepath.Join(r.e.dir, string(r.side)), true)
	if err != nil {
		return err
	}
	defer c.Stop()
	client, err := c.Client()
	if err != nil {
		return err
	}
	if err := errors.Join(prepare(ctx, client), dnsServices(ctx, client)); err != nil {
		return err
	}
	other := map[side]string{knarr: "127.0.0.2", upstream: "127.0.0.3"}[r.side]
	stop, err := answerElsewhere(other)
	if err != nil {
		return err
	}
	defer stop()
	programs, own := r.programs()
	address, server, err := c.StartDNS(programs, own, other)
	if err != nil {
		return err
	}
	for i := range dnsKinds {
		if err := r.dnsKind(ctx, c, server, address, &dnsKinds[i]); err != nil {
			return fmt.Errorf("%s: %w", dnsKinds[i].what, err)
		}
	}
	now, _, err := rig.Memory(server.Pid())
	if err != nil {
		return err
	}
	r.put("memory of the DNS server", float64(now)/1e6)
	return c.Alive()
}

// dnsServices makes those that are asked for.
func dnsServices(ctx context.Context, client kubernetes.Interface) error {
	_, _, err := each(ctx, clients, dnsNames, func(ctx context.Context, i int) error {
		for _, s := range []struct{ name, ip string }{{fmt.Sprint("service-", i), ""}, {fmt.Sprint("headless-", i), corev1.ClusterIPNone}} {
			if _, err := client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.name},
				Spec: corev1.ServiceSpec{ClusterIP: s.ip, Ports: []corev1.ServicePort{{Name: "p", Port: 80}}}}, metav1.CreateOptions{}); err != nil {
				return err
			}
			port, name, ready := int32(80), "p", true
			slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{discoveryv1.LabelServiceName: s.name}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}}
			for e := range dnsEndpoints {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.164.%d.%d", i, e+1)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
			}
			if _, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// answerElsewhere is the server of all other names.
func answerElsewhere(address string) (stop func(), err error) {
	l, err := net.ListenPacket("udp", net.JoinHostPort(address, "53"))
	if err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			if answer, err := elsewhereAnswer(b[:n]); err == nil {
				_, _ = l.WriteTo(answer, from)
			}
		}
	}()
	return func() { _ = l.Close() }, nil
}

func elsewhereAnswer(question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 3600}, Body: &dnsmessage.AResource{A: netip.MustParseAddr("192.0.2.1").As4()}}}
	}
	return m.Pack()
}

// A dnsClient asks for the names of a kind by one socket.
type dnsClient struct {
	net.Conn
	kind    *dnsKind
	queries [][]byte
	buffer  []byte
}

func dialDNS(address string, k *dnsKind) (*dnsClient, error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return nil, err
	}
	c := &dnsClient{Conn: conn, kind: k, buffer: make([]byte, 4096)}
	for i := range dnsNames {
		name, err := dnsmessage.NewName(k.name(i))
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: uint16(i), RecursionDesired: true},
			Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		b, err := m.Pack()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		c.queries = append(c.queries, b)
	}
	return c, nil
}

func (c *dnsClient) ask(i int) error {
	_, err := c.Write(c.queries[i%dnsNames])
	return err
}

// answer reads one, which must be what the kind is answered with.
func (c *dnsClient) answer() error {
	n, err := c.Read(c.buffer)
	if err != nil {
		return err
	}
	return c.kind.check(c.buffer[:n])
}

// check wants an answer to be what the kind is answered with.
func (k *dnsKind) check(answer []byte) error {
	rcode := dnsmessage.RCodeSuccess
	if k.answers == 0 {
		rcode = dnsmessage.RCodeNameError
	}
	const header = 12
	if len(answer) < header || dnsmessage.RCode(answer[3]&0xf) != rcode || int(binary.BigEndian.Uint16(answer[6:])) != k.answers {
		return fmt.Errorf("answer of %d bytes that begins with % x; want %s with %d records", len(answer), answer[:min(len(answer), header)], rcode, k.answers)
	}
	return nil
}

// dnsKind measures one kind. Before, each name is asked for until it is answered right.
func (r *run) dnsKind(ctx context.Context, c *rig.Cluster, server *rig.Process, address string, k *dnsKind) error {
	all := make([]*dnsClient, dnsSockets)
	for i := range all {
		var err error
		if all[i], err = dialDNS(address, k); err != nil {
			return err
		}
		defer all[i].Close()
	}
	for i, end := 0, time.Now().Add(30*time.Second); i < dnsNames; {
		_ = all[0].SetDeadline(time.Now().Add(time.Second))
		if err := errors.Join(all[0].ask(i), all[0].answer()); err == nil {
			i++
		} else if dead := server.Ended(); dead != nil || time.Now().After(end) || ctx.Err() != nil {
			return errors.Join(err, dead, ctx.Err())
		} else {
			time.Sleep(10 * time.Millisecond)
		}
	}
	var queries int
	var took, cpu time.Duration
	var answers []time.Duration
	for range dnsParts {
		if err := errors.Join(c.Rest(ctx), r.pass(ctx)); err != nil {
			return err
		}
		before, err := rig.CPU(server.Pid())
		if err != nil {
			return err
		}
		began := time.Now()
		n, err := asFastAsAnswered(all, dnsTime)
		if err != nil {
			return err
		}
		took += time.Since(began)
		after, err := rig.CPU(server.Pid())
		if err != nil {
			return err
		}
		queries, cpu = queries+n, cpu+after-before
		paced, err := all[0].paced(dnsTime)
		if err != nil {
			return err
		}
		answers = append(answers, paced...)
	}
	r.put(k.line("queries"), float64(queries)/took.Seconds())
	r.put(k.line("server CPU per query"), float64(cpu.Nanoseconds())/1e3/float64(queries))
	r.put(k.line("answer at 1,000/s, p50"), 1e3*quantile(answers, 0.5))
	r.put(k.line("answer at 1,000/s, p99"), 1e3*quantile(answers, 0.99))
	return server.Ended()
}

// asFastAsAnswered keeps each socket's questions on their way for so long, and counts the
// answers. One that is lost is an error.
func asFastAsAnswered(all []*dnsClient, d time.Duration) (total int, err error) {
	counts, errs := make([]int, len(all)), make([]error, len(all))
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { counts[i], errs[i] = c.flood(end) })
	}
	wg.Wait()
	for _, n := range counts {
		total += n
	}
	return total, errors.Join(errs...)
}

// flood keeps dnsWindow questions on their way until end. It sends and reads as many by one
// system call as there are, so that the processors are the server's and not this client's.
func (c *dnsClient) flood(end time.Time) (answered int, err error) {
	if err := c.SetDeadline(end.Add(5 * time.Second)); err != nil {
		return 0, err
	}
	socket := ipv4.NewPacketConn(c.Conn.(*net.UDPConn))
	out, in := make([]ipv4.Message, dnsWindow), make([]ipv4.Message, dnsWindow)
	for i := range in {
		in[i].Buffers = [][]byte{make([]byte, 4096)}
	}
	for sent := 0; ; {
		for free := dnsWindow - (sent - answered); free > 0 && time.Now().Before(end); {
			for i := range free {
				out[i].Buffers = [][]byte{c.queries[(sent+i)%dnsNames]}
			}
			n, err := socket.WriteBatch(out[:free], 0)
			if err != nil {
				return answered, err
			}
			sent, free = sent+n, free-n
		}
		if answered == sent {
			return answered, nil
		}
		n, err := socket.ReadBatch(in, 0)
		if err != nil {
			return answered, err
		}
		for _, m := range in[:n] {
			if err := c.kind.check(m.Buffers[0][:m.N]); err != nil {
				return answered, err
			}
		}
		answered += n
	}
}

// paced asks one after the other, at a steady pace, and says how long each answer took.
func (c *dnsClient) paced(d time.Duration) (took []time.Duration, err error) {
	next := time.Now()
	end := next.Add(d)
	_ = c.SetDeadline(end.Add(5 * time.Second))
	for i := 0; next.Before(end); i, next = i+1, next.Add(dnsPace) {
		time.Sleep(time.Until(next))
		began := time.Now()
		if err := errors.Join(c.ask(i), c.answer()); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
