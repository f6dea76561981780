package mode

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
	"knarr/node/kubeproxy/ipvs"
)

// able skips a mode that this machine has not got.
func able(t *testing.T, name string) {
	switch name {
	case "iptables":
		if _, err := exec.LookPath("iptables-restore"); err != nil {
			need.Skip(t, "needs iptables-restore: apt-get install iptables")
		}
	case "ipvs":
		err := ipvs.Check()
		if why := "needs a kernel with IP virtual servers: make vm: "; err != nil && os.Getenv("KNARR_GUEST") != "" {
			t.Fatal(why, err)
		} else if err != nil {
			t.Skip(why, err)
		}
	}
}

var here, everywhere = []string{"here"}, []string{"here", "there"}

var cases = []testCase{
	{
		name: "cluster address", service: service(), endpoints: both,
		asked: []question{
			{from: "here", to: "10.43.0.7:80", endpoints: everywhere},
			{from: "node", to: "10.43.0.7:80", endpoints: everywhere},
			{from: "here", protocol: "udp", to: "10.43.0.7:53", endpoints: everywhere},
			{from: "node", protocol: "udp", to: "10.43.0.7:53", endpoints: everywhere},
			{from: "here", to: "10.43.0.7:81", refused: true}, // no port of the Service
			{from: "node", to: "10.43.0.200:80"},              // no Service's address
		},
		then: func(r *rig, _ *corev1.Service) {
			r.move(endpoint(podThere, "n2", true))
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: []string{"there"}}, "")
			r.ask(question{from: "here", protocol: "udp", to: "10.43.0.7:53", endpoints: []string{"there"}}, "")
			r.move()
			r.ask(question{from: "here", to: "10.43.0.7:80", refused: true}, "")
			r.ask(question{from: "node", to: "10.43.0.7:80", refused: true}, "")
			r.move(both...)
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: everywhere}, "")
		},
	},
	{
		name: "metrics", service: service(), endpoints: both,
		asked: []question{{from: "here", to: "10.43.0.7:80", endpoints: everywhere}},
		then:  func(r *rig, _ *corev1.Service) { r.measured() },
	},
	{
		name: "a pod reaches itself", service: service(), endpoints: both[:1],
		asked: []question{{from: "here", to: "10.43.0.7:80", endpoints: here}, {from: "here", protocol: "udp", to: "10.43.0.7:53", endpoints: here}},
	},
	{
		name: "pods keep their address", service: service(), endpoints: both[1:],
		asked:  []question{{from: "here", to: "10.43.0.7:80", endpoints: []string{"there"}, client: podHere}},
		client: map[string]string{"userspace": "10.42.7.1"},
	},
	{
		name: "internal traffic policy", service: service(internalLocal), endpoints: both,
		asked: []question{{from: "here", to: "10.43.0.7:80", endpoints: here}, {from: "node", to: "10.43.0.7:80", endpoints: here}},
		then: func(r *rig, _ *corev1.Service) {
			r.move(both[1])
			r.ask(question{from: "here", to: "10.43.0.7:80"}, "")
		},
	},
	{
		name: "node port", service: service(nodePort), endpoints: both,
		asked: []question{
			{from: "client", to: nodeOut + ":30080", endpoints: everywhere},
			{from: "client", protocol: "udp", to: nodeOut + ":30053", endpoints: everywhere},
			{from: "here", to: nodeOut + ":30080", endpoints: everywhere},
			{from: "node", to: nodeOut + ":30080", endpoints: everywhere},
			{from: "node", to: "127.0.0.1:30080", refused: true},
			{from: "client", to: "10.42.0.1:30080", refused: true}, // another address of the node
		},
		then: func(r *rig, _ *corev1.Service) {
			r.move()
			r.ask(question{from: "client", to: nodeOut + ":30080", refused: true}, "")
		},
	},
	{
		name: "SCTP", service: service(nodePort, sctp), endpoints: both, sctp: true,
		except: map[string]string{"userspace": "it carries connections of TCP and UDP"},
		asked: []question{
			{from: "here", protocol: "sctp", to: "10.43.0.7:80", endpoints: everywhere},
			{from: "node", protocol: "sctp", to: "10.43.0.7:80", endpoints: everywhere},
			{from: "client", protocol: "sctp", to: nodeOut + ":30080", endpoints: everywhere},
			{from: "here", protocol: "sctp", to: nodeOut + ":30080", endpoints: everywhere},
			{from: "here", protocol: "sctp", to: "10.43.0.7:53"}, // of UDP
			{from: "here", to: "10.43.0.7:80", endpoints: everywhere},
		},
		then: func(r *rig, _ *corev1.Service) {
			r.move(both[1])
			r.ask(question{from: "here", protocol: "sctp", to: "10.43.0.7:80", endpoints: []string{"there"}, client: podHere}, "")
			r.move()
			r.ask(question{from: "here", protocol: "sctp", to: "10.43.0.7:80"}, "")
		},
	},
	{
		name: "64 more ports", service: service(nodePort, func(s *corev1.ServiceSpec) {
			for i := range int32(64) {
				s.Ports = append(s.Ports, corev1.ServicePort{Name: fmt.Sprint("port-", i), Protocol: corev1.ProtocolTCP, Port: 8000 + i, NodePort: 31000 + i})
			}
		}), endpoints: both,
		then: func(r *rig, _ *corev1.Service) {
			r.change(func(s *discoveryv1.EndpointSlice) {
				for i := range 64 {
					s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("port-", i)), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))})
				}
			})
			for _, i := range []int{63, 0} {
				r.ask(question{from: "here", to: fmt.Sprint("10.43.0.7:", 8000+i), endpoints: everywhere}, "")
				r.ask(question{from: "client", to: fmt.Sprint(nodeOut, ":", 31000+i), endpoints: everywhere}, "")
			}
			for i := range 64 { // once each: they are there
				for from, to := range map[string]string{"here": fmt.Sprint("10.43.0.7:", 8000+i), "client": fmt.Sprint(nodeOut, ":", 31000+i)} {
					r.spaces[from](func() {
						if _, err := once(question{protocol: "tcp", to: to}); err != nil {
							r.t.Errorf("%s asks %s: %v", from, to, err)
						}
					})
				}
			}
			r.move()
			for _, i := range []int{0, 63} {
				r.ask(question{from: "here", to: fmt.Sprint("10.43.0.7:", 8000+i), refused: true}, "")
			}
		},
	},
	{
		name: "external address", service: service(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.7"} }), endpoints: both,
		asked: []question{
			{from: "client", to: "192.0.2.7:80", endpoints: everywhere},
			{from: "here", to: "192.0.2.7:80", endpoints: everywhere},
			{from: "node", to: "192.0.2.7:80", endpoints: everywhere},
		},
	},
	{
		name: "load balancer", service: service(loadBalancer), endpoints: both,
		asked: []question{
			{from: "client", to: "192.0.2.9:80", endpoints: everywhere},
			{from: "client", protocol: "udp", to: "192.0.2.9:53", endpoints: everywhere},
			{from: "here", to: "192.0.2.9:80", endpoints: everywhere},
		},
	},
	{
		name: "load balancer for some addresses", endpoints: both,
		service: service(loadBalancer, func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"203.0.113.0/24", client + "/32"} }),
		asked: []question{
			{from: "client", to: "192.0.2.9:80", endpoints: everywhere},
			{from: "here", to: "192.0.2.9:80"},
			{from: "here", to: "10.43.0.7:80", endpoints: everywhere},
		},
	},
	{
		name: "external traffic policy", service: service(loadBalancer, local), endpoints: both,
		asked: []question{
			{from: "client", to: "192.0.2.9:80", endpoints: here, client: client},
			{from: "client", to: nodeOut + ":30080", endpoints: here, client: client},
			{from: "client", protocol: "udp", to: nodeOut + ":30053", endpoints: here, client: client},
		},
		client: map[string]string{"userspace": "10.42.0.1"},
		then: func(r *rig, _ *corev1.Service) {
			r.move(both[1])
			r.ask(question{from: "client", to: "192.0.2.9:80"}, "")
		},
	},
	{
		// What arrives at the pod's own link, not what a socket says.
		name: "the client's address on the wire", service: service(loadBalancer, local), endpoints: both[:1],
		then: func(r *rig, svc *corev1.Service) {
			shown := client
			if r.mode == "userspace" {
				shown = "10.42.0.1"
			}
			r.wire(shown, "tcp", "udp")
			// Of the policy Cluster it is the node's: the capture can tell. A flow of UDP of
			// before, whose port a client happens to get again, goes on as it was.
			ctx := context.Background()
			now, err := r.api.CoreV1().Services("default").Get(ctx, svc.Name, metav1.GetOptions{})
			if err == nil {
				now.Spec.ExternalTrafficPolicy, now.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
				_, err = r.api.CoreV1().Services("default").Update(ctx, now, metav1.UpdateOptions{})
			}
			if err != nil {
				r.t.Fatal(err)
			}
			r.ask(question{from: "client", to: nodeOut + ":30080", endpoints: here, client: "10.42.0.1"}, "")
			r.wire("10.42.0.1", "tcp")
		},
	},
	{
		name: "external traffic policy and connections from inside", service: service(loadBalancer, local), endpoints: both,
		except: map[string]string{"ipvs": "a virtual server has one list of endpoints"},
		asked: []question{
			{from: "there", to: "192.0.2.9:80", endpoints: everywhere},
			{from: "node", to: nodeOut + ":30080", endpoints: everywhere},
		},
		then: func(r *rig, _ *corev1.Service) {
			r.move(both[1])
			r.ask(question{from: "here", to: "192.0.2.9:80", endpoints: []string{"there"}}, "")
		},
	},
	{
		name: "affinity", endpoints: both,
		service: service(nodePort, func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP }),
		then: func(r *rig, _ *corev1.Service) {
			for _, q := range []question{{from: "there", protocol: "tcp", to: "10.43.0.7:80"}, {from: "client", protocol: "tcp", to: nodeOut + ":30080"}} {
				first := r.stays(q)
				if first == "" {
					continue
				}
				gone, stays := both[0], both[1]
				if first == "there" {
					gone, stays = both[1], both[0]
				}
				r.move(stays)
				q.endpoints = []string{map[string]string{podHere: "here", podThere: "there"}[stays.Addresses[0]]}
				r.ask(q, "")
				r.move(gone, stays)
				r.stays(q)
			}
		},
	},
	{
		name: "endpoints that end", service: service(), endpoints: []discoveryv1.Endpoint{endpoint(podHere, "n1", true), endpoint(podThere, "n2", false)},
		asked: []question{{from: "here", to: "10.43.0.7:80", endpoints: here}},
		then: func(r *rig, _ *corev1.Service) {
			r.move(endpoint(podHere, "n1", false), endpoint(podThere, "n2", false)) // then they are all there is
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: everywhere}, "")
		},
	},
	{
		name: "a flow moves on", service: service(), endpoints: both[:1],
		then: func(r *rig, _ *corev1.Service) {
			r.ask(question{from: "there", protocol: "udp", to: "10.43.0.7:53", endpoints: here}, "")
			r.spaces["there"](func() {
				c, err := net.Dial("udp", "10.43.0.7:53")
				if err != nil {
					r.t.Error(err)
					return
				}
				defer c.Close()
				say := func() string {
					b := make([]byte, 100)
					_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
					if _, err := c.Write([]byte("?")); err != nil {
						return err.Error()
					}
					n, err := c.Read(b)
					if err != nil {
						return err.Error()
					}
					return strings.Fields(string(b[:n]))[0]
				}
				if got := say(); got != "here" {
					r.t.Errorf("the flow goes to %s", got)
				}
				r.move(both[1])
				got := ""
				for range 40 { // the same socket
					if got = say(); got == "there" {
						return
					}
					time.Sleep(50 * time.Millisecond)
				}
				r.t.Errorf("the flow goes to %s after its endpoint went", got)
			})
		},
	},
	{
		name: "a restart", service: service(nodePort), endpoints: both,
		then: func(r *rig, svc *corev1.Service) {
			r.ask(question{from: "client", to: nodeOut + ":30080", endpoints: everywhere}, "")
			r.stop()
			r.move(both[0])
			r.start()
			r.ask(question{from: "client", to: nodeOut + ":30080", endpoints: here}, "")
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: here}, "")
		},
	},
	{
		name: "another range of Services", service: service(), endpoints: both,
		except: map[string]string{"ipvs": "what goes to an address of a range that no Service has leaves the node, as with upstream's"},
		then: func(r *rig, _ *corev1.Service) {
			// Somebody outside has an address of the range, and keeps it.
			r.spaces["client"](func() { up(r.t, "lo", "10.44.0.9/32"); echo(r.t, "10.44.0.9:80", "outside") })
			outside := question{from: "node", to: "10.44.0.9:80", endpoints: []string{"outside"}}
			r.ask(outside, "")
			ranges, ctx := r.api.NetworkingV1().ServiceCIDRs(), context.Background()
			if _, err := ranges.Create(ctx, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.44.0.0/16"}}}, metav1.CreateOptions{}); err != nil {
				r.t.Fatal(err)
			}
			r.ask(question{from: "node", to: "10.44.0.9:80"}, "")
			if err := ranges.Delete(ctx, "more", metav1.DeleteOptions{}); err != nil {
				r.t.Fatal(err)
			}
			r.ask(outside, "")
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: everywhere}, "")
		},
	},
	{
		name: "another Service beside it", service: service(), endpoints: both,
		then: func(r *rig, _ *corev1.Service) {
			ctx := context.Background()
			second := service()()
			second.Name, second.Spec.ClusterIP = "second", "10.43.0.8"
			if _, err := r.api.CoreV1().Services("default").Create(ctx, second, metav1.CreateOptions{}); err != nil {
				r.t.Fatal(err)
			}
			r.ask(question{from: "here", to: "10.43.0.8:80", refused: true}, "")
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: everywhere}, "")
			if err := r.api.CoreV1().Services("default").Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
				r.t.Fatal(err)
			}
			r.ask(question{from: "here", to: "10.43.0.8:80"}, "")
			r.ask(question{from: "here", to: "10.43.0.7:80", endpoints: everywhere}, "")
		},
	},
}

// wire captures what arrives at the pod here while the client outside asks at the node port
// and at the load balancer's address, and wants all of it to come from one address.
func (r *rig) wire(want string, protocols ...string) {
	r.t.Helper()
	numbers := map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}
	ports := map[string][]string{"tcp": {nodeOut + ":30080", "192.0.2.9:80"}, "udp": {nodeOut + ":30053", "192.0.2.9:53"}}
	for _, protocol := range protocols {
		for _, to := range ports[protocol] {
			q := question{from: "client", protocol: protocol, to: to, endpoints: here}
			r.ask(q, "") // the rules are there
			var c *capture
			r.spaces["here"](func() { c = captureAt(r.t, "eth0") })
			r.ask(q, "")
			if got := c.sources(numbers[protocol], podHere+":8080"); len(got) != 1 || got[want] < 30 {
				r.t.Errorf("the client asks %s %s: %v arrive at the pod; want 30 or more from %s", protocol, to, got, want)
			}
		}
	}
}

// stays finds the one endpoint that a client is led to.
func (r *rig) stays(q question) (first string) {
	r.t.Helper()
	for _, one := range everywhere {
		q.endpoints = []string{one}
		for range 40 {
			ok := false
			r.spaces[q.from](func() {
				got, err := connect(q)
				ok = q.fits(got, err)
			})
			if ok {
				return one
			}
			time.Sleep(25 * time.Millisecond)
		}
	}
	r.t.Errorf("%s asks %s: its connections do not stay at one endpoint", q.from, q.to)
	return ""
}

// leftovers fails for what a proxy may have left in the kernel.
func leftovers(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table.Name == "knarr-test" {
			t.Errorf("table %s is left", table.Name)
		}
	}
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		out, _ := exec.Command(save).Output() // none where there is no such program
		if strings.Contains(string(out), "KNARR") {
			t.Errorf("%s: %s", save, out)
		}
	}
	routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != nil && strings.HasPrefix(r.Dst.String(), "10.43.") {
			t.Errorf("route %v is left", r)
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 4 {
		t.Errorf("there are %d links", len(links))
	}
}
