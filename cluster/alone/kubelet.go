package alone

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"knarr/internal/flaghelp"
	"knarr/internal/version"
	"knarr/node/kubelet"
)

type kubeletProgram struct {
	client
	node, nodeIP, root, logs, listen, runtime string
	healthzAddress                            string
	healthzPort                               int
	dns                                       []string
	domain, resolv                            string
	certFile, keyFile, clientCA               string
	manifests, cgroup                         string
	labels                                    map[string]string
	cloud, providerID                         string
	maxPods                                   int
}

// externalCloud is the only cloud provider of a kubelet.
const externalCloud = "external"

func (k *kubeletProgram) flags(f *pflag.FlagSet) {
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "`file` that says where the API server is and who to be")
	f.StringVar(&k.node, "hostname-override", "", "`name` of this node (default: the host name)")
	f.StringVar(&k.nodeIP, "node-ip", "", "`addresses` of this node, at most one of each family (default: that of the default route)")
	f.StringVar(&k.root, "root-dir", "/var/lib/kubelet", "`directory` of pods and plugins")
	f.StringVar(&k.logs, "pod-logs-dir", "/var/log/pods", "`directory` of containers' logs")
	f.StringVar(&k.listen, "listen", ":10250", "`address` to serve on")
	f.StringVar(&k.healthzAddress, "healthz-bind-address", "127.0.0.1", "`address` of /healthz for everybody")
	f.IntVar(&k.healthzPort, "healthz-port", 10248, "`port` of /healthz for everybody; 0: none")
	f.StringVar(&k.runtime, "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "`socket` of the CRI runtime")
	f.StringSliceVar(&k.dns, "cluster-dns", nil, "`addresses` pods resolve names with")
	f.StringVar(&k.domain, "cluster-domain", "cluster.local", "`domain` of names in the cluster")
	f.StringVar(&k.resolv, "resolv-conf", "/etc/resolv.conf", "`file` that names the servers for other names")
	f.StringVar(&k.certFile, "tls-cert-file", "", "`file` of the serving certificate (default: one made in memory)")
	f.StringVar(&k.keyFile, "tls-private-key-file", "", "`file` of its key")
	f.StringVar(&k.clientCA, "client-ca-file", "", "`file` of who signs client certificates")
	f.StringVar(&k.manifests, "pod-manifest-path", "", "`directory` of static pods' manifests")
	f.StringVar(&k.cgroup, "cgroup-root", "", "`group` that pods' groups are below, /kubepods by default")
	f.StringToStringVar(&k.labels, "node-labels", nil, "`labels` of this node, key=value")
	f.StringVar(&k.cloud, "cloud-provider", "", "`external`: a new node is tainted until a cloud controller manager has initialised it")
	flaghelp.Values(f, "cloud-provider", "external")
	f.StringVar(&k.providerID, "provider-id", "", "`ID` of this node's instance with the cloud provider")
	f.IntVar(&k.maxPods, "max-pods", 110, "`number` of pods the node takes")
}

func (k *kubeletProgram) run(ctx context.Context) error {
	kube, err := k.config("kubelet")
	if err != nil {
		return err
	}
	cfg := kubelet.Config{
		Kube: kube, RuntimeEndpoint: k.runtime, RootDir: k.root, PodLogsDir: k.logs, Listen: k.listen,
		ClusterDomain: k.domain, ResolvConf: k.resolv, CertFile: k.certFile, KeyFile: k.keyFile,
		StaticPodDir: k.manifests, CgroupParent: k.cgroup, NodeLabels: k.labels, MaxPods: k.maxPods,
		Version: version.Kubernetes + "+knarr", ExternalCloud: k.cloud == externalCloud, NodeIPsGiven: k.nodeIP != "", ProviderID: k.providerID,
	}
	if k.cloud != "" && k.cloud != externalCloud {
		return fmt.Errorf("--cloud-provider: unsupported value %q; it may be external", k.cloud)
	}
	switch {
	case k.healthzPort == 0:
		cfg.Healthz = "-"
	case k.healthzPort < 0 || k.healthzPort > 65535:
		return fmt.Errorf("--healthz-port: %d is not a port", k.healthzPort)
	case net.ParseIP(k.healthzAddress) == nil:
		return fmt.Errorf("--healthz-bind-address: %q is not an IP address", k.healthzAddress)
	default:
		cfg.Healthz = net.JoinHostPort(k.healthzAddress, strconv.Itoa(k.healthzPort))
	}
	if cfg.NodeName, err = nodeName(k.node); err != nil {
		return fmt.Errorf("--hostname-override: %w", err)
	}
	if cfg.NodeIPs, err = addresses("node-ip", strings.Split(k.nodeIP, ",")); err != nil {
		return err
	}
	if len(cfg.NodeIPs) == 0 {
		ip, err := utilnet.ChooseHostInterface()
		if err != nil {
			return fmt.Errorf("--node-ip: this host has no default route; give an address: %w", err)
		}
		cfg.NodeIPs = []net.IP{ip}
	}
	if cfg.ClusterDNS, err = addresses("cluster-dns", k.dns); err != nil {
		return err
	}
	if cfg.ClientCA, err = pool("client-ca-file", k.clientCA); err != nil {
		return err
	}
	l, err := kubelet.New(cfg)
	if err != nil {
		return err
	}
	return l.Run(ctx)
}

func addresses(flag string, list []string) ([]net.IP, error) {
	var out []net.IP
	for _, s := range list {
		if s == "" {
			continue
		}
		ip := net.ParseIP(s)
		if ip == nil {
			return nil, fmt.Errorf("--%s: %q is not an IP address", flag, s)
		}
		out = append(out, ip)
	}
	return out, nil
}
