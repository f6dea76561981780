package cluster

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"knarr/addons/gateway/acme"
	"knarr/cluster/apiflags"
	"knarr/cluster/controllerflags"
	"knarr/cluster/schedulerflags"
	"knarr/controlplane/cloudcontrollermanager/baremetal"
	"knarr/internal/flaghelp"
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
	Server              string
	Token               string
	TokenFile           string
	ServerToken         string
	ClusterInit         bool
	EtcdPeerPort        int
	ClusterCIDR         string
	ServiceCIDR         string
	NodeMaskIPv4        int
	NodeMaskIPv6        int
	ServiceNodePorts    string
	ClusterDNS          string
	ClusterDomain       string
	FlannelBackend      string
	NoNetworkPolicy     bool
	NoKubeProxy         bool
	WriteKubeconfig     string
	WriteKubeconfigMode string
	Disable             []string
	EmbeddedRegistry    bool
	TrustedRegistry     bool
	DisableAgent        bool
	CloudProvider       string
	CloudConfig         string
	APIServerArgs       []string
	ControllerArgs      []string
	SchedulerArgs       []string
	ACMEDirectory       string
	ACMEEmail           string
	ACMECA              string

	datastore                  datastoreOptions
	api                        *apiflags.Flags
	controllers                *controllerflags.Flags
	scheduler                  *schedulerflags.Flags
	serviceCIDRs, clusterCIDRs ranges
	clusterDNS                 addresses
	acme                       *acme.Config // nil: certificates are not got from anybody
	foreign                    error        // why this machine cannot be of the cluster's families
	advertise                  netip.Addr
	nodePorts                  [2]int32
	mode                       os.FileMode
	secret                     string // of joining nodes; empty: made by the first start
	serverSecret               string // of joining servers; the same
	joinWith                   joinToken
}

// Flags binds the options to their flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	o.NodeOptions.flags(f)
	f.StringVar(&o.BindAddress, "bind-address", "", "`address` the API server listens on (default: all of the cluster's families)")
	f.StringVar(&o.AdvertiseAddress, "advertise-address", "", "`address` that pods reach the API server at (default: --node-ip)")
	f.IntVar(&o.HTTPSListenPort, "https-listen-port", 6443, "`port` the API server listens on")
	f.StringSliceVar(&o.TLSSAN, "tls-san", nil, "more `names` or addresses for the API server's certificate")
	flaghelp.Group(f, "API server")
	f.StringVarP(&o.Server, "server", "s", "", "`URL` of a server of the cluster that this one joins as a further server, such as https://host:6443")
	f.StringVarP(&o.Token, "token", "t", "", "`secret` that nodes join with (default: one made at the first start; also KNARR_TOKEN); with --server, what to join with: server-token in that server's --data-dir")
	f.StringVar(&o.TokenFile, "token-file", "", "`file` with that secret")
	f.StringVar(&o.ServerToken, "server-token", "", "`secret` that further servers join with (default: one made at the first start)")
	f.BoolVar(&o.ClusterInit, "cluster-init", false, "open etcd to further servers at once, not when the first of them joins")
	f.IntVar(&o.EtcdPeerPort, "etcd-peer-port", 2380, "`port` that the etcd of further servers reaches this one's at")
	flaghelp.Group(f, "Joining, and further servers")
	o.datastore.flags(f)
	flaghelp.Group(f, "Datastore")
	f.StringVar(&o.ClusterCIDR, "cluster-cidr", "", "`range` of pod addresses, or one of each family, the first family first (default: "+defaultPods[false]+", "+defaultPods[true]+", by the families of the other ranges or --node-ip)")
	f.StringVar(&o.ServiceCIDR, "service-cidr", "", "`range` of service addresses, of the same families (default: "+defaultServices[false]+", "+defaultServices[true]+")")
	f.IntVar(&o.NodeMaskIPv4, "node-cidr-mask-size-ipv4", 0, "`length` of the prefix of each node's part of an IPv4 --cluster-cidr (default: 24, or that of a smaller range)")
	f.IntVar(&o.NodeMaskIPv6, "node-cidr-mask-size-ipv6", 0, "`length` of the prefix of each node's part of an IPv6 --cluster-cidr (default: 64, or that of a smaller range)")
	f.StringVar(&o.ServiceNodePorts, "service-node-port-range", "30000-32767", "`range` of node ports")
	f.StringVar(&o.ClusterDNS, "cluster-dns", "", "`address` of the DNS service, or one of each family (default: the tenth of each --service-cidr)")
	f.StringVar(&o.ClusterDomain, "cluster-domain", defaultDomain, "`domain` of names in the cluster")
	f.StringVar(&o.FlannelBackend, "flannel-backend", "vxlan", "`way` in which pods reach those of other nodes: vxlan, vxlan-direct (without the tunnel between nodes that share a link, which must let pods' addresses pass; most clouds' do not), host-gw (the nodes must share a link), wireguard-native (encrypted); or none: the pod network is another's, in /etc/cni/net.d and /opt/cni/bin")
	flaghelp.Values(f, "flannel-backend", backends...)
	f.BoolVar(&o.NoKubeProxy, "disable-kube-proxy", false, "leave Services to another proxy, such as that of a pod network")
	f.BoolVar(&o.NoNetworkPolicy, "disable-network-policy", false, "hold no pod to NetworkPolicies, as for a pod network that does so itself")
	f.StringVar(&o.ACMEEmail, "acme-email", "", "`address` for Let's Encrypt's notices: Ingresses with the annotation knarr.io/acme get certificates from there, whose terms of service this accepts")
	f.StringVar(&o.ACMEDirectory, "acme-directory", "", "`URL` of another authority that speaks ACME, for which the same holds")
	f.StringVar(&o.ACMECA, "acme-ca", "", "`file` with the authorities of that URL's own certificate (default: the system's)")
	flaghelp.Group(f, "Network")
	f.StringVarP(&o.WriteKubeconfig, "write-kubeconfig", "o", "", "write the administrator's kubeconfig to this `file` too")
	f.StringVar(&o.WriteKubeconfigMode, "write-kubeconfig-mode", "0600", "octal `mode` of that file")
	flaghelp.Group(f, "Flags")
	f.BoolVar(&o.EmbeddedRegistry, "embedded-registry", false, "nodes get images that need no credentials from each other where a registry does not answer: by digest, or by a tag that two other nodes have and all that have it agree on; all servers the same")
	f.BoolVar(&o.TrustedRegistry, "embedded-registry-trusted", false, "the same, but any one node's word is taken for what a tag stands for, as where all nodes are one owner's")
	f.StringSliceVar(&o.Disable, "disable", nil, "`parts` not to run: coredns, kube-proxy, metrics-server, local-storage, servicelb, ingress, scheduler, controller-manager, network, network-policy")
	flaghelp.Values(f, "disable", Disableable...)
	f.StringArrayVar(&o.APIServerArgs, "kube-apiserver-arg", nil, "`key=value` that sets one of upstream's flags of the API server: authentication, authorisation, admission plugins, encryption, audit")
	f.StringArrayVar(&o.ControllerArgs, "kube-controller-manager-arg", nil, "`key=value` that sets one of upstream's flags of the controllers, as knarr controller-manager --help lists them: which run, how many objects at once, silent nodes, ended pods, autoscalers")
	f.StringArrayVar(&o.SchedulerArgs, "kube-scheduler-arg", nil, "`key=value` that sets one of upstream's flags of the scheduler: config=FILE, with the names of profiles")
	f.BoolVar(&o.DisableAgent, "disable-agent", false, "run no node on this server")
	flaghelp.Group(f, "Parts")
	f.StringVar(&o.CloudProvider, "cloud-provider", "", "`external`: every new node is tainted until a cloud controller manager has initialised it")
	flaghelp.Values(f, "cloud-provider", externalCloud)
	f.StringVar(&o.CloudConfig, "cloud-config", "", "`file` that lists the machines, by which this server's own cloud controllers initialise the nodes (default: somebody else's do)")
	flaghelp.Group(f, "Cloud")
}

// externalCloud is the only cloud provider that nodes know.
const externalCloud = "external"

// backends are what --flannel-backend takes.
var backends = []string{cni.VXLAN, cni.DirectVXLAN, cni.HostGateway, cni.WireGuard, cni.NoBackend}

// Disableable are the parts that --disable takes.
var Disableable = []string{"coredns", "kube-proxy", "metrics-server", "local-storage", serviceLB, ingressPart, "scheduler", "controller-manager", "network", networkPolicy}

// cloudControllers are the part that --cloud-config is about.
const cloudControllers = "cloud-controller-manager"

// serviceLB is the part that gives Services of type LoadBalancer addresses, by the name
// that k3s' users know.
const serviceLB = "servicelb"

// ingressPart is the part that serves Ingresses; k3s' users know it by its program's name.
const ingressPart, k3sIngress = "ingress", "traefik"

// networkPolicy is the part that --disable-network-policy is about.
const networkPolicy = "network-policy"

// Validate completes the options and reports everything wrong with them.
func (o *Options) Validate() error {
	var f faults
	bad := f.add
	o.NodeOptions.validate(&f)
	if !o.DisableAgent {
		o.checkKubelet(&f)
	}
	o.shared(&f)
	if o.BindAddress != "" {
		f.address("bind-address", o.BindAddress)
	}
	o.validateACME(&f)
	f.port("https-listen-port", o.HTTPSListenPort)
	f.port("etcd-peer-port", o.EtcdPeerPort)
	mode, err := strconv.ParseUint(o.WriteKubeconfigMode, 8, 9)
	if err != nil {
		bad("write-kubeconfig-mode", "%q is not an octal mode such as 0600", o.WriteKubeconfigMode)
	}
	o.mode = os.FileMode(mode)
	if o.api, err = apiflags.Parse(o.APIServerArgs); err != nil {
		bad("kube-apiserver-arg", "%v", err)
	}
	if o.controllers, err = controllerflags.Parse(o.ControllerArgs); err != nil {
		bad("kube-controller-manager-arg", "%v", err)
	}
	if o.scheduler, err = schedulerflags.Parse(o.SchedulerArgs); err != nil {
		bad("kube-scheduler-arg", "%v", err)
	}
	if o.CloudConfig != "" {
		if _, err := baremetal.Open(o.CloudConfig); err != nil {
			f.errs = append(f.errs, err)
		}
	}
	o.datastore.validate(&f, o.DataDir)
	if o.datastore.Endpoint != "" && (o.Server != "" || o.ClusterInit) {
		f.add("datastore-endpoint", "further servers join the embedded etcd only; leave it out, or --server and --cluster-init")
	}
	o.secrets(&f)
	return errors.Join(f.errs...)
}

// secrets reads what was given to join with.
func (o *Options) secrets(f *faults) {
	token, err := ownToken(readToken(o.Token, o.TokenFile))
	if err != nil {
		f.errs = append(f.errs, err)
	}
	switch {
	case o.Server != "":
		o.joinWith = token
		if o.Server, err = serverURL(o.Server); err != nil {
			f.errs = append(f.errs, err)
		}
	case token.server: // left from when this server joined
		o.serverSecret = token.secret
	default:
		o.secret = token.secret
	}
	if o.ServerToken != "" {
		t, err := parseToken(o.ServerToken)
		if err != nil {
			f.add("server-token", "%v", err)
		}
		o.serverSecret = t.secret
	}
	if o.secret != "" && o.secret == o.serverSecret {
		f.errs = append(f.errs, errOneSecret)
	}
}

// shared completes what all servers of a cluster have in common.
func (o *Options) shared(f *faults) {
	bad := f.add
	o.ranges(f)
	first, last, _ := strings.Cut(o.ServiceNodePorts, "-")
	lo, err1 := strconv.Atoi(first)
	hi, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil || lo < 1 || hi > 65535 || lo > hi {
		bad("service-node-port-range", "%q is not a range such as 30000-32767", o.ServiceNodePorts)
	}
	o.nodePorts = [2]int32{int32(lo), int32(hi)}
	for i, d := range o.Disable {
		if d == k3sIngress {
			o.Disable[i] = ingressPart
			continue
		}
		if !slices.Contains(Disableable, d) {
			bad("disable", "there is no part %q; parts are %s", d, strings.Join(Disableable, ", "))
		}
	}
	if o.CloudProvider != "" && o.CloudProvider != externalCloud {
		bad("cloud-provider", "unsupported value %q; it may be external", o.CloudProvider)
	}
	if o.CloudConfig != "" && o.CloudProvider == "" {
		bad("cloud-config", "new nodes do not wait for a cloud controller manager; give --cloud-provider=external too")
	}
	if !slices.Contains(backends, o.FlannelBackend) {
		bad("flannel-backend", "there is no %q; there are %s", o.FlannelBackend, strings.Join(backends, ", "))
	}
}

// ranges completes the ranges of pods and Services, and the addresses within them.
func (o *Options) ranges(f *faults) {
	if o.ClusterCIDR == "" {
		o.ClusterCIDR = defaultRanges(defaultPods, o.wantedFamilies(o.ServiceCIDR))
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = defaultRanges(defaultServices, o.wantedFamilies(o.ClusterCIDR))
	}
	o.clusterCIDRs, o.serviceCIDRs = f.ranges("cluster-cidr", o.ClusterCIDR), f.ranges("service-cidr", o.ServiceCIDR)
	if o.clusterCIDRs == nil || o.serviceCIDRs == nil {
		return
	}
	if pods, services, found := o.clusterCIDRs.overlap(o.serviceCIDRs); found {
		f.add("service-cidr", "%s overlaps --cluster-cidr %s; give separate ranges", services, pods)
	}
	if !slices.Equal(o.clusterCIDRs.families(), o.serviceCIDRs.families()) {
		f.add("service-cidr", "%s is not of the families of --cluster-cidr %s, in their order; give one range of each", o.serviceCIDRs, o.clusterCIDRs)
	}
	for _, p := range o.clusterCIDRs {
		flag, mask := "node-cidr-mask-size-ipv4", o.NodeMaskIPv4
		if p.Addr().Is6() {
			flag, mask = "node-cidr-mask-size-ipv6", o.NodeMaskIPv6
		}
		if mask != 0 && (mask < p.Bits() || mask > p.Addr().BitLen()-2 || mask-p.Bits() > maxNodeBits) {
			f.add(flag, "%d: parts of %s have %d to %d", mask, p, p.Bits(), min(p.Bits()+maxNodeBits, p.Addr().BitLen()-2))
		}
	}
	o.foreign = o.belong(o.clusterCIDRs)
	switch {
	case o.AdvertiseAddress != "":
		o.advertise = f.address("advertise-address", o.AdvertiseAddress)
	case len(o.nodeIPs) > 0:
		o.advertise = o.nodeIPs[0]
	}
	o.dnsAddresses(f)
}

// bindAddress is where the API server listens.
func (o *Options) bindAddress() string {
	if o.BindAddress == "" {
		return o.clusterCIDRs.everywhereAddress()
	}
	return o.BindAddress
}

// maxNodeBits is into how many parts, as a power of two, a range of pods may be cut.
const maxNodeBits = 16

// wantedFamilies are those of other ranges if there are any, else those of given
// addresses of the node, else IPv4.
func (o *Options) wantedFamilies(others string) []bool {
	if list, err := parseList(others, netip.ParsePrefix); err == nil && len(list) > 0 {
		return ranges(list).families()
	}
	if o.NodeIP != "" && len(o.nodeIPs) > 0 {
		return o.nodeIPs.families()
	}
	return []bool{false}
}

// dnsAddresses completes where pods ask for names.
func (o *Options) dnsAddresses(f *faults) {
	if o.ClusterDNS != "" {
		o.clusterDNS = f.addresses("cluster-dns", o.ClusterDNS)
		for _, ip := range o.clusterDNS {
			if !slices.ContainsFunc(o.serviceCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }) {
				f.add("cluster-dns", "%s is not within --service-cidr %s", ip, o.serviceCIDRs)
			}
		}
		return
	}
	o.clusterDNS = nil
	for _, p := range o.serviceCIDRs {
		ip := p.Addr()
		for range 10 {
			ip = ip.Next()
		}
		o.clusterDNS = append(o.clusterDNS, ip)
	}
}

func (o *Options) disabled(part string) bool {
	switch part {
	case networkPolicy:
		return o.NoNetworkPolicy || slices.Contains(o.Disable, part)
	case "kube-proxy":
		return o.NoKubeProxy || slices.Contains(o.Disable, part)
	case "network":
		return o.FlannelBackend == cni.NoBackend || slices.Contains(o.Disable, part)
	case cloudControllers:
		return o.CloudConfig == ""
	}
	return slices.Contains(o.Disable, part)
}
