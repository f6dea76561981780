// Package kubeletflags is what may be said of the kubelet, with upstream's names: as
// flags of `knarr kubelet`, by --kubelet-arg and --kubelet-config of a server or agent,
// and in the configuration files that these name, which it reads.
package kubeletflags

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"knarr/internal/flaghelp"
	"knarr/internal/keypair"
	"knarr/internal/nearest"
	"knarr/node/kubelet"
	"knarr/node/kubelet/configuration"
)

// Flags are the kubelet's.
type Flags struct {
	// File is that of a KubeletConfiguration, Dir that of files which change it.
	File, Dir string
	// Providers is the file of a CredentialProviderConfig, or a directory of such files;
	// ProviderBinDir is where its programs are.
	Providers, ProviderBinDir string
	// Settings are what the files and flags say, once they are loaded.
	Settings *configuration.Settings

	flags []assignment
	doc   configuration.Document
	// cluster says that the kubelet is one of a cluster of this program.
	cluster bool
	ignored []string // what was said and changes nothing
	// endpoint is the runtime that a file names, for a kubelet of a cluster.
	endpoint string
	// idleFlags are the flags among them that set no field.
	idleFlags []string
}

// An assignment is a flag and its value.
type assignment struct {
	flag  *configuration.Flag
	value string
}

// The flags of what no KubeletConfiguration says.
const (
	providers      = "image-credential-provider-config"
	providerBinDir = "image-credential-provider-bin-dir"
)

// ofCluster are the flags that a cluster has a flag of its own for, or "" where it is
// the cluster's alone.
var ofCluster = map[string]string{
	"hostname-override": "node-name", "node-ip": "node-ip", "node-labels": "node-label", "port": "kubelet-port",
	"healthz-port": "kubelet-healthz-port", "container-runtime-endpoint": "container-runtime-endpoint",
	"cloud-provider": "cloud-provider", "root-dir": "data-dir", "kubeconfig": "", "bootstrap-kubeconfig": "", "cert-dir": "",
	"client-ca-file": "", "tls-cert-file": "", "tls-private-key-file": "", "address": "", "enable-server": "",
	"register-node": "", "cgroup-root": "", "image-service-endpoint": "", "cgroups-per-qos": "",
	"anonymous-auth": "", "authentication-token-webhook": "", "authorization-mode": "", "healthz-bind-address": "",
}

// Bind declares the flags of a kubelet that runs alone.
func (f *Flags) Bind(set *pflag.FlagSet) {
	set.StringVar(&f.File, "config", "", "`file` with a KubeletConfiguration; flags given win")
	set.StringVar(&f.Dir, "config-dir", "", "`directory` of files *.conf that change it, in the order of their names")
	set.StringVar(&f.Providers, providers, "", "`file` with a CredentialProviderConfig, or directory of such files: which programs are asked for what images are pulled with")
	set.StringVar(&f.ProviderBinDir, providerBinDir, "", "`directory` of those programs")
	defaults := defaultValues()
	for i := range configuration.Flags {
		flag := &configuration.Flags[i]
		help := flag.Help
		if why := flag.Idle(); why != "" {
			help = "changes nothing here: " + why
		}
		bound := set.VarPF(&value{f, flag, ""}, flag.Name, "", help)
		if flag.Bool {
			bound.NoOptDefVal = "true"
		}
		if flag.Idle() == "" {
			bound.DefValue = defaults[flag.Name]
		}
		if of := configuration.Choices[flag.Name]; of != nil {
			flaghelp.Values(set, flag.Name, of...)
		}
	}
	f.bindIdle(set)
}

// defaultValues are those of the flags, where help says nothing else of them.
func defaultValues() map[string]string {
	var s configuration.Settings
	configuration.Default(&s)
	values, err := configuration.FlagValues(&s)
	if err != nil {
		return nil
	}
	for name, v := range values {
		if v == "0s" || v == "0" || v == "[]" || strings.Contains(configuration.FlagNamed(name).Help, "(default") {
			delete(values, name)
		}
	}
	return values
}

// idleSwitches are the idle flags that may stand without a value.
var idleSwitches = []string{
	"experimental-allocatable-ignore-eviction", "storage-driver-secure", "enable-load-reader",
	"log-cadvisor-usage",
}

// bindIdle declares upstream's flags that change nothing, but for those of the log, which the
// program has itself; help does not name them.
func (f *Flags) bindIdle(set *pflag.FlagSet) {
	for name := range configuration.IdleFlags {
		if set.Lookup(name) != nil {
			continue
		}
		bound := set.VarPF(unheardValue{f, name}, name, "", "changes nothing here")
		bound.Hidden = true
		if slices.Contains(idleSwitches, name) {
			bound.NoOptDefVal = "true"
		}
	}
}

// value notes what is said of a flag.
type value struct {
	of   *Flags
	flag *configuration.Flag
	is   string
}

func (v *value) String() string { return v.is }
func (v *value) Type() string {
	if v.flag != nil && v.flag.Bool {
		return "bool"
	}
	return "string"
}

// Set checks and notes a value. One that says several things may be said again.
func (v *value) Set(s string) error {
	var try configuration.Document
	if err := try.Set(v.flag, s); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "--"+v.flag.Name+": "))
	}
	v.is = s
	v.of.flags = append(v.of.flags, assignment{v.flag, s})
	return nil
}

// Parse reads settings of the form key=value, of a node of a cluster, and a
// configuration file.
func Parse(settings []string, file string) (*Flags, error) {
	f := &Flags{cluster: true, File: file}
	for _, s := range settings {
		name, value, ok := strings.Cut(strings.TrimLeft(s, "-"), "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form key=value", s)
		}
		switch flag := configuration.FlagNamed(name); {
		case name == "config":
			f.File = value
		case name == "config-dir":
			f.Dir = value
		case name == providers:
			f.Providers = value
		case name == providerBinDir:
			f.ProviderBinDir = value
		case isOfCluster(name):
			return nil, fmt.Errorf("%s %s", name, ofClusterCure(name))
		case flag == nil && idleFlag(name) != "":
			f.unheard(name)
		case flag == nil && slices.Contains(removed, name):
			return nil, fmt.Errorf("upstream has removed %q from its kubelet; remove it here", name)
		case flag == nil:
			return nil, fmt.Errorf("there is no %q%s knarr kubelet --help lists them", name, cmp.Or(nearest.Hint(name, Keys()), ";"))
		default:
			var try configuration.Document
			if err := try.Set(flag, value); err != nil {
				return nil, err
			}
			f.flags = append(f.flags, assignment{flag, value})
		}
	}
	return f, f.Load()
}

// idleFlag says why a flag of upstream's changes nothing here; "" if it is none of those.
// cAdvisor's may have underscores.
func idleFlag(name string) string {
	name = strings.ReplaceAll(name, "_", "-")
	return cmp.Or(configuration.IdleFlags[name], configuration.LogFlags[name])
}

// unheard notes that a flag was given which changes nothing.
func (f *Flags) unheard(name string) {
	if text := "--" + name + " (" + idleFlag(name) + ")"; !slices.Contains(f.idleFlags, text) {
		f.idleFlags = append(f.idleFlags, text)
	}
}

// unheardValue is a flag of those, of a kubelet that runs alone.
type unheardValue struct {
	of   *Flags
	name string
}

func (v unheardValue) String() string   { return "" }
func (v unheardValue) Type() string     { return "string" }
func (v unheardValue) Set(string) error { v.of.unheard(v.name); return nil }

func isOfCluster(flag string) bool {
	_, ok := ofCluster[flag]
	return ok
}

// ofClusterCure is why a node of a cluster is not given a flag, and what to do.
func ofClusterCure(flag string) string {
	switch of := ofCluster[flag]; {
	case flag == "cloud-provider": // which an agent has no flag for
		return "is the cluster's; give its servers --cloud-provider"
	case of != "":
		return "is the cluster's; use --" + of
	}
	return "is the cluster's; remove it"
}

// CheckRuntime refuses a file that names another runtime than the one that is used, of
// --container-runtime-endpoint, or "" for the one in the process: containers would not run where
// the file says.
func (f *Flags) CheckRuntime(used string) error {
	says := strings.TrimPrefix(f.endpoint, "unix://")
	if says == "" || says == strings.TrimPrefix(used, "unix://") {
		return nil
	}
	return fmt.Errorf("containerRuntimeEndpoint %q %s", f.endpoint, ofClusterCure("container-runtime-endpoint"))
}

// removed are flags that upstream's kubelet had and has no more, which old files of units have.
var removed = []string{
	"network-plugin", "network-plugin-mtu", "network-plugin-dir", "cni-conf-dir", "cni-bin-dir", "cni-cache-dir", "non-masquerade-cidr",
	"container-runtime", "pod-infra-container-image", "docker", "docker-endpoint", "docker-root", "docker-only", "docker-tls", "docker-tls-ca", "docker-tls-cert", "docker-tls-key",
	"docker-env-metadata-whitelist", "experimental-dockershim-root-directory", "image-pull-progress-deadline", "redirect-container-streaming",
	"keep-terminated-pod-volumes", "dynamic-config-dir", "bootstrap-checkpoint-path", "experimental-bootstrap-kubeconfig", "experimental-kernel-memcg-notification",
	"experimental-check-node-capabilities-before-mount", "experimental-fail-swap-on", "experimental-nvidia-gpus", "experimental-logging-sanitization", "allow-privileged", "enable-custom-metrics",
	"host-ipc-sources", "host-network-sources", "host-pid-sources", "seccomp-profile-root", "exit-after-run", "chaos-chance", "really-crash-for-testing",
	"register-schedulable", "require-kubeconfig", "api-servers", "configure-cbr0", "reconcile-cidr", "cadvisor-port", "low-diskspace-threshold-mb",
	"outofdisk-transition-frequency", "babysit-daemons", "cloud-config", "azure-container-registry-config", "master-service-namespace",
	"alsologtostderr", "logtostderr", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "skip-headers", "skip-log-headers", "add-dir-header", "one-output", "stderrthreshold",
}

// isFixed says of a flag that of a kubelet of a cluster a file does not say it either.
func isFixed(flag string) bool { return isOfCluster(flag) && flag != "port" }

// Keys are the names of what Parse takes.
func Keys() []string {
	names := []string{"config", "config-dir", providers, providerBinDir}
	for _, f := range configuration.Flags {
		if !isOfCluster(f.Name) {
			names = append(names, f.Name)
		}
	}
	return names
}

// Load reads the files, then what the flags say over them, and reports everything
// that is wrong. What changes nothing here is logged.
func (f *Flags) Load() error {
	if f.File != "" {
		if err := f.doc.File(f.File); err != nil {
			return err
		}
	}
	if f.Dir != "" {
		if err := f.doc.Dir(f.Dir); err != nil {
			return err
		}
	}
	if err := f.say(&f.doc); err != nil {
		return err
	}
	f.ignored = f.idle()
	if f.cluster { // /configz shows what holds: that nobody gets in unasked, whatever was said
		f.endpoint = f.doc.Text("containerRuntimeEndpoint")
		for _, flag := range configuration.Flags {
			if isFixed(flag.Name) {
				f.doc.Remove(flag.Field)
			}
		}
	}
	if _, err := f.doc.Settings(); err != nil { // what changes nothing is checked too
		return err
	}
	if len(f.ignored) > 0 { // what is wrong is not "as by default"
		slog.Warn("kubelet: these settings change nothing here", "fields", strings.Join(f.ignored, ", "))
	}
	f.doc.DropIdle(!f.cluster)
	var err error
	if f.Settings, err = f.doc.Settings(); err == nil {
		warnMissing(f.Settings)
	}
	if err == nil && f.cluster {
		f.Settings.EnableDebugFlagsHandler = new(false) // the level of the log is not the kubelet's
	}
	return err
}

// warnMissing logs which paths lead nowhere: a kubelet starts all the same, since they may come
// later, but a mistyped one never does. The directory of static pods is made, to be watched, so
// that it is missed once.
func warnMissing(s *configuration.Settings) {
	for _, of := range []struct{ field, path string }{{"staticPodPath (--pod-manifest-path)", s.StaticPodPath}, {"resolvConf (--resolv-conf)", *s.ResolverConfig}} {
		if of.path == "" {
			continue
		}
		if _, err := os.Stat(of.path); errors.Is(err, fs.ErrNotExist) {
			slog.Warn("kubelet: this path does not exist", "field", of.field, "path", of.path)
		}
	}
}

// say adds what the flags say to a document.
func (f *Flags) say(doc *configuration.Document) error {
	again := map[string]bool{}
	for _, s := range f.flags {
		if err := doc.Add(s.flag, s.value, again[s.flag.Name]); err != nil {
			return err
		}
		again[s.flag.Name] = true
	}
	return nil
}

// Values are those of the flags, as they were given or by default, whatever files say; of
// a kubelet of a cluster, of those that may be given.
func (f *Flags) Values() map[string]string {
	var doc configuration.Document
	_ = f.say(&doc) // Load has looked
	s, _ := doc.Settings()
	values, err := configuration.FlagValues(s)
	if err != nil {
		return map[string]string{}
	}
	if f.cluster {
		for name := range values {
			if isOfCluster(name) {
				delete(values, name)
			}
		}
	}
	values["config"], values["config-dir"], values[providers], values[providerBinDir] = f.File, f.Dir, f.Providers, f.ProviderBinDir
	return values
}

// Logging is what the files say of the log; "" and nil where they say nothing.
func (f *Flags) Logging() (format string, verbosity *int) {
	if f.doc.Given("logging.format") {
		format = f.Settings.Logging.Format
	}
	if f.doc.Given("logging.verbosity") {
		verbosity = new(int(f.Settings.Logging.Verbosity))
	}
	return format, verbosity
}

// Port is the port to serve on of a kubelet of a cluster: what the command line says, if
// it does, else what the files do.
func (f *Flags) Port(flag int, given bool) int {
	if !given && f.doc.Given("port") {
		flag = int(f.Settings.Port)
	}
	f.Settings.Port = int32(flag)
	return flag
}

// idle are the fields that were said and change nothing.
func (f *Flags) idle() []string {
	fields := append(f.doc.Idle(!f.cluster), f.idleFlags...)
	if f.cluster {
		if f.doc.Given("rotateCertificates") {
			fields = append(fields, "rotateCertificates (a server and an agent renew their certificates themselves)")
		}
		for _, flag := range configuration.Flags {
			if flag.Name == "container-runtime-endpoint" {
				continue // CheckRuntime refuses another one
			}
			if isFixed(flag.Name) && f.doc.Given(flag.Field) {
				fields = append(fields, flag.Field+" ("+ofClusterCure(flag.Name)+")")
			}
		}
	}
	slices.Sort(fields)
	return fields
}

// Apply completes what a kubelet is made of with what was said. Of one of a cluster the
// addresses, certificates and control groups stay.
func (f *Flags) Apply(c *kubelet.Config) error {
	taints := c.Settings
	s := f.Settings.DeepCopy()
	if taints != nil {
		s.RegisterWithTaints = append(slices.Clone(taints.RegisterWithTaints), s.RegisterWithTaints...)
	}
	c.Settings = s
	c.CredentialProviders, c.CredentialProviderBinDir = f.Providers, f.ProviderBinDir
	c.Flags = f.Values
	if f.doc.Given("clusterDNS") || len(c.ClusterDNS) == 0 {
		c.ClusterDNS = nil
		for _, a := range s.ClusterDNS {
			c.ClusterDNS = append(c.ClusterDNS, net.ParseIP(a))
		}
	}
	if s.ClusterDomain != "" {
		c.ClusterDomain = s.ClusterDomain
	}
	if c.ResolvConf = *s.ResolverConfig; c.ResolvConf == "" {
		c.ResolvConf = "-" // none
	}
	if s.PodLogsDir != "/var/log/pods" {
		c.PodLogsDir = s.PodLogsDir
	}
	if s.ReadOnlyPort != 0 {
		c.ReadOnly = net.JoinHostPort(s.Address, port(s.ReadOnlyPort))
	}
	if f.cluster {
		return nil
	}
	if f.doc.Given("address") || f.doc.Given("port") {
		c.Listen = net.JoinHostPort(s.Address, port(s.Port))
	}
	if c.Healthz = "-"; *s.HealthzPort != 0 {
		c.Healthz = net.JoinHostPort(s.HealthzBindAddress, port(*s.HealthzPort))
	}
	c.RuntimeEndpoint, c.ImageEndpoint = s.ContainerRuntimeEndpoint, s.ImageServiceEndpoint
	c.CgroupParent = path.Join("/", s.CgroupRoot, "kubepods")
	c.CertFile, c.KeyFile = s.TLSCertFile, s.TLSPrivateKeyFile
	if c.ClientCAFile = s.Authentication.X509.ClientCAFile; c.ClientCAFile != "" {
		if _, err := keypair.Authorities(c.ClientCAFile); err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	return nil
}

func port(n int32) string { return strconv.Itoa(int(n)) }
