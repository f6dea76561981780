package cluster

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"knarr/cluster/apiflags"
	"knarr/node/cni"
)

// Options are the flags of `knarr server`; keys of the config file are the
// flag names.
type Options struct {
	NodeOptions
	BindAddress         string
	AdvertiseAddress    string
	HTTPSListenPort     int
	TLSSAN              []string
	Token               string
	TokenFile           string
	ClusterCIDR         string
	ServiceCIDR         string
	ServiceNodePorts    string
	ClusterDNS          string
	ClusterDomain       string
	FlannelBackend      string
	WriteKubeconfig     string
	WriteKubeconfigMode string
	Disable             []string
	DisableAgent        bool
	APIServerArgs       []string

	api                      *apiflags.Flags
	serviceCIDR, clusterCIDR netip.Prefix
	clusterDNS               netip.Addr
	advertise                netip.Addr
	nodePorts                [2]int32
	mode                     os.FileMode
	secret                   string // of joining nodes; empty: made by the first start
}

// Flags binds the options to their flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	o.NodeOptions.flags(f)
	f.StringVar(&o.BindAddress, "bind-address", "0.0.0.0", "`address` the API server listens on")
	f.StringVar(&o.AdvertiseAddress, "advertise-address", "", "`address` that pods reach the API server at (default: --node-ip)")
	f.IntVar(&o.HTTPSListenPort, "https-listen-port", 6443, "`port` the API server listens on")
	f.StringSliceVar(&o.TLSSAN, "tls-san", nil, "more `names` or addresses for the API server's certificate")
	f.StringVarP(&o.Token, "token", "t", "", "`secret` that nodes join with (default: one made at the first start; also KNARR_TOKEN)")
	f.StringVar(&o.TokenFile, "token-file", "", "`file` with that secret")
	f.StringVar(&o.ClusterCIDR, "cluster-cidr", "10.42.0.0/16", "`range` of pod addresses")
	f.StringVar(&o.ServiceCIDR, "service-cidr", "10.43.0.0/16", "`range` of service addresses")
	f.StringVar(&o.ServiceNodePorts, "service-node-port-range", "30000-32767", "`range` of node ports")
	f.StringVar(&o.ClusterDNS, "cluster-dns", "", "`address` of the DNS service (default: the tenth of --service-cidr)")
	f.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "`domain` of names in the cluster")
	f.StringVar(&o.FlannelBackend, "flannel-backend", "vxlan", "how pods reach those of other nodes: vxlan, host-gw (the nodes must share a link) or none")
	f.StringVarP(&o.WriteKubeconfig, "write-kubeconfig", "o", "", "write the administrator's kubeconfig to this `file` too")
	f.StringVar(&o.WriteKubeconfigMode, "write-kubeconfig-mode", "0600", "octal `mode` of that file")
	f.StringSliceVar(&o.Disable, "disable", nil, "`parts` not to run: coredns, kube-proxy, scheduler, controller-manager, network")
	f.StringArrayVar(&o.APIServerArgs, "kube-apiserver-arg", nil, "`key=value` that sets one of upstream's flags of the API server: authentication, authorisation, admission plugins, encryption, audit")
	f.BoolVar(&o.DisableAgent, "disable-agent", false, "run no node on this server")
}

// backends are what --flannel-backend takes.
var backends = []string{cni.VXLAN, cni.HostGateway, cni.NoBackend}

// Disableable are the parts that --disable takes.
var Disableable = []string{"coredns", "kube-proxy", "scheduler", "controller-manager", "network"}

// Validate completes the options and reports everything wrong with them.
func (o *Options) Validate() error {
	var f faults
	bad := f.add
	o.NodeOptions.validate(&f)
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
	switch {
	case o.ClusterDNS != "":
		o.clusterDNS = f.address("cluster-dns", o.ClusterDNS)
		if o.clusterDNS.IsValid() && o.serviceCIDR.IsValid() && !o.serviceCIDR.Contains(o.clusterDNS) {
			bad("cluster-dns", "%s is not within --service-cidr %s", o.clusterDNS, o.serviceCIDR)
		}
	case o.serviceCIDR.IsValid():
		o.clusterDNS = o.serviceCIDR.Addr()
		for range 10 {
			o.clusterDNS = o.clusterDNS.Next()
		}
	}
	o.advertise = o.nodeIP
	if o.AdvertiseAddress != "" {
		o.advertise = f.address("advertise-address", o.AdvertiseAddress)
	}
	f.address("bind-address", o.BindAddress)
	f.port("https-listen-port", o.HTTPSListenPort)
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
		if !slices.Contains(Disableable, d) {
			bad("disable", "there is no part %q; parts are %s", d, strings.Join(Disableable, ", "))
		}
	}
	if !slices.Contains(backends, o.FlannelBackend) {
		bad("flannel-backend", "there is no %q; there are %s", o.FlannelBackend, strings.Join(backends, ", "))
	}
	if o.api, err = apiflags.Parse(o.APIServerArgs); err != nil {
		bad("kube-apiserver-arg", "%v", err)
	}
	if o.secret, err = ownSecret(readToken(o.Token, o.TokenFile)); err != nil {
		f.errs = append(f.errs, err)
	}
	return errors.Join(f.errs...)
}

func (o *Options) disabled(part string) bool { return slices.Contains(o.Disable, part) }
