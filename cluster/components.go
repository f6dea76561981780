package cluster

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"knarr/addons/dns"
	"knarr/controlplane/controllermanager"
	"knarr/controlplane/scheduler"
	"knarr/internal/programs"
	"knarr/internal/version"
	"knarr/node/cni"
	"knarr/node/containerruntime"
	"knarr/node/kubelet"
	"knarr/node/kubeproxy"
)

type signer = crypto.Signer

const goarch = runtime.GOARCH

var goversion = runtime.Version()

// A component is a part of the cluster that only knows the API.
type component struct {
	name string
	run  func(context.Context) error
}

// components are those this server runs beside etcd and the API server, in no
// particular order: each waits for what it needs.
func (s *Server) components(certs *certificates) []component {
	o := &s.opts
	all := []struct {
		part string // what --disable calls it; "" cannot be disabled
		on   bool
		component
	}{
		{"scheduler", true, component{"kube-scheduler", s.scheduler}},
		{"controller-manager", true, component{"kube-controller-manager", s.controllers}},
		{"network", !o.DisableAgent, component{"network", s.network}},
		{"kube-proxy", !o.DisableAgent, component{"kube-proxy", s.proxy}},
		{"coredns", !o.DisableAgent, component{"dns", s.dns}},
		{"", !o.DisableAgent, component{"kubelet", func(ctx context.Context) error { return s.node(ctx, certs) }}},
	}
	var run []component
	for _, c := range all {
		if c.on && !o.disabled(c.part) {
			run = append(run, c.component)
		}
	}
	return run
}

// node runs the container runtime and the kubelet on it.
func (s *Server) node(ctx context.Context, certs *certificates) error {
	o := &s.opts
	listener := s.kubelet
	if s.nodeRuns++; s.nodeRuns > 1 { // the run before has closed it
		var err error
		if listener, err = s.listen("0.0.0.0", o.KubeletPort, "kubelet-port"); err != nil {
			return err
		}
	}
	cfg := kubelet.Config{
		Kube:     s.as("system:node:"+o.NodeName, "system:nodes"),
		NodeName: o.NodeName, NodeIPs: []net.IP{o.nodeIP.AsSlice()},
		RootDir: s.layout.kubelet(), PodLogsDir: s.layout.podLogs(),
		ClusterDNS: []net.IP{o.clusterDNS.AsSlice()}, ClusterDomain: o.ClusterDomain,
		Listener: listener,
		CertFile: s.layout.tls("kubelet.crt"), KeyFile: s.layout.tls("kubelet.key"), ClientCA: s.ca.pool,
		NodeLabels: o.labels, RegisterWithTaints: o.taints,
		CgroupParent: s.layout.cgroup() + "/kubepods",
		Version:      version.Kubernetes + "+knarr",
	}
	if o.RuntimeEndpoint != "" {
		cfg.RuntimeEndpoint = o.RuntimeEndpoint
		return runKubelet(ctx, cfg)
	}
	if _, err := programs.Unpack(s.layout.programs(), programs.CNI); err != nil {
		return err
	}
	rt, err := containerruntime.New(s.runtimeConfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { defer cancel(); ended <- rt.Run(ctx) }()
	select {
	case <-rt.Ready():
	case <-ctx.Done():
		return <-ended
	}
	slog.Info("container runtime ready", "after", time.Since(s.began).Round(time.Millisecond))
	conn, err := rt.Conn(ctx)
	if err == nil {
		cfg.Runtime = conn
		err = runKubelet(ctx, cfg)
		conn.Close()
	}
	cancel()
	if rerr := <-ended; err == nil {
		err = rerr
	}
	return err
}

func runKubelet(ctx context.Context, cfg kubelet.Config) error {
	k, err := kubelet.New(cfg)
	if err != nil {
		return err
	}
	return k.Run(ctx)
}

func (s *Server) runtimeConfig() containerruntime.Config {
	return containerruntime.Config{
		Root: s.layout.containerd(), State: s.layout.containerdState(), Programs: s.layout.programs(),
		CNIConfDir: s.layout.cniConf(), CNIBinDir: s.layout.programs(), CgroupParent: s.layout.cgroup(),
	}
}

func (s *Server) cniConfig() cni.Config {
	return cni.Config{
		Dir: s.layout.cniConf(), BinDir: s.layout.programs(), Bridge: s.layout.bridge(),
		ClusterCIDRs: []string{s.opts.clusterCIDR.String()}, Table: s.layout.table() + "-cni", StateDir: s.layout.cni(),
	}
}

// network waits for this node's pod range and sets up the pod network in it.
func (s *Server) network(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.as("system:node:"+s.opts.NodeName, "system:nodes"))
	if err != nil {
		return err
	}
	node, err := waitForNode(ctx, client, s.opts.NodeName, func(n *corev1.Node) bool { return n.Spec.PodCIDR != "" })
	if node == nil {
		return err
	}
	cfg := s.cniConfig()
	cfg.PodCIDRs = node.Spec.PodCIDRs
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return err
	}
	if err := cni.Install(cfg); err != nil {
		return fmt.Errorf("set up the pod network: %w", err)
	}
	s.once.Do(func() {
		s.podRanges = cfg.PodCIDRs
		close(s.podNetwork)
	})
	slog.Info("pod network ready", "range", node.Spec.PodCIDR, "after", time.Since(s.began).Round(time.Millisecond))
	<-ctx.Done()
	return nil
}

// waitForNode returns the node once it is as wanted; nil when ctx ended.
func waitForNode(ctx context.Context, client kubernetes.Interface, name string, ok func(*corev1.Node) bool) (*corev1.Node, error) {
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", name))
	ev, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(e watchEvent) (bool, error) {
		n, is := e.Object.(*corev1.Node)
		return is && ok(n), nil
	})
	if ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("wait for node %s: %w", name, err)
	}
	return ev.Object.(*corev1.Node), nil
}

func (s *Server) scheduler(ctx context.Context) error {
	sched, err := scheduler.New(scheduler.Config{Kube: s.as("system:kube-scheduler")})
	if err != nil {
		return err
	}
	return sched.Run(ctx)
}

func (s *Server) controllers(ctx context.Context) error {
	m, err := controllermanager.New(controllermanager.Config{
		Kube: s.as("system:kube-controller-manager"), ClientFor: s.asController,
		RootCA: s.ca.pem, ClusterCIDRs: []netip.Prefix{s.opts.clusterCIDR},
	})
	if err != nil {
		return err
	}
	return m.Run(ctx)
}

func (s *Server) proxy(ctx context.Context) error {
	p, err := kubeproxy.New(kubeproxy.Config{
		Kube: s.as("system:kube-proxy"), NodeName: s.opts.NodeName,
		ClusterCIDRs: []netip.Prefix{s.opts.clusterCIDR}, Table: s.layout.table(),
	})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// dnsPort is where pods' queries arrive on the bridge; 53 may be taken by a
// resolver of the host that listens on every address.
const dnsPort = 10053

// dns answers on this node's bridge once there is one.
func (s *Server) dns(ctx context.Context) error {
	if err := s.ensureDNSService(ctx); err != nil {
		return err
	}
	select {
	case <-s.podNetwork:
	case <-ctx.Done():
		return nil
	}
	var listen []netip.AddrPort
	for _, r := range s.podRanges {
		p, err := netip.ParsePrefix(r)
		if err != nil {
			return fmt.Errorf("pod range of this node: %w", err)
		}
		listen = append(listen, netip.AddrPortFrom(p.Masked().Addr().Next(), dnsPort))
	}
	srv, err := dns.New(dns.Config{Kube: s.asController("kube-dns"), Domain: s.opts.ClusterDomain, Listen: listen, NodeName: s.opts.NodeName, Sockets: held{s}})
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-srv.Serving():
			slog.Info("DNS ready", "after", time.Since(s.began).Round(time.Millisecond))
		case <-ctx.Done():
		}
	}()
	return srv.Run(ctx)
}

// ensureDNSService makes the Service that pods' resolvers point at.
func (s *Server) ensureDNSService(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.as("system:knarr", user.SystemPrivilegedGroup))
	if err != nil {
		return err
	}
	const name = "kube-dns"
	port := func(name string, p corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: 53, Protocol: p, TargetPort: intstr.FromInt32(dnsPort)}
	}
	services := client.CoreV1().Services("kube-system")
	if _, err := services.Get(ctx, name, metav1.GetOptions{}); err == nil {
		return nil
	}
	_, err = services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"k8s-app": name, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
		}},
		Spec: corev1.ServiceSpec{
			ClusterIP: s.opts.clusterDNS.String(),
			Ports:     []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		return fmt.Errorf("make the DNS service: %w", err)
	}
	return nil
}
