package announcer

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/addons/loadbalancer/addresspool"
	"knarr/internal/apitest"
	"knarr/internal/need"
)

// A site is a network namespace on the test's network.
type site struct {
	file *os.File
	mac  net.HardwareAddr
}

// do runs f there, on a thread that dies with it.
func (s site) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func newSpace(t *testing.T) site {
	t.Helper()
	made := make(chan *os.File, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			t.Error(err)
		}
		made <- f
	}()
	f := <-made
	t.Cleanup(func() { f.Close() })
	return site{file: f}
}

// link is each machine's on the network: a name that this process' own namespace has not,
// where a library would look its number up.
const link = "lan0"

// network makes a bridge in a namespace of its own, and one namespace for each of the
// machines, with an address of each family.
func network(t *testing.T, machines ...string) map[string]site {
	t.Helper()
	middle := newSpace(t)
	sites := map[string]site{}
	err := middle.do(func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}, MulticastSnooping: new(false)}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(br); err != nil {
			return err
		}
		for i, name := range machines {
			s := newSpace(t)
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v" + strconv.Itoa(i), MasterIndex: br.Index}, PeerName: link, PeerNamespace: netlink.NsFd(s.file.Fd())}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(veth); err != nil {
				return err
			}
			if err := s.do(func() error {
				l, err := netlink.LinkByName(link)
				if err != nil {
					return err
				}
				s.mac = l.Attrs().HardwareAddr
				for _, text := range []string{fmt.Sprintf("192.0.2.%d/24", 101+i), fmt.Sprintf("2001:db8::%d/64", 101+i)} {
					a, err := netlink.ParseAddr(text)
					if err != nil {
						return err
					}
					a.Flags = unix.IFA_F_NODAD
					if err := netlink.AddrAdd(l, a); err != nil {
						return err
					}
				}
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_dad", []byte("0"), 0o644); err != nil {
					return err
				}
				return netlink.LinkSetUp(l)
			}); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			sites[name] = s
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sites
}

// neighbour is who a machine takes for an address's owner, after it sent something there.
func (s site) neighbour(address string) (mac string, err error) {
	err = s.do(func() error {
		c, err := net.Dial("udp", net.JoinHostPort(address, "9"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = c.Write([]byte("?")) // there may be nobody
		all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, n := range all {
			if n.IP.Equal(net.ParseIP(address)) && n.State&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE) != 0 {
				mac = n.HardwareAddr.String()
			}
		}
		return err
	})
	return mac, err
}

// A rig is two nodes and a client on one network, with an API server.
type rig struct {
	t        *testing.T
	sites    map[string]site
	client   kubernetes.Interface
	kubelets map[string]*httptest.Server
	stop     map[string]func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, sites: network(t, "n1", "n2", "client"), kubelets: map[string]*httptest.Server{}, stop: map[string]func(){}}
	api, _ := apitest.New(t)
	r.client = api.Client(t)
	ctx := t.Context()
	if err := addresspool.Define(ctx, api.Config()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2"} {
		r.kubelets[name] = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
		t.Cleanup(r.kubelets[name].Close)
		addNode(t, r.client, name, r.kubelets[name].Listener.Addr().(*net.TCPAddr))
		a, err := New(Config{Kube: api.Config(), NodeName: name, space: r.sites[name].do})
		if err != nil {
			t.Fatal(err)
		}
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- a.Run(running) }()
		r.stop[name] = func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	const pool = `{"apiVersion":"knarr.io/v1alpha1","kind":"AddressPool","metadata":{"name":"p"},"spec":{"addresses":["192.0.2.0/28","2001:db8::1-2001:db8::9"]}}`
	r.until("the kind is served, and has its pool", func() (string, bool) {
		b, err := r.client.CoreV1().RESTClient().Post().AbsPath("/apis/knarr.io/v1alpha1/addresspools").SetHeader("Content-Type", "application/json").Body([]byte(pool)).Do(ctx).Raw()
		return fmt.Sprint(err, " ", string(b)), err == nil
	})
	return r
}

// give gives a Service these addresses.
func (r *rig) give(svc *corev1.Service, addresses ...string) *corev1.Service {
	r.t.Helper()
	svc.Status.LoadBalancer.Ingress = nil
	for _, a := range addresses {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	svc, err := r.client.CoreV1().Services("default").UpdateStatus(r.t.Context(), svc, metav1.UpdateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return svc
}

func (r *rig) until(what string, ok func() (string, bool)) {
	r.t.Helper()
	got, fits := "", false
	for range 400 {
		if got, fits = ok(); fits {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	r.t.Fatalf("%s: %s", what, got)
}

func (r *rig) holder(address string) string {
	l, err := r.client.CoordinationV1().Leases(Namespace).Get(r.t.Context(), LeaseName(netip.MustParseAddr(address)), metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return holderOf(l)
}

// answers waits until the client takes a node for an address' owner.
func (r *rig) answers(address, name string) {
	r.t.Helper()
	r.until(address+" is at "+name, func() (string, bool) {
		mac, err := r.sites["client"].neighbour(address)
		return fmt.Sprint(mac, " ", err), mac == r.sites[name].mac.String()
	})
}

// Two nodes answer for addresses of a pool, one for each; when that one dies the other
// does, and the client learns of it without asking. Addresses are on no link.
func TestAnnounce(t *testing.T) {
	need.Root(t)
	r := newRig(t)
	svc, err := r.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses := []string{"192.0.2.3", "2001:db8::3"}
	svc = r.give(svc, addresses...)
	at := map[string]string{}
	for _, a := range addresses {
		r.until("a holder of "+a, func() (string, bool) { at[a] = r.holder(a); return at[a], at[a] != "" })
		r.answers(a, at[a])
	}
	// The holder of the first dies, without a word.
	first := at[addresses[0]]
	other := map[string]string{"n1": "n2", "n2": "n1"}[first]
	if err := r.sites[first].do(func() error { return setDown(link) }); err != nil {
		t.Fatal(err)
	}
	r.kubelets[first].Close()
	died := time.Now()
	r.answers(addresses[0], other)
	t.Logf("the client has the other node's address after %v", time.Since(died).Round(10*time.Millisecond))
	r.stop[first]()
	for _, a := range addresses {
		r.until(a+" has moved", func() (string, bool) { h := r.holder(a); return h, h == other })
		r.answers(a, other)
	}
	// Somebody else answers for it: the holder says again that it is there.
	thief := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	if err := r.sites["client"].do(func() error { return claim(addresses[0], thief) }); err != nil {
		t.Fatal(err)
	}
	r.answers(addresses[0], other)
	// Without the Service nobody answers.
	r.give(svc)
	r.until("nobody answers", func() (string, bool) {
		var mac string
		err := r.sites["client"].do(func() error { return forget(addresses[0]) })
		if err == nil {
			mac, err = r.sites["client"].neighbour(addresses[0])
		}
		return fmt.Sprint(mac, " ", err), mac == ""
	})
	r.stop[other]()
	for name, s := range r.sites {
		if err := s.do(func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			all, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if len(all) > 1 {
				t.Errorf("%s has %v", name, all)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

func addNode(t *testing.T, client kubernetes.Interface, name string, kubelet *net.TCPAddr) {
	t.Helper()
	n, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err == nil {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: kubelet.IP.String()}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Port)
		_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func setDown(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(l)
}

// forget removes what this machine knows of an address.
func forget(address string) error {
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	for i := range all {
		if all[i].IP.String() == address {
			_ = netlink.NeighDel(&all[i]) // it may have gone by itself
		}
	}
	return err
}

// claim says, as a thief would, that an address is here.
func claim(address string, mac net.HardwareAddr) error {
	ifi, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	ifi.HardwareAddr = mac
	r, err := openARP(ifi, make(chan netip.Addr, 1))
	if err != nil {
		return err
	}
	defer r.close()
	return r.announce(netip.MustParseAddr(address))
}
