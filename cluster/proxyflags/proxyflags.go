// Package proxyflags is what may be said of kube-proxy, with upstream's names: as flags
// of `knarr kube-proxy`, by --kube-proxy-arg of a server or agent, or in upstream's
// configuration file, which it reads.
package proxyflags

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"knarr/cluster/componentflags"
	"knarr/internal/flaghelp"
	"knarr/node/kubeproxy"
	"knarr/node/kubeproxy/conntrack"
	"knarr/node/kubeproxy/ipvs"
	"knarr/node/kubeproxy/mode"
)

// Flags are kube-proxy's.
type Flags struct {
	// Kubeconfig is what the configuration file says of it; NodeName and ClusterCIDR are
	// of a proxy that runs alone.
	Kubeconfig, NodeName, ClusterCIDR string
	Healthz, Metrics                  string

	configFile, nodePorts, mode, scheduler, detectLocal string
	masqueradeAll                                       bool
	limits                                              conntrack.Limits
	timeouts                                            ipvs.Timeouts
	nodePortRanges, clusterCIDRs                        []netip.Prefix

	given func(flag string) bool
}

// alone are the flags that a cluster has names of its own for.
var ofNode = map[string]string{
	"hostname-override": "is the cluster's; use --node-name",
	"cluster-cidr":      "is the cluster's; use --cluster-cidr",
}

// Bind declares the flags.
func (p *Flags) Bind(f *pflag.FlagSet) {
	p.given = f.Changed
	f.StringVar(&p.configFile, "config", "", "`file` with a KubeProxyConfiguration; flags given win")
	f.StringVar(&p.NodeName, "hostname-override", "", "`name` of this node (default: the host name)")
	f.StringVar(&p.ClusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses; what comes from elsewhere is masqueraded")
	f.StringVar(&p.detectLocal, "detect-local-mode", byRange, "`way` to tell pods from others: ClusterCIDR, by --cluster-cidr")
	flaghelp.Values(f, "detect-local-mode", byRange)
	f.BoolVar(&p.masqueradeAll, "masquerade-all", false, "masquerade all connections to cluster IPs, those of pods too")
	f.StringVar(&p.Healthz, "healthz-bind-address", defaultHealthz, "`address` of /healthz and /livez; empty: none")
	f.StringVar(&p.Metrics, "metrics-bind-address", "127.0.0.1:10249", "`address` of /metrics and /proxyMode; empty: none")
	f.StringVar(&p.nodePorts, "nodeport-addresses", "primary", "`ranges` of this node's addresses that node ports are at; primary: the first address of each family of its Node")
	f.StringVar(&p.mode, "proxy-mode", mode.Default, "`way` in which connections reach endpoints: "+strings.Join(mode.Names(), ", "))
	flaghelp.Values(f, "proxy-mode", mode.Names()...)
	flaghelp.Group(f, "Proxy")
	f.StringVar(&p.scheduler, "ipvs-scheduler", "rr", "`way` in which the mode ipvs chooses an endpoint: "+strings.Join(ipvs.Schedulers, ", "))
	flaghelp.Values(f, "ipvs-scheduler", ipvs.Schedulers...)
	f.DurationVar(&p.timeouts.TCP, "ipvs-tcp-timeout", 0, "`time` that the mode ipvs remembers an idle TCP connection; 0: the kernel's")
	f.DurationVar(&p.timeouts.TCPFin, "ipvs-tcpfin-timeout", 0, "`time` that it remembers one after a FIN; 0: the kernel's")
	f.DurationVar(&p.timeouts.UDP, "ipvs-udp-timeout", 0, "`time` that it remembers the last datagram; 0: the kernel's")
	flaghelp.Group(f, "IPVS")
	d := conntrack.DefaultLimits
	f.IntVar(&p.limits.MaxPerCore, "conntrack-max-per-core", d.MaxPerCore, "`number` of connections to track for each core; 0: the kernel's limit stays")
	f.IntVar(&p.limits.Min, "conntrack-min", d.Min, "least `number` of connections to track")
	f.DurationVar(&p.limits.Established, "conntrack-tcp-timeout-established", d.Established, "`time` that an idle TCP connection is tracked; 0: the kernel's")
	f.DurationVar(&p.limits.CloseWait, "conntrack-tcp-timeout-close-wait", d.CloseWait, "`time` that one in CLOSE_WAIT is tracked; 0: the kernel's")
	f.BoolVar(&p.limits.Liberal, "conntrack-tcp-be-liberal", false, "take TCP packets out of their window for good")
	f.DurationVar(&p.limits.UDP, "conntrack-udp-timeout", 0, "`time` that a UDP flow without an answer is tracked; 0: the kernel's")
	f.DurationVar(&p.limits.UDPStream, "conntrack-udp-timeout-stream", 0, "`time` that one with answers is tracked; 0: the kernel's")
	flaghelp.Group(f, "Connection tracking")
}

const defaultHealthz = "0.0.0.0:10256"

// byRange is the only way to tell pods from others.
const byRange = "ClusterCIDR"

// Parse reads settings of the form key=value, of a node of a cluster.
func Parse(settings []string) (*Flags, error) {
	p := &Flags{}
	if err := componentflags.Set(p.Bind, settings, ofNode); err != nil {
		return nil, err
	}
	return p, p.Load()
}

// Keys are the names of what Parse takes.
func Keys() []string { return componentflags.Keys(new(Flags).Bind, ofNode) }

// Load reads the configuration file, and reports everything wrong with what was said.
func (p *Flags) Load() error {
	var errs []error
	if p.configFile != "" {
		var c configuration
		if err := c.read(p.configFile); err != nil {
			return err
		}
		c.apply(p, p.given)
	}
	if err := mode.Check(p.mode); err != nil {
		errs = append(errs, fmt.Errorf("--proxy-mode: %w", err))
	}
	if !slices.Contains(ipvs.Schedulers, p.scheduler) {
		errs = append(errs, fmt.Errorf("--ipvs-scheduler: no scheduler %q; there are %s", p.scheduler, strings.Join(ipvs.Schedulers, ", ")))
	}
	if p.detectLocal != byRange {
		errs = append(errs, fmt.Errorf("--detect-local-mode: %q is not known here; use %s", p.detectLocal, byRange))
	}
	if p.limits.MaxPerCore < 0 || p.limits.Min < 0 {
		errs = append(errs, errors.New("--conntrack-max-per-core, --conntrack-min: a number of connections is not negative"))
	}
	var err error
	if p.clusterCIDRs, err = ranges("cluster-cidr", p.ClusterCIDR); err != nil {
		errs = append(errs, err)
	}
	if p.nodePortRanges, err = ranges("nodeport-addresses", strings.TrimPrefix(p.nodePorts, "primary")); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func ranges(flag, s string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("--%s: %q is not a range such as 10.42.0.0/16", flag, part)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Everywhere has /healthz at all addresses of a node of a cluster with IPv6, unless an
// address was given.
func (p *Flags) Everywhere() {
	if !p.given("healthz-bind-address") && p.Healthz == defaultHealthz {
		p.Healthz = "[::]:10256"
	}
}

// Records are the files that remember what was changed on this machine, until Restore;
// without names nothing is remembered.
type Records struct{ Mode, Conntrack string }

// Open completes c with what was said, sets the limits of connection tracking, and opens
// the dataplane of the mode.
func (p *Flags) Open(c kubeproxy.Config, r Records) (kubeproxy.Config, error) {
	if len(c.ClusterCIDRs) == 0 {
		c.ClusterCIDRs = p.clusterCIDRs
	}
	c.Healthz, c.Metrics, c.NodePorts, c.MasqueradeAll, c.Mode = p.Healthz, p.Metrics, p.nodePortRanges, p.masqueradeAll, p.mode
	if err := p.limits.Set(r.Conntrack); err != nil {
		return c, err
	}
	dataplane, err := mode.Open(p.mode, r.Mode, mode.Config{
		Table: c.Table, ClusterCIDRs: c.ClusterCIDRs, NodePorts: c.NodePorts, Scheduler: p.scheduler, Timeouts: p.timeouts,
	})
	c.Dataplane = dataplane
	return c, err
}

// Restore removes what the proxy of a table has left in the kernel, and gives the limits
// of connection tracking back what they were.
func (r Records) Restore(table string) error {
	return errors.Join(mode.Forget(r.Mode, table), conntrack.Restore(r.Conntrack))
}
