package alone

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"knarr/cluster/kubeletflags"
	"knarr/controlplane/apiserver/admission/plugin"
	"knarr/internal/flaghelp"
	"knarr/internal/oomscore"
	"knarr/internal/version"
	"knarr/node/kubelet"
	"knarr/node/kubelet/certificates"
)

type kubeletProgram struct {
	client
	kubeletflags.Flags
	bootstrap, certDir         string
	node, nodeIP, root, listen string
	labels                     map[string]string
	cloud                      string
	values                     func() map[string]string
	lock                       lockFile
	log                        Log
}

// externalCloud is the only cloud provider of a kubelet.
const externalCloud = "external"

func (k *kubeletProgram) flags(f *pflag.FlagSet) {
	k.values = values(f)
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "`file` that says where the API server is and who to be")
	f.StringVar(&k.bootstrap, "bootstrap-kubeconfig", "", "`file` to ask for the first certificate with, as kubeadm writes it; --kubeconfig is written then")
	f.StringVar(&k.certDir, "cert-dir", "", "`directory` of certificates that are asked for (default: pki below --root-dir)")
	f.StringVar(&k.node, "hostname-override", "", "`name` of this node (default: the host name)")
	f.StringVar(&k.nodeIP, "node-ip", "", "`addresses` of this node, at most one of each family (default: that of the default route)")
	f.StringVar(&k.root, "root-dir", "/var/lib/kubelet", "`directory` of pods and plugins")
	f.StringVar(&k.listen, "listen", ":10250", "`address` to serve on")
	f.StringToStringVar(&k.labels, "node-labels", nil, "`labels` of this node, key=value")
	f.StringVar(&k.cloud, "cloud-provider", "", "`external`: a new node is tainted until a cloud controller manager has initialised it")
	flaghelp.Values(f, "cloud-provider", "external")
	f.StringVar(&k.lock.path, "lock-file", "", "`file` that only one kubelet holds at a time: this one waits until it can")
	f.BoolVar(&k.lock.yield, "exit-on-lock-contention", false, "end when another program opens the file of --lock-file")
	flaghelp.Group(f, "Node")
	k.Bind(f)
	flaghelp.Group(f, "Configuration")
}

// all are the values of all flags: what those that set a field say by default is the
// configuration's.
func (k *kubeletProgram) all() map[string]string {
	all := k.values()
	maps.Copy(all, k.Values())
	return all
}

func (k *kubeletProgram) run(ctx context.Context) error {
	if k.kubeconfig == "" {
		return errNoKubeconfig
	}
	if err := k.Load(); err != nil {
		return err
	}
	if k.log.FromFile != nil {
		k.log.FromFile(k.Logging())
	}
	certDir, err := filepath.Abs(cmp.Or(k.certDir, filepath.Join(k.root, "pki")))
	if err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	cfg := kubelet.Config{
		RootDir: k.root, CertDir: certDir, Listen: k.listen, NodeLabels: k.labels,
		SpareProcess: oomscore.Self, OpenFiles: openFiles, CheckStatic: plugin.CheckStaticPod, LogLevel: k.log.Level,
		Version: version.Kubernetes + "+knarr", ExternalCloud: k.cloud == externalCloud, NodeIPsGiven: k.nodeIP != "",
	}
	if err := k.Apply(&cfg); err != nil {
		return err
	}
	cfg.Flags = k.all
	if k.cloud != "" && k.cloud != externalCloud {
		return fmt.Errorf("--cloud-provider: unsupported value %q; it may be external", k.cloud)
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
	if err := kubelet.Check(cfg, false); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	ctx, release, err := k.lock.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	c := certificates.Client{NodeName: cfg.NodeName, Kubeconfig: k.kubeconfig, Bootstrap: k.bootstrap, Dir: certDir, Rotate: cfg.Settings.RotateCertificates}
	if cfg.Kube, err = c.Config(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to end while it waited
		}
		return err
	}
	as("kubelet", cfg.Kube)
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
