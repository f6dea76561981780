package cluster

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"knarr/addons/dns"
	"knarr/addons/loadbalancer/announcer"
	"knarr/addons/localstorage"
	"knarr/controlplane/apiserver/admission/plugin"
	"knarr/internal/informer"
	"knarr/internal/oomscore"
	"knarr/internal/programs"
	"knarr/internal/run"
	"knarr/internal/version"
	"knarr/node/cni"
	"knarr/node/cni/network"
	"knarr/node/containerruntime"
	"knarr/node/kubelet"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubeproxy"
	"knarr/node/networkpolicy"
)

// facts are what every node of a cluster must know of it.
type facts struct {
	ClusterCIDRs  ranges    `json:"clusterCIDR"`
	ServiceCIDRs  ranges    `json:"serviceCIDR"`
	ClusterDNS    addresses `json:"clusterDNS"`
	ClusterDomain string    `json:"clusterDomain"`
	Backend       string    `json:"flannelBackend"`
	// Network tells this cluster's packets from another's.
	Network uint32 `json:"network"`
	// CloudProvider is external, or there is none.
	CloudProvider string `json:"cloudProvider,omitempty"`
	// Disabled are the parts that run on no node.
	Disabled []string `json:"disabled,omitempty"`
	// SharedImages: nodes get images from each other where a registry does not answer.
	SharedImages bool `json:"sharedImages,omitempty"`
	// TrustedTags: each node's word is taken for what the tags of its images stand for.
	TrustedTags bool `json:"trustedTags,omitempty"`
}

// identities lead to the API server, each as one user.
type identities struct {
	kubelet, proxy, dns, storage, gateway, announcer *rest.Config
}

// A node runs pods on this machine, those of a server or of an agent.
type node struct {
	opts   *NodeOptions
	layout layout
	facts  facts
	as     identities
	ca     *x509.CertPool
	// clientKey is the file of the key of the node's client certificate.
	clientKey string
	sockets   *sockets
	kubelet   net.Listener
	began     time.Time
	watches   *informer.Shared // of kube-proxy, DNS and network policies
	leave     func()           // goes on with another API server; nil: there is no other

	runs       int // of the kubelet
	once       sync.Once
	podNetwork chan struct{} // closed once pods can be attached
	podRanges  []string      // this node's, set before podNetwork is closed
	health     networkHealth
}

// share has what several of the node's components read be watched once, until ctx ends.
func (n *node) share(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(n.as.proxy)
	if err != nil {
		return fmt.Errorf("watches of the node: %w", err)
	}
	n.watches = informer.NewShared(ctx, client)
	return nil
}

// components are what a node runs.
func (n *node) components() []component {
	all := []struct {
		part string
		component
	}{
		{"", n.health.watched(component{"network", n.network})},
		{"network", n.health.watched(component{"peers", n.peers})},
		{"kube-proxy", n.health.watched(component{"kube-proxy", n.proxy})},
		{"", n.health.watched(component{"network-policy", n.policies})},
		{"coredns", component{"dns", n.dns}},
		{"local-storage", component{"local-storage", n.storage}},
		{"", component{"gateway", n.gateway}},
		{serviceLB, component{"address-announcer", n.announce}},
		{"", component{"kubelet", n.pods}},
	}
	var run []component
	for _, c := range all {
		if c.part == "" || !slices.Contains(n.facts.Disabled, c.part) {
			run = append(run, c.component)
		}
	}
	return run
}

// pods runs the container runtime and the kubelet on it.
func (n *node) pods(ctx context.Context) error {
	o := n.opts
	listener := n.kubelet
	if n.runs++; n.runs > 1 { // the run before has closed it
		var err error
		if listener, err = n.sockets.listen(n.facts.ClusterCIDRs.everywhereAddress(), o.KubeletPort, "kubelet-port"); err != nil {
			return err
		}
	}
	defer listener.Close() // the kubelet's, but for what fails before there is one
	healthz := "-"
	if o.KubeletHealthz != 0 {
		healthz = net.JoinHostPort("127.0.0.1", strconv.Itoa(o.KubeletHealthz))
	}
	cfg := kubelet.Config{
		Kube:     n.as.kubelet,
		NodeName: o.NodeName, NodeIPs: o.nodeIPs.netIPs(),
		RootDir: n.layout.kubelet(), PodLogsDir: n.layout.podLogs(),
		ClusterDNS: n.facts.ClusterDNS.netIPs(), ClusterDomain: n.facts.ClusterDomain,
		Listener: listener, Healthz: healthz,
		CertFile: n.layout.tls("kubelet.crt"), KeyFile: n.layout.tls("kubelet.key"), ClientCA: n.ca,
		NodeLabels:    o.labels,
		Settings:      &configuration.Settings{RegisterWithTaints: o.taints},
		CgroupParent:  n.layout.cgroup() + "/kubepods",
		ExternalCloud: n.facts.CloudProvider == externalCloud, NodeIPsGiven: o.NodeIP != "",
		NetworkErr: n.health.err, NetworkStale: n.health.stale, LeaveServer: n.leave, CheckStatic: plugin.CheckStaticPod,
		Version: version.Kubernetes + "+knarr",
	}
	if err := o.kubelet.Apply(&cfg); err != nil {
		return err
	}
	if err := n.layout.noteRuntime(o.RuntimeEndpoint); err != nil {
		return err
	}
	if o.RuntimeEndpoint != "" {
		if len(o.mirrors.Mirrors)+len(o.mirrors.Configs) > 0 {
			slog.WarnContext(ctx, "the container runtime of --container-runtime-endpoint fetches images as it is set up itself; this file is not followed", "file", o.PrivateRegistry)
		}
		if n.facts.SharedImages {
			slog.WarnContext(ctx, "the container runtime of --container-runtime-endpoint shares no images with other nodes; --embedded-registry is for the nodes without one")
		}
		if found, err := os.ReadDir(n.layout.images()); err == nil && len(found) > 0 {
			slog.WarnContext(ctx, "the container runtime of --container-runtime-endpoint has images of its own; those of this directory are not imported", "dir", n.layout.images())
		}
		cfg.RuntimeEndpoint = o.RuntimeEndpoint
		return runKubelet(ctx, cfg)
	}
	if _, err := programs.Unpack(n.layout.programs(), programs.CNI); err != nil {
		return err
	}
	rt, err := containerruntime.New(n.runtimeConfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var images run.Group
	defer images.Wait()
	defer cancel()
	ended := make(chan error, 1)
	run.Go("container runtime", func() {
		defer cancel()
		ended <- run.Catch("container runtime", func() error { return rt.Run(ctx) })
	})
	select {
	case <-rt.Ready():
	case <-ctx.Done():
		return <-ended
	}
	slog.Info("container runtime ready", "after", time.Since(n.began).Round(time.Millisecond))
	conn, err := rt.Conn(ctx)
	if err == nil {
		cfg.Runtime, cfg.RuntimeMetrics, cfg.PullProgress = conn, rt.Metrics(), pullProgress(rt, conn)
		if n.facts.SharedImages {
			err = n.shareImages(&cfg, rt, conn)
		}
		images.Loop(ctx, "images directory", func(ctx context.Context) { n.importImages(ctx, rt) })
		if err == nil {
			cfg.ImagesChanged, err = containerruntime.ImageChanges(ctx, conn)
		}
		if err == nil {
			err = runKubelet(ctx, cfg)
		}
		conn.Close()
	}
	cancel()
	if rerr := <-ended; err == nil {
		err = rerr
	}
	return err
}

func runKubelet(ctx context.Context, cfg kubelet.Config) error {
	cfg.SpareProcess = oomscore.Self
	k, err := kubelet.New(cfg)
	if err != nil {
		return err
	}
	return k.Run(ctx)
}

func (l layout) runtimeConfig() containerruntime.Config {
	return containerruntime.Config{
		Root: l.containerd(), State: l.containerdState(), Programs: l.programs(),
		CNIConfDir: l.cniConf(), CNIBinDir: l.programs(), CgroupParent: l.cgroup(),
		NRISocket: l.nriSocket(),
	}
}

// runtimeConfig has the directories of network plugins where another's are expected, in
// a cluster without a network of its own.
func (n *node) runtimeConfig() containerruntime.Config {
	c := n.layout.runtimeConfig()
	c.Registries, c.Handlers = n.opts.mirrors, n.opts.handlers
	c.SystemdCgroup = n.opts.kubelet.Settings.CgroupDriver == configuration.Systemd
	if n.facts.foreignNetwork() {
		c.CNIConfDir, c.CNIBinDir = "", "" // the customary ones
	}
	return c
}

// foreignNetwork reports whether the cluster's pods are on a network that knarr has
// nothing to do with.
func (f facts) foreignNetwork() bool { return slices.Contains(f.Disabled, "network") }

// dnsLocation is where nodes' DNS servers are.
func (f facts) dnsLocation() dns.Location {
	if f.foreignNetwork() {
		return dns.AtNodes
	}
	return dns.AtPods
}

func (l layout) cniConfig() cni.Config {
	return cni.Config{
		Dir: l.cniConf(), BinDir: l.programs(), Bridge: l.bridge(), Table: l.table() + "-cni", StateDir: l.cni(), Tunnel: l.tunnel(),
	}
}

func (n *node) cniConfig() cni.Config {
	c := n.layout.cniConfig()
	for _, p := range n.facts.ClusterCIDRs {
		c.ClusterCIDRs = append(c.ClusterCIDRs, p.String())
	}
	if n.opts.RuntimeEndpoint != "" {
		c.Dir, c.BinDir = "", "" // the customary ones, where another runtime looks
	}
	c.Backend, c.NodeIPs, c.NetworkID = n.facts.Backend, n.opts.nodeIPs, n.facts.Network
	if !slices.Contains(n.facts.Disabled, "coredns") {
		c.DNSPort = dnsPort
	}
	if !slices.Contains(n.facts.Disabled, networkPolicy) {
		c.NewPods = network.NewPods{Table: n.layout.policyTable(), IPv4: networkpolicy.NewPods4, IPv6: networkpolicy.NewPods6}
	}
	return c
}

// network waits for this node's pod range and sets up the pod network in it. In a
// cluster that has another network it removes what an earlier start has left.
func (n *node) network(ctx context.Context) error {
	if n.facts.foreignNetwork() {
		if _, err := os.Stat(n.layout.cniConf()); err == nil {
			if err := cni.Remove(n.layout.cniConfig()); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	}
	client, err := kubernetes.NewForConfig(n.as.kubelet)
	if err != nil {
		return err
	}
	me, err := waitForNode(ctx, client, n.opts.NodeName, func(n *corev1.Node) bool { return n.Spec.PodCIDR != "" })
	if me == nil {
		return err
	}
	cfg := n.cniConfig()
	cfg.PodCIDRs = me.Spec.PodCIDRs
	if !n.install(ctx, func() error { return cni.Install(cfg) }) {
		return nil
	}
	n.once.Do(func() {
		n.podRanges = cfg.PodCIDRs
		close(n.podNetwork)
	})
	slog.Info("pod network ready", "ranges", me.Spec.PodCIDRs, "after", time.Since(n.began).Round(time.Millisecond))
	n.keepInstalled(ctx, client, cfg)
	return nil
}

// peers keeps the ways to the pods of the other nodes.
func (n *node) peers(ctx context.Context) error {
	select {
	case <-n.podNetwork:
	case <-ctx.Done():
		return nil
	}
	cfg := n.cniConfig()
	cfg.PodCIDRs = n.podRanges
	p, err := cni.NewPeers(cfg, n.as.proxy, n.as.kubelet, n.opts.NodeName)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// waitForNode returns the node once it is as wanted; nil when ctx ended.
func waitForNode(ctx context.Context, client kubernetes.Interface, name string, ok func(*corev1.Node) bool) (*corev1.Node, error) {
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", name))
	ev, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
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

func (n *node) proxy(ctx context.Context) error {
	if n.facts.ClusterCIDRs.has(true) {
		n.opts.proxy.Everywhere()
	}
	cfg, err := n.opts.proxy.Open(kubeproxy.Config{
		Kube: n.as.proxy, Watches: n.watches, NodeName: n.opts.NodeName, ClusterCIDRs: n.facts.ClusterCIDRs, Table: n.layout.table(),
	}, n.layout.proxyRecords())
	if err != nil {
		return err
	}
	p, err := kubeproxy.New(cfg)
	if err != nil {
		return err
	}
	n.health.follow("kube-proxy", p)
	return p.Run(ctx)
}

// storage gives claims volumes on this node's disk.
func (n *node) storage(ctx context.Context) error {
	dir, err := n.layout.keepStorage(n.opts.LocalStorage)
	if err != nil {
		return err
	}
	s, err := localstorage.New(localstorage.Config{
		Kube: n.as.storage, NodeName: n.opts.NodeName, Dir: dir, KubeletDir: n.layout.kubelet(), Version: version.Version,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// announce answers on this node's networks for addresses of pools that Services have.
func (n *node) announce(ctx context.Context) error {
	a, err := announcer.New(announcer.Config{Kube: n.as.announcer, NodeName: n.opts.NodeName})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// policies holds the node's pods to NetworkPolicies. In a cluster that does not,
// it removes what an earlier start has left.
func (n *node) policies(ctx context.Context) error {
	if slices.Contains(n.facts.Disabled, networkPolicy) {
		if err := networkpolicy.Remove(n.layout.policyTable()); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	c, err := networkpolicy.New(networkpolicy.Config{Kube: n.as.proxy, Watches: n.watches, NodeName: n.opts.NodeName, Table: n.layout.policyTable()})
	if err != nil {
		return err
	}
	n.health.follow("network-policy", c)
	return c.Run(ctx)
}

// dnsPort is where pods' queries arrive on the bridge; 53 may be taken by a
// resolver of the host that listens on every address.
const dnsPort = 10053

// dns answers on this node's bridge once there is one, or at this node's addresses
// under another's network.
func (n *node) dns(ctx context.Context) error {
	cfg := dns.Config{Kube: n.as.dns, Watches: n.watches, Domain: n.facts.ClusterDomain, Sockets: n.sockets}
	at := n.opts.nodeIPs
	if n.facts.foreignNetwork() {
		cfg.Clients = n.inside()
	} else {
		select {
		case <-n.podNetwork:
		case <-ctx.Done():
			return nil
		}
		at = nil
		for _, r := range n.podRanges {
			p, err := netip.ParsePrefix(r)
			if err != nil {
				return fmt.Errorf("pod range of this node: %w", err)
			}
			at = append(at, p.Masked().Addr().Next())
		}
	}
	for _, ip := range at {
		cfg.Listen = append(cfg.Listen, netip.AddrPortFrom(ip, dnsPort))
		cfg.Metrics = append(cfg.Metrics, netip.AddrPortFrom(ip, dns.MetricsPort))
	}
	srv, err := dns.New(cfg)
	if err != nil {
		return err
	}
	run.Go("DNS ready", func() {
		select {
		case <-srv.Serving():
			slog.Info("DNS ready", "after", time.Since(n.began).Round(time.Millisecond))
		case <-ctx.Done():
		}
	})
	return srv.Run(ctx)
}

// inside are the pods and this node: what is at the node's own addresses for them is not
// for its neighbours.
func (n *node) inside() []netip.Prefix {
	own := addresses{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	all := slices.Clone(n.facts.ClusterCIDRs)
	for _, ip := range append(own, n.opts.nodeIPs...) {
		all = append(all, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return all
}
