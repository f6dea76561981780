package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"knarr/cluster/kubeletflags"
	"knarr/cluster/proxyflags"
	"knarr/internal/flaghelp"
	"knarr/internal/nearest"
	"knarr/node/containerruntime"
	"knarr/node/containerruntime/registries"
	"knarr/node/kubelet"
)

// NodeOptions are the flags that server and agent share: of one node.
type NodeOptions struct {
	Config          string
	DataDir         string
	NodeName        string
	NodeIP          string
	KubeletPort     int
	KubeletHealthz  int
	NodeLabels      []string
	NodeTaints      []string
	RuntimeEndpoint string
	RuntimeHandlers []string
	PrivateRegistry string
	NoDefault       bool // registry beside its mirrors
	LocalStorage    string
	ProxyArgs       []string
	KubeletArgs     []string
	KubeletConfig   string
	LogFormat       string
	Debug           bool
	gatewayOptions

	hostIPs addresses // as given, or as found
	nodeIPs addresses // those of the cluster's families, the first family first, once that is known
	given   func(flag string) bool
	proxy   *proxyflags.Flags
	mirrors registries.Config
	kubelet *kubeletflags.Flags
	labels  map[string]string
	taints  []corev1.Taint
	// handlers are those of RuntimeHandlers.
	handlers []containerruntime.Handler
}

func (o *NodeOptions) flags(f *pflag.FlagSet) {
	o.given = f.Changed
	f.StringVarP(&o.Config, "config", "c", "/etc/knarr/config.yaml", "`file` with flags as keys, and files *.yaml of the directory of that name with .d, as k3s has them; flags given win")
	f.StringVarP(&o.DataDir, "data-dir", "d", DefaultDataDir, "`directory` that everything of this cluster lives in")
	flaghelp.Group(f, "Flags")
	f.StringVar(&o.NodeName, "node-name", "", "`name` of this node (default: the host name)")
	f.StringVar(&o.NodeIP, "node-ip", "", "`address` of this node, or one of each family (default: those of the default routes, of the cluster's families)")
	f.IntVar(&o.KubeletPort, "kubelet-port", 10250, "`port` the kubelet listens on; without this the one of its configuration")
	f.IntVar(&o.KubeletHealthz, "kubelet-healthz-port", 10248, "`port` on 127.0.0.1 of the kubelet's /healthz; 0: none")
	f.StringSliceVar(&o.NodeLabels, "node-label", nil, "`labels` of this node, key=value")
	f.StringSliceVar(&o.NodeTaints, "node-taint", nil, "`taints` of this node, key=value:effect")
	f.StringVar(&o.RuntimeEndpoint, "container-runtime-endpoint", "", "`socket` of another CRI runtime to use instead of the built-in one")
	f.StringArrayVar(&o.RuntimeHandlers, "container-runtime-handler", nil, "`name=program` that RuntimeClasses can have as their handler on this node: an OCI runtime, which containerd's runc shim drives, a shim, or runc for the built-in one")
	f.StringVar(&o.PrivateRegistry, "private-registry", "/etc/knarr/registries.yaml", "`file` that says where images are fetched from: mirrors, credentials and TLS of registries, in the form of k3s")
	f.BoolVar(&o.NoDefault, "disable-default-registry-endpoint", false, "fetch the images of a registry that has mirrors from these alone")
	f.StringVar(&o.LocalStorage, "default-local-storage-path", "", "`directory` of this node's volumes of the class local-path (default: storage in --data-dir)")
	f.StringArrayVar(&o.ProxyArgs, "kube-proxy-arg", nil, "`key=value` that sets one of upstream's flags of kube-proxy, as knarr kube-proxy --help lists them: its mode, node ports, masquerading, connection tracking")
	f.StringArrayVar(&o.KubeletArgs, "kubelet-arg", nil, "`key=value` that sets one of upstream's flags of the kubelet, as knarr kubelet --help lists them: what is reserved, evictions, images, CPUs, static pods. Those that the cluster decides or has flags of its own for are refused, with what to do: name, labels, addresses, registration, directories and kubeconfig of the node, certificates, who may ask it, runtime, cloud provider, roots of control groups")
	f.StringVar(&o.KubeletConfig, "kubelet-config", "", "`file` with a KubeletConfiguration; --kubelet-arg=config-dir=DIR names files *.conf that change it, and what --kubelet-arg says wins")
	flaghelp.Group(f, "Node")
	o.gatewayOptions.flags(f)
	f.StringVar(&o.LogFormat, "log-format", "text", "`format` of the log: text or json")
	flaghelp.Values(f, "log-format", "text", "json")
	f.BoolVar(&o.Debug, "debug", false, "log more")
	flaghelp.Group(f, "Log")
}

// Load adds what the config file and those of its directory say about flags not given.
func (o *NodeOptions) Load(f *pflag.FlagSet) error {
	all := map[string]setting{}
	err := readSettings(o.Config, f, all)
	if errors.Is(err, os.ErrNotExist) && !f.Changed("config") {
		err = nil
	}
	if err != nil {
		return err
	}
	dir := o.Config + ".d"
	more, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--config: %w", err)
	}
	for _, file := range more {
		if filepath.Ext(file.Name()) != ".yaml" {
			continue
		}
		if err := readSettings(filepath.Join(dir, file.Name()), f, all); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if f.Changed(key) {
			continue
		}
		for _, item := range all[key].items {
			if err := f.Set(key, fmt.Sprint(item)); err != nil { // which marks it as given
				return fmt.Errorf("--config %s: %s: %w", all[key].in, key, err)
			}
		}
	}
	return nil
}

// A setting is what a file says of a flag.
type setting struct {
	items []any
	in    string
}

// readSettings adds what a file says to what others before it said, in k3s' way: in the place of that,
// or after it where the key ends in +.
func readSettings(path string, f *pflag.FlagSet, all map[string]setting) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(b, &values); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) { // x+ after x
		name, v := strings.TrimSuffix(key, "+"), values[key]
		if f.Lookup(name) == nil || name == "config" {
			return fmt.Errorf("--config %s: unknown key %q%s keys are flag names, see knarr %s --help", path, key, cmp.Or(nearest.Hint(name, flagNames(f)), ";"), f.Name())
		}
		items, ok := v.([]any)
		if !ok {
			items = []any{v}
		}
		if name != key {
			items = append(slices.Clone(all[name].items), items...)
		}
		all[name] = setting{items, path}
	}
	return nil
}

func flagNames(f *pflag.FlagSet) (names []string) {
	f.VisitAll(func(one *pflag.Flag) { names = append(names, one.Name) })
	return names
}

// faults gathers everything that is wrong with what a user gave.
type faults struct{ errs []error }

func (f *faults) add(flag, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("--%s: "+format, append([]any{flag}, args...)...))
}

// each adds the faults of a joined error, each of them with the flag.
func (f *faults) each(flag string, err error) {
	for fault := range strings.Lines(err.Error()) {
		f.add(flag, "%s", strings.TrimSuffix(fault, "\n"))
	}
}

func (f *faults) address(flag, s string) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil {
		f.add(flag, "%q is not an IP address", s)
	}
	return a
}

func (f *faults) port(flag string, p int) {
	if p < 1 || p > 65535 {
		f.add(flag, "%d is not a port", p)
	}
}

// validate completes the options and notes everything wrong with them.
func (o *NodeOptions) validate(f *faults) {
	abs, err := filepath.Abs(o.DataDir)
	if err != nil || o.DataDir == "" {
		f.add("data-dir", "%q is not a directory name", o.DataDir)
	}
	o.DataDir = abs
	if o.LocalStorage != "" && !filepath.IsAbs(o.LocalStorage) {
		f.add("default-local-storage-path", "%q is not an absolute path", o.LocalStorage)
	}
	if o.proxy, err = proxyflags.Parse(o.ProxyArgs); err != nil {
		f.add("kube-proxy-arg", "%v", err)
	}
	if o.mirrors, err = registries.Read(o.PrivateRegistry, o.given != nil && o.given("private-registry")); err != nil {
		f.add("private-registry", "%v", err)
	}
	o.mirrors.NoDefault = o.NoDefault
	if o.kubelet, err = kubeletflags.Parse(o.KubeletArgs, o.KubeletConfig); err != nil {
		f.each(o.kubeletSource(), err)
		o.kubelet = nil
	} else {
		if err := o.kubelet.CheckRuntime(o.RuntimeEndpoint); err != nil {
			f.add(o.kubeletSource(), "%v", err)
		}
		o.KubeletPort = o.kubelet.Port(o.KubeletPort, o.given != nil && o.given("kubelet-port"))
	}
	if o.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			f.add("node-name", "this host has no name; give one: %v", err)
		}
		o.NodeName = host
	}
	o.NodeName = strings.ToLower(o.NodeName)
	if e := validation.IsDNS1123Subdomain(o.NodeName); len(e) > 0 {
		f.add("node-name", "%q: %s", o.NodeName, e[0])
	}
	if o.NodeIP == "" {
		o.hostIPs = defaultAddresses()
	} else {
		o.hostIPs = f.addresses("node-ip", o.NodeIP)
	}
	o.gatewayOptions.validate(f)
	o.nodeIPs = o.hostIPs
	f.port("kubelet-port", o.KubeletPort)
	if o.KubeletHealthz != 0 {
		f.port("kubelet-healthz-port", o.KubeletHealthz)
	}
	o.labels = map[string]string{}
	for _, l := range o.NodeLabels {
		k, v, ok := strings.Cut(l, "=")
		if e := validation.IsQualifiedName(k); !ok || len(e) > 0 {
			f.add("node-label", "%q is not key=value", l)
		}
		if e := validation.IsValidLabelValue(v); len(e) > 0 {
			f.add("node-label", "%q: %s", l, e[0])
		}
		o.labels[k] = v
	}
	for _, t := range o.NodeTaints {
		taint, ok := parseTaint(t)
		if !ok {
			f.add("node-taint", "%q is not key=value:effect with effect NoSchedule, PreferNoSchedule or NoExecute", t)
		}
		o.taints = append(o.taints, taint)
	}
	o.validateHandlers(f)
	if o.LogFormat != "text" && o.LogFormat != "json" {
		f.add("log-format", "%q is neither text nor json", o.LogFormat)
	}
}

// validateHandlers notes what is wrong with the handlers of the node's runtime.
func (o *NodeOptions) validateHandlers(f *faults) {
	const flag = "container-runtime-handler"
	o.handlers = nil
	if o.RuntimeEndpoint != "" && len(o.RuntimeHandlers) > 0 {
		f.add(flag, "the runtime of --container-runtime-endpoint has handlers of its own: set them there")
		return
	}
	seen := map[string]bool{"runc": true} // the default
	for _, text := range o.RuntimeHandlers {
		name, program, ok := strings.Cut(text, "=")
		h := containerruntime.Handler{Name: name, Program: program}
		if e := validation.IsDNS1123Label(name); !ok || len(e) > 0 {
			f.add(flag, "%q is not name=program with the name of a handler, such as mine=/usr/bin/crun", text)
		} else if seen[name] {
			f.add(flag, "%q: there is a handler %s already", text, name)
		} else if err := h.Check(); err != nil {
			f.add(flag, "%q: %v", text, err)
		}
		seen[name] = true
		o.handlers = append(o.handlers, h)
	}
}

// kubeletSource are the flags that the kubelet's settings come from.
func (o *NodeOptions) kubeletSource() string {
	switch {
	case o.KubeletConfig == "":
		return "kubelet-arg"
	case len(o.KubeletArgs) == 0:
		return "kubelet-config"
	}
	return "kubelet-config, --kubelet-arg" // of either
}

// checkKubelet notes which settings the kubelet would not start with on this machine: it
// would be started again and again.
func (o *NodeOptions) checkKubelet(f *faults) {
	if o.kubelet == nil {
		return // something else is wrong with them
	}
	c := kubelet.Config{RootDir: layout{o.DataDir}.kubelet(), Settings: o.kubelet.Settings,
		CredentialProviders: o.kubelet.Providers, CredentialProviderBinDir: o.kubelet.ProviderBinDir}
	if err := kubelet.Check(c, o.RuntimeEndpoint == ""); err != nil {
		f.each(o.kubeletSource(), err)
	}
}

func parseTaint(s string) (corev1.Taint, bool) {
	kv, effect, ok := strings.Cut(s, ":")
	key, value, _ := strings.Cut(kv, "=")
	e := corev1.TaintEffect(effect)
	known := e == corev1.TaintEffectNoSchedule || e == corev1.TaintEffectPreferNoSchedule || e == corev1.TaintEffectNoExecute
	return corev1.Taint{Key: key, Value: value, Effect: e}, ok && known && len(validation.IsQualifiedName(key)) == 0
}

// belong chooses the node's addresses as the cluster has its families.
func (o *NodeOptions) belong(pods ranges) error {
	chosen, err := o.hostIPs.ofCluster(pods, o.NodeIP != "")
	if err != nil {
		return fmt.Errorf("--node-ip: %w", err)
	}
	o.nodeIPs = chosen
	return nil
}
