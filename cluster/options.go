package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Options are the flags of `knarr server`; keys of the config file are the
// flag names.
type Options struct {
	Config              string
	DataDir             string
	NodeName            string
	NodeIP              string
	BindAddress         string
	AdvertiseAddress    string
	HTTPSListenPort     int
	KubeletPort         int
	TLSSAN              []string
	ClusterCIDR         string
	ServiceCIDR         string
	ServiceNodePorts    string
	ClusterDNS          string
	ClusterDomain       string
	WriteKubeconfig     string
	WriteKubeconfigMode string
	Disable             []string
	DisableAgent        bool
	NodeLabels          []string
	NodeTaints          []string
	RuntimeEndpoint     string
	LogFormat           string
	Debug               bool

	serviceCIDR, clusterCIDR netip.Prefix
	clusterDNS               netip.Addr
	nodeIP, advertise        netip.Addr
	nodePorts                [2]int32
	labels                   map[string]string
	taints                   []corev1.Taint
	mode                     os.FileMode
}

// Flags binds the options to their flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVarP(&o.Config, "config", "c", "/etc/knarr/config.yaml", "`file` with flags as keys; flags given win")
	f.StringVarP(&o.DataDir, "data-dir", "d", DefaultDataDir, "`directory` that everything of this cluster lives in")
	f.StringVar(&o.NodeName, "node-name", "", "`name` of this node (default: the host name)")
	f.StringVar(&o.NodeIP, "node-ip", "", "`address` of this node (default: that of the default route)")
	f.StringVar(&o.BindAddress, "bind-address", "0.0.0.0", "`address` the API server listens on")
	f.StringVar(&o.AdvertiseAddress, "advertise-address", "", "`address` that pods reach the API server at (default: --node-ip)")
	f.IntVar(&o.HTTPSListenPort, "https-listen-port", 6443, "`port` the API server listens on")
	f.IntVar(&o.KubeletPort, "kubelet-port", 10250, "`port` the kubelet listens on")
	f.StringSliceVar(&o.TLSSAN, "tls-san", nil, "more `names` or addresses for the API server's certificate")
	f.StringVar(&o.ClusterCIDR, "cluster-cidr", "10.42.0.0/16", "`range` of pod addresses")
	f.StringVar(&o.ServiceCIDR, "service-cidr", "10.43.0.0/16", "`range` of service addresses")
	f.StringVar(&o.ServiceNodePorts, "service-node-port-range", "30000-32767", "`range` of node ports")
	f.StringVar(&o.ClusterDNS, "cluster-dns", "", "`address` of the DNS service (default: the tenth of --service-cidr)")
	f.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "`domain` of names in the cluster")
	f.StringVarP(&o.WriteKubeconfig, "write-kubeconfig", "o", "", "write the administrator's kubeconfig to this `file` too")
	f.StringVar(&o.WriteKubeconfigMode, "write-kubeconfig-mode", "0600", "octal `mode` of that file")
	f.StringSliceVar(&o.Disable, "disable", nil, "`parts` not to run: coredns, kube-proxy, scheduler, controller-manager, network")
	f.BoolVar(&o.DisableAgent, "disable-agent", false, "run no node on this server")
	f.StringSliceVar(&o.NodeLabels, "node-label", nil, "`labels` of this node, key=value")
	f.StringSliceVar(&o.NodeTaints, "node-taint", nil, "`taints` of this node, key=value:effect")
	f.StringVar(&o.RuntimeEndpoint, "container-runtime-endpoint", "", "`socket` of another CRI runtime to use instead of the built-in one")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	f.BoolVar(&o.Debug, "debug", false, "log more")
}

// Load adds what the config file says about flags not given.
func (o *Options) Load(f *pflag.FlagSet) error {
	b, err := os.ReadFile(o.Config)
	if errors.Is(err, os.ErrNotExist) && !f.Changed("config") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(b, &values); err != nil {
		return fmt.Errorf("--config %s: %w", o.Config, err)
	}
	for key, v := range values {
		flag := f.Lookup(key)
		if flag == nil || key == "config" {
			return fmt.Errorf("--config %s: unknown key %q; keys are flag names, see knarr server --help", o.Config, key)
		}
		if flag.Changed {
			continue
		}
		items, ok := v.([]any)
		if !ok {
			items = []any{v}
		}
		for _, item := range items {
			if err := flag.Value.Set(fmt.Sprint(item)); err != nil {
				return fmt.Errorf("--config %s: %s: %w", o.Config, key, err)
			}
		}
	}
	return nil
}

// Disableable are the parts that --disable takes.
var Disableable = []string{"coredns", "kube-proxy", "scheduler", "controller-manager", "network"}

// Validate completes the options and reports everything wrong with them.
func (o *Options) Validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: "+format, append([]any{flag}, args...)...))
	}
	abs, err := filepath.Abs(o.DataDir)
	if err != nil || o.DataDir == "" {
		bad("data-dir", "%q is not a directory name", o.DataDir)
	}
	o.DataDir = abs
	if o.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			bad("node-name", "this host has no name; give one: %v", err)
		}
		o.NodeName = host
	}
	o.NodeName = strings.ToLower(o.NodeName)
	if e := validation.IsDNS1123Subdomain(o.NodeName); len(e) > 0 {
		bad("node-name", "%q: %s", o.NodeName, e[0])
	}
	prefix := func(flag, s string) netip.Prefix {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			bad(flag, "%q is not a range such as 10.42.0.0/16", s)
			return netip.Prefix{}
		}
		return p.Masked()
	}
	o.clusterCIDR, o.serviceCIDR = prefix("cluster-cidr", o.ClusterCIDR), prefix("service-cidr", o.ServiceCIDR)
	if o.clusterCIDR.IsValid() && o.serviceCIDR.IsValid() && o.clusterCIDR.Overlaps(o.serviceCIDR) {
		bad("service-cidr", "%s overlaps --cluster-cidr %s; give separate ranges", o.serviceCIDR, o.clusterCIDR)
	}
	address := func(flag, s string) netip.Addr {
		a, err := netip.ParseAddr(s)
		if err != nil {
			bad(flag, "%q is not an IP address", s)
		}
		return a
	}
	switch {
	case o.ClusterDNS != "":
		o.clusterDNS = address("cluster-dns", o.ClusterDNS)
		if o.clusterDNS.IsValid() && o.serviceCIDR.IsValid() && !o.serviceCIDR.Contains(o.clusterDNS) {
			bad("cluster-dns", "%s is not within --service-cidr %s", o.clusterDNS, o.serviceCIDR)
		}
	case o.serviceCIDR.IsValid():
		o.clusterDNS = o.serviceCIDR.Addr()
		for range 10 {
			o.clusterDNS = o.clusterDNS.Next()
		}
	}
	if o.NodeIP == "" {
		o.nodeIP = defaultAddress()
	} else {
		o.nodeIP = address("node-ip", o.NodeIP)
	}
	o.advertise = o.nodeIP
	if o.AdvertiseAddress != "" {
		o.advertise = address("advertise-address", o.AdvertiseAddress)
	}
	address("bind-address", o.BindAddress)
	for flag, p := range map[string]int{"https-listen-port": o.HTTPSListenPort, "kubelet-port": o.KubeletPort} {
		if p < 1 || p > 65535 {
			bad(flag, "%d is not a port", p)
		}
	}
	first, last, _ := strings.Cut(o.ServiceNodePorts, "-")
	lo, err1 := strconv.Atoi(first)
	hi, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil || lo < 1 || hi > 65535 || lo > hi {
		bad("service-node-port-range", "%q is not a range such as 30000-32767", o.ServiceNodePorts)
	}
	o.nodePorts = [2]int32{int32(lo), int32(hi)}
	mode, err := strconv.ParseUint(o.WriteKubeconfigMode, 8, 9)
	if err != nil {
		bad("write-kubeconfig-mode", "%q is not an octal mode such as 0600", o.WriteKubeconfigMode)
	}
	o.mode = os.FileMode(mode)
	for _, d := range o.Disable {
		if !contains(Disableable, d) {
			bad("disable", "there is no part %q; parts are %s", d, strings.Join(Disableable, ", "))
		}
	}
	o.labels = map[string]string{}
	for _, l := range o.NodeLabels {
		k, v, ok := strings.Cut(l, "=")
		if e := validation.IsQualifiedName(k); !ok || len(e) > 0 {
			bad("node-label", "%q is not key=value", l)
		}
		if e := validation.IsValidLabelValue(v); len(e) > 0 {
			bad("node-label", "%q: %s", l, e[0])
		}
		o.labels[k] = v
	}
	for _, t := range o.NodeTaints {
		taint, ok := parseTaint(t)
		if !ok {
			bad("node-taint", "%q is not key=value:effect with effect NoSchedule, PreferNoSchedule or NoExecute", t)
		}
		o.taints = append(o.taints, taint)
	}
	if o.LogFormat != "text" && o.LogFormat != "json" {
		bad("log-format", "%q is neither text nor json", o.LogFormat)
	}
	return errors.Join(errs...)
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func (o *Options) disabled(part string) bool { return contains(o.Disable, part) }

func parseTaint(s string) (corev1.Taint, bool) {
	kv, effect, ok := strings.Cut(s, ":")
	key, value, _ := strings.Cut(kv, "=")
	e := corev1.TaintEffect(effect)
	known := e == corev1.TaintEffectNoSchedule || e == corev1.TaintEffectPreferNoSchedule || e == corev1.TaintEffectNoExecute
	return corev1.Taint{Key: key, Value: value, Effect: e}, ok && known && len(validation.IsQualifiedName(key)) == 0
}

// defaultAddress is the address this host would reach others from; with no
// route, that of its first link; with no link, loopback.
func defaultAddress() netip.Addr {
	if c, err := net.Dial("udp", "192.0.2.1:9"); err == nil { // sends nothing
		defer c.Close()
		if a, ok := netip.AddrFromSlice(c.LocalAddr().(*net.UDPAddr).IP); ok && !a.IsUnspecified() {
			return a.Unmap()
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
				if ip, ok := netip.AddrFromSlice(n.IP.To4()); ok {
					return ip
				}
			}
		}
	}
	return netip.MustParseAddr("127.0.0.1")
}
