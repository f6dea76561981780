package mode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/apitest"
	"knarr/internal/need"
	"knarr/internal/sctptest"
	"knarr/node/kubeproxy"
)

// What every mode must do with a Service: the same table for all. The real proxy runs
// on a real API server, in a network namespace with a client outside, a pod on this
// node, and one on another.
//
// The test runs itself once for each mode in a process whose every thread is in that
// namespace.
func TestBehaviour(t *testing.T) {
	need.Root(t)
	if name := os.Getenv("KNARR_PROXY_MODE"); name != "" {
		behaviour(t, name)
		return
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			able(t, m.name)
			c := exec.Command("/proc/self/exe", "-test.run=^TestBehaviour$", "-test.v", "-test.timeout=4m")
			c.Env = append(os.Environ(), "KNARR_PROXY_MODE="+m.name)
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			out, err := c.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// The addresses of the picture.
const (
	nodeOut, client = "198.51.100.1", "198.51.100.9" // towards the client outside
	podHere         = "10.42.0.5"
	podThere        = "10.42.7.5"
)

// A rig is the picture, and the proxy in it.
type rig struct {
	t      *testing.T
	mode   string
	api    kubernetes.Interface
	spaces map[string]func(func()) // by who is in them
	stop   func()
	start  func()
}

// An answer of an endpoint is its name and the client's address as it saw it.
type answer struct{ endpoint, client string }

// What is asked for: connections from somewhere to an address, and which endpoints
// answer. exact is how the client appears, if a mode keeps it.
type question struct {
	from, protocol, to string
	endpoints          []string // none: no answer at all
	refused            bool     // and with an error at once
	client             string
}

func behaviour(t *testing.T, name string) {
	r := newRig(t, name)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if why := c.except[name]; why != "" {
				t.Skip(why)
			}
			r := *r
			r.t = t
			if c.sctp {
				r.serveSCTP()
			}
			svc := c.service()
			r.serve(svc, c.endpoints)
			for _, q := range c.asked {
				r.ask(q, c.client[name])
			}
			if c.then != nil {
				c.then(&r, svc)
			}
			r.remove(svc)
		})
	}
	t.Run("nothing stays", func(t *testing.T) {
		r.stop()
		if err := Remove("knarr-test"); err != nil {
			t.Fatal(err)
		}
		leftovers(t)
	})
}

// A testCase is a Service, its endpoints and its clients.
type testCase struct {
	name      string
	service   func() *corev1.Service
	endpoints []discoveryv1.Endpoint
	asked     []question
	then      func(*rig, *corev1.Service)
	sctp      bool // endpoints answer by SCTP too
	// except says why a mode does not do this, client that one shows another client.
	except map[string]string
	client map[string]string
}

func service(change ...func(*corev1.ServiceSpec)) func() *corev1.Service {
	return func() *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
			Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.7", Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
			}},
		}
		for _, c := range change {
			c(&s.Spec)
		}
		if s.Spec.Type == "" {
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].NodePort = 0
			}
		}
		return s
	}
}

func endpoint(addr, node string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: new(true), Terminating: new(!ready)}}
}

var both = []discoveryv1.Endpoint{endpoint(podHere, "n1", true), endpoint(podThere, "n2", true)}

// sctp is a port beside that of TCP, of the same numbers.
func sctp(s *corev1.ServiceSpec) {
	s.Ports = append(s.Ports, corev1.ServicePort{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 80, NodePort: 30080})
}

func nodePort(s *corev1.ServiceSpec)     { s.Type = corev1.ServiceTypeNodePort }
func loadBalancer(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }
func local(s *corev1.ServiceSpec)        { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
func internalLocal(s *corev1.ServiceSpec) {
	s.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func newRig(t *testing.T, name string) *rig {
	r := &rig{t: t, mode: name, spaces: map[string]func(func()){"node": func(f func()) { f() }}}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil { // this namespace's
		t.Fatal(err)
	}
	r.spaces["client"] = attach(t, "out", nodeOut+"/24", client+"/24")
	r.spaces["here"] = attach(t, "pod", "10.42.0.1/24", podHere+"/24")
	r.spaces["there"] = attach(t, "far", "10.42.7.1/24", podThere+"/24")
	if err := netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP(client)}); err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct{ space, addr string }{{"here", podHere}, {"there", podThere}} {
		r.spaces[who.space](func() { echo(t, who.addr+":8080", who.space); echo(t, who.addr+":8081", who.space+"-second") })
	}
	api, _ := apitest.New(t)
	r.api = api.Client(t)
	ctx := context.Background()
	node, err := r.api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err == nil {
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeOut}}
		_, err = r.api.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = r.api.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "services"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.43.0.0/16"}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.start = func() {
		cluster := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
		dp, err := Open(name, "", Config{Table: "knarr-test", ClusterCIDRs: cluster})
		if err != nil {
			t.Fatal(err)
		}
		p, err := kubeproxy.New(kubeproxy.Config{Kube: api.Config(), NodeName: "n1", ClusterCIDRs: cluster, Table: "knarr-test", Dataplane: dp, Mode: name, Metrics: metricsAt})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		r.stop = func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	r.start()
	return r
}

// attach makes a namespace beside this one, with one address at its end of a link and
// the other as its gateway. What it returns runs functions there.
func attach(t *testing.T, name, gateway, addr string) func(func()) {
	t.Helper()
	space := make(chan *os.File, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with its goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			t.Error(err)
		}
		space <- f
	}()
	f := <-space
	t.Cleanup(func() { f.Close() })
	in := func(do func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			do()
		}()
		<-done
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd())}); err != nil {
		t.Fatal(err)
	}
	up(t, name, gateway)
	in(func() {
		up(t, "eth0", addr)
		gw, _, err := net.ParseCIDR(gateway)
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: gw})
		}
		if err != nil {
			t.Error(err)
		}
	})
	return in
}

func up(t *testing.T, link, addr string) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err == nil {
		var a *netlink.Addr
		if a, err = netlink.ParseAddr(addr); err == nil {
			err = netlink.AddrAdd(l, a)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// echo answers by TCP and UDP with its name and the client's address.
func echo(t *testing.T, addr, name string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	go greet(l, name)
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(greeting(name, from), from)
		}
	}()
}

// greet answers each connection with a name and the client's address.
func greet(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(greeting(name, c.RemoteAddr()))
		c.Close()
	}
}

func greeting(name string, from net.Addr) []byte {
	host, _, _ := net.SplitHostPort(from.String())
	return []byte(name + " " + host)
}

// serveSCTP has the pods answer by SCTP while the test lasts.
func (r *rig) serveSCTP() {
	sctptest.Need(r.t)
	for space, addr := range map[string]string{"here": podHere, "there": podThere} {
		r.spaces[space](func() {
			l, err := sctptest.Listen(addr + ":8080")
			if err != nil {
				r.t.Error(err)
				return
			}
			r.t.Cleanup(func() { l.Close() })
			go greet(l, space)
		})
	}
}

// serve makes a Service and its endpoints.
func (r *rig) serve(svc *corev1.Service, eps []discoveryv1.Endpoint) {
	r.t.Helper()
	ctx := context.Background()
	made, err := r.api.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
	if err == nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		made.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}
		_, err = r.api.CoreV1().Services("default").UpdateStatus(ctx, made, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = r.api.DiscoveryV1().EndpointSlices("default").Create(ctx, slice(eps), metav1.CreateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func slice(eps []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: eps,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))},
			{Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(8080))},
			{Name: new("sctp"), Protocol: new(corev1.ProtocolSCTP), Port: new(int32(8080))},
		},
	}
}

// move gives the Service other endpoints.
func (r *rig) move(eps ...discoveryv1.Endpoint) {
	r.t.Helper()
	r.change(func(s *discoveryv1.EndpointSlice) { s.Endpoints = eps })
}

// change changes the Service's slice.
func (r *rig) change(do func(*discoveryv1.EndpointSlice)) {
	r.t.Helper()
	ctx := context.Background()
	s, err := r.api.DiscoveryV1().EndpointSlices("default").Get(ctx, "web-1", metav1.GetOptions{})
	if err == nil {
		do(s)
		_, err = r.api.DiscoveryV1().EndpointSlices("default").Update(ctx, s, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(svc *corev1.Service) {
	r.t.Helper()
	ctx := context.Background()
	err := errors.Join(
		r.api.CoreV1().Services("default").Delete(ctx, svc.Name, metav1.DeleteOptions{}),
		r.api.DiscoveryV1().EndpointSlices("default").Delete(ctx, "web-1", metav1.DeleteOptions{}))
	if err != nil {
		r.t.Fatal(err)
	}
	r.ask(question{from: "here", to: svc.Spec.ClusterIP + ":80"}, "")
}

// ask tries until the answers are those that are wanted.
func (r *rig) ask(q question, shown string) {
	r.t.Helper()
	if q.protocol == "" {
		q.protocol = "tcp"
	}
	if shown != "" && q.client != "" {
		q.client = shown
	}
	var got map[answer]int
	var err error
	for range 40 {
		r.spaces[q.from](func() { got, err = connect(q) })
		if q.fits(got, err) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.t.Errorf("%s asks %s %s: %v, %v; want %q, refused %t, client %q", q.from, q.protocol, q.to, got, err, q.endpoints, q.refused, q.client)
}

func (q question) fits(got map[answer]int, err error) bool {
	if len(q.endpoints) == 0 {
		return len(got) == 0 && err != nil && (!q.refused || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
	}
	if err != nil {
		return false
	}
	var seen []string
	for a := range got {
		if !slices.Contains(seen, a.endpoint) {
			seen = append(seen, a.endpoint)
		}
		if q.client != "" && a.client != q.client {
			return false
		}
	}
	slices.Sort(seen)
	return slices.Equal(seen, q.endpoints)
}

// connect asks 30 times, each time as another flow, and counts the answers.
func connect(q question) (map[answer]int, error) {
	got := map[answer]int{}
	for range 30 {
		text, err := once(q)
		if err != nil {
			return got, err
		}
		name, client, _ := strings.Cut(text, " ")
		got[answer{name, client}]++
	}
	return got, nil
}

func once(q question) (string, error) {
	dial := func(to string, wait time.Duration) (net.Conn, error) { return net.DialTimeout(q.protocol, to, wait) }
	if q.protocol == "sctp" {
		dial = sctptest.Dial
	}
	c, err := dial(q.to, 500*time.Millisecond)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return "", err
	}
	if q.protocol == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		return string(b[:n]), err
	}
	b, err := io.ReadAll(c)
	if err == nil && len(b) == 0 {
		err = syscall.ECONNRESET // it was ended without a word
	}
	return string(b), err
}
