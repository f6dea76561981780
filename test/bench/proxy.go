package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/test/bench/rig"
)

const (
	// proxyChanges is how often the endpoint changes at each size.
	proxyChanges = 100
	// programTime is how long a proxy may take for all Services.
	programTime = 10 * time.Minute
)

func proxyLines(sizes ...int) (lines []line) {
	for _, n := range sizes {
		for _, l := range proxyNames(n) {
			lines = append(lines, line{l, "ms", false, 0})
		}
		lines[len(lines)-1].unit = "MB"
	}
	return lines
}

// proxyNames are the lines at one size: cold start, changes, memory.
func proxyNames(services int) (names [5]string) {
	for i, what := range []string{"start to all reached", "first packet to a new endpoint, p50", "first packet to a new endpoint, p99", "kube-proxy CPU per change of an endpoint", "memory of kube-proxy"} {
		names[i] = fmt.Sprintf("%d Services: %s", services, what)
	}
	return names
}

// runProxy measures a kube-proxy alone with so many Services, each side's against knarr's
// API server, so that nothing else differs. The endpoints are sockets here that say which
// they are.
func runProxy(sizes ...int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		c, err := rig.ControlPlane(ctx, r.e.programs, filepath.Join(r.e.dir, string(r.side)), true) // this knarr's, whatever the other side is
		if err != nil {
			return err
		}
		defer c.Stop()
		client, err := c.Client()
		if err != nil {
			return err
		}
		if err := errors.Join(prepare(ctx, client), proxyNode(ctx, client)); err != nil {
			return err
		}
		p := &proxyBench{run: r, c: c, client: client}
		p.programs, p.own = r.programs()
		if err := p.listen(); err != nil {
			return err
		}
		defer p.close()
		defer func() { _ = c.RemoveProxy(context.WithoutCancel(ctx), p.programs, p.own) }()
		for _, n := range sizes {
			if err := p.measure(ctx, n); err != nil {
				return fmt.Errorf("%d Services: %w", n, err)
			}
		}
		return c.Alive()
	}
}

func (p *proxyBench) measure(ctx context.Context, size int) error {
	names := proxyNames(size)
	if err := errors.Join(p.c.RemoveProxy(ctx, p.programs, p.own), p.grow(ctx, p.count(size))); err != nil {
		return err
	}
	took, err := p.cold(ctx)
	if err != nil {
		return err
	}
	p.put(names[0], float64(took)/float64(time.Millisecond))
	if err := p.changes(ctx, names); err != nil {
		return err
	}
	now, _, err := rig.Memory(p.c.Proxy().Pid())
	if err != nil {
		return err
	}
	p.put(names[4], float64(now)/1e6)
	return nil
}

type proxyBench struct {
	*run
	c        *rig.Cluster
	client   kubernetes.Interface
	programs rig.Programs
	own      bool
	sockets  [2]net.Listener
	services []string // their cluster IPs
	now      int      // the socket that all endpoints are
}

// listen opens the sockets.
func (p *proxyBench) listen() error {
	for i := range p.sockets {
		l, err := net.Listen("tcp", rig.HostAddress()+":0")
		if err != nil {
			return err
		}
		p.sockets[i] = l
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte{byte('0' + i)})
				_ = conn.Close()
			}
		}()
	}
	return nil
}

func (p *proxyBench) close() {
	for _, l := range p.sockets {
		if l != nil {
			_ = l.Close()
		}
	}
}

// slice is the EndpointSlice of one Service, with one of the sockets as its endpoint.
func (p *proxyBench) slice(name string, socket int) *discoveryv1.EndpointSlice {
	port, portName, ready := int32(p.sockets[socket].Addr().(*net.TCPAddr).Port), "p", true
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{rig.HostAddress()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
}

// grow creates Services until there are n.
func (p *proxyBench) grow(ctx context.Context, n int) error {
	have := len(p.services)
	if have >= n {
		return nil
	}
	p.services = append(p.services, make([]string, n-have)...)
	_, _, err := each(ctx, clients, n-have, func(ctx context.Context, i int) error {
		i += have
		name := serviceName(i)
		s, err := p.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "p", Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		p.services[i] = net.JoinHostPort(s.Spec.ClusterIP, "80")
		_, err = p.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, p.slice(name, 0), metav1.CreateOptions{})
		return err
	})
	return err
}

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// cold starts the proxy on a kernel that holds none of its rules, and says after how long
// every Service that is asked, the first, the last and ninety-eight between, answers.
func (p *proxyBench) cold(ctx context.Context) (time.Duration, error) {
	if err := p.c.Rest(ctx); err != nil {
		return 0, err
	}
	if _, err := ask(p.services[0]); err == nil {
		return 0, errors.New("a Service is reached without a proxy")
	}
	began := time.Now()
	if err := p.c.StartProxy(p.programs, p.own); err != nil {
		return 0, err
	}
	step := max(1, (len(p.services)-1)/99)
	for i := len(p.services) - 1; i >= 0; i -= step {
		// Only the first Service's endpoint changes.
		want := 0
		if i == 0 {
			want = p.now
		}
		if err := p.until(ctx, p.services[i], want); err != nil {
			return 0, err
		}
	}
	if err := p.until(ctx, p.services[0], p.now); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// changes makes the other socket the endpoint of the first Service, again and again, and
// asks it until that one answers.
func (p *proxyBench) changes(ctx context.Context, names [5]string) error {
	if err := p.c.Rest(ctx); err != nil {
		return err
	}
	before, err := rig.CPUOfAll(p.c.Proxy().Pid())
	if err != nil {
		return err
	}
	slices := p.client.DiscoveryV1().EndpointSlices(namespace)
	_, took, err := each(ctx, 1, proxyChanges, func(ctx context.Context, _ int) error {
		p.now = 1 - p.now
		if _, err := slices.Update(ctx, p.slice(serviceName(0), p.now), metav1.UpdateOptions{}); err != nil {
			return err
		}
		return p.until(ctx, p.services[0], p.now)
	})
	if err != nil {
		return err
	}
	after, err := rig.CPUOfAll(p.c.Proxy().Pid())
	if err != nil {
		return err
	}
	p.put(names[1], quantile(took, 0.5))
	p.put(names[2], quantile(took, 0.99))
	p.put(names[3], float64((after-before).Microseconds())/1000/proxyChanges)
	return nil
}

// until asks a Service until this socket answers.
func (p *proxyBench) until(ctx context.Context, service string, socket int) error {
	end := time.Now().Add(programTime)
	for {
		got, err := ask(service)
		if err == nil && got == byte('0'+socket) {
			return nil
		}
		if dead := p.c.Alive(); dead != nil {
			return dead
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(end) {
			return fmt.Errorf("service at %s answered %q, %v; want socket %d", service, got, err, socket)
		}
		time.Sleep(time.Millisecond)
	}
}

// ask opens a new connection to a Service, and gives what says which socket it led to.
// A SYN that is lost would be sent again after a second only: another connection is.
func ask(service string) (byte, error) {
	conn, err := net.DialTimeout("tcp", service, 50*time.Millisecond)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answer := make([]byte, 1)
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	if _, err := conn.Read(answer); err != nil {
		return 0, err
	}
	return answer[0], nil
}

// proxyNode is the Node that kube-proxy wants to find its addresses in.
func proxyNode(ctx context.Context, client kubernetes.Interface) error {
	n, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: rig.NodeName}, Spec: corev1.NodeSpec{PodCIDR: "10.164.0.0/24", PodCIDRs: []string{"10.164.0.0/24"}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: rig.HostAddress()}}
	_, err = client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	return err
}
