package proxyflags

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/cluster/componentflags"
)

// A configuration is a KubeProxyConfiguration, upstream's file for kube-proxy.
type configuration struct {
	metav1.TypeMeta             `json:",inline"`
	FeatureGates                map[string]bool  `json:"featureGates"`
	ClientConnection            clientConnection `json:"clientConnection"`
	Logging                     map[string]any   `json:"logging"`
	HostnameOverride            string           `json:"hostnameOverride"`
	BindAddress                 string           `json:"bindAddress"`
	HealthzBindAddress          string           `json:"healthzBindAddress"`
	MetricsBindAddress          string           `json:"metricsBindAddress"`
	BindAddressHardFail         bool             `json:"bindAddressHardFail"`
	EnableProfiling             bool             `json:"enableProfiling"`
	ShowHiddenMetricsForVersion string           `json:"showHiddenMetricsForVersion"`
	Mode                        string           `json:"mode"`
	IPTables                    rulesSettings    `json:"iptables"`
	NFTables                    rulesSettings    `json:"nftables"`
	IPVS                        ipvsSettings     `json:"ipvs"`
	Winkernel                   map[string]any   `json:"winkernel"`
	DetectLocalMode             string           `json:"detectLocalMode"`
	DetectLocal                 detectLocal      `json:"detectLocal"`
	ClusterCIDR                 string           `json:"clusterCIDR"`
	NodePortAddresses           []string         `json:"nodePortAddresses"`
	OOMScoreAdj                 *int32           `json:"oomScoreAdj"`
	Conntrack                   conntrackLimits  `json:"conntrack"`
	ConfigSyncPeriod            metav1.Duration  `json:"configSyncPeriod"`
	PortRange                   string           `json:"portRange"`
	WindowsRunAsService         bool             `json:"windowsRunAsService"`
}

type rulesSettings struct {
	MasqueradeBit      *int32          `json:"masqueradeBit"`
	MasqueradeAll      bool            `json:"masqueradeAll"`
	LocalhostNodePorts *bool           `json:"localhostNodePorts"`
	SyncPeriod         metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod      metav1.Duration `json:"minSyncPeriod"`
}

type ipvsSettings struct {
	SyncPeriod    metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	Scheduler     string          `json:"scheduler"`
	ExcludeCIDRs  []string        `json:"excludeCIDRs"`
	StrictARP     bool            `json:"strictARP"`
	TCPTimeout    metav1.Duration `json:"tcpTimeout"`
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	UDPTimeout    metav1.Duration `json:"udpTimeout"`
}

type conntrackLimits struct {
	MaxPerCore            *int32           `json:"maxPerCore"`
	Min                   *int32           `json:"min"`
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   *metav1.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool             `json:"tcpBeLiberal"`
	UDPTimeout            metav1.Duration  `json:"udpTimeout"`
	UDPStreamTimeout      metav1.Duration  `json:"udpStreamTimeout"`
}

type clientConnection struct {
	Kubeconfig         string  `json:"kubeconfig"`
	AcceptContentTypes string  `json:"acceptContentTypes"`
	ContentType        string  `json:"contentType"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

type detectLocal struct {
	BridgeInterface     string `json:"bridgeInterface"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

// read takes a file's settings. It refuses what has another meaning here, and says
// which settings change nothing.
func (c *configuration) read(file string) error {
	if err := componentflags.ReadConfig(file, "KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1alpha1", c, &c.Kind, &c.APIVersion); err != nil {
		return err
	}
	var errs []error
	bad := func(when bool, field, why string) {
		if when {
			errs = append(errs, fmt.Errorf("--config: %s: %s: %s", file, field, why))
		}
	}
	otherBit := func(bit *int32) bool { return bit != nil && *bit != 14 }
	bad(otherBit(c.IPTables.MasqueradeBit), "iptables.masqueradeBit", "is 14 here; remove it")
	bad(otherBit(c.NFTables.MasqueradeBit), "nftables.masqueradeBit", "is 14 here; remove it")
	bad(c.DetectLocalMode != "" && c.DetectLocalMode != "ClusterCIDR", "detectLocalMode", fmt.Sprintf("%q is not known here; use ClusterCIDR", c.DetectLocalMode))
	bad(len(c.IPVS.ExcludeCIDRs) > 0, "ipvs.excludeCIDRs", "all virtual servers are this proxy's here; remove it")
	bad(c.IPVS.StrictARP, "ipvs.strictARP", "is not set here; set net.ipv4.conf.all.arp_ignore=1 and arp_announce=2 yourself, and remove it")
	if idle := c.withoutEffect(); len(idle) > 0 {
		slog.Warn("--config: these settings change nothing here", "file", file, "fields", strings.Join(idle, ", "))
	}
	return errors.Join(errs...)
}

// withoutEffect are the fields that are set and change nothing: rules are written when
// something changes, and node ports are never at loopback.
func (c *configuration) withoutEffect() (fields []string) {
	set := func(when bool, field string) {
		if when {
			fields = append(fields, field)
		}
	}
	set(len(c.FeatureGates) > 0, "featureGates")
	set(len(c.Logging) > 0, "logging")
	set(c.BindAddress != "" && c.BindAddress != "0.0.0.0" && c.BindAddress != "::", "bindAddress")
	set(c.EnableProfiling, "enableProfiling")
	set(c.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion")
	set(c.DetectLocal != detectLocal{}, "detectLocal")
	set(c.PortRange != "", "portRange")
	set(c.OOMScoreAdj != nil, "oomScoreAdj")
	set(c.ConfigSyncPeriod.Duration != 0, "configSyncPeriod")
	set(c.IPTables.LocalhostNodePorts != nil && *c.IPTables.LocalhostNodePorts, "iptables.localhostNodePorts")
	set(c.ClientConnection.QPS != 0, "clientConnection.qps")
	set(c.ClientConnection.Burst != 0, "clientConnection.burst")
	for section, d := range map[string][]metav1.Duration{
		"iptables": {c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod}, "nftables": {c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod},
		"ipvs": {c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod},
	} {
		set(d[0].Duration != 0, section+".syncPeriod")
		set(d[1].Duration != 0, section+".minSyncPeriod")
	}
	slices.Sort(fields)
	return fields
}

// apply sets what the file says and no flag does; set reports whether a flag was given.
func (c *configuration) apply(p *Flags, set func(flag string) bool) {
	text := func(flag string, from string, to *string) {
		if from != "" && !set(flag) {
			*to = from
		}
	}
	text("kubeconfig", c.ClientConnection.Kubeconfig, &p.Kubeconfig)
	text("hostname-override", c.HostnameOverride, &p.NodeName)
	text("cluster-cidr", c.ClusterCIDR, &p.ClusterCIDR)
	text("proxy-mode", c.Mode, &p.mode)
	text("ipvs-scheduler", c.IPVS.Scheduler, &p.scheduler)
	text("nodeport-addresses", strings.Join(c.NodePortAddresses, ","), &p.nodePorts)
	text("healthz-bind-address", withPort(c.HealthzBindAddress, "10256"), &p.Healthz)
	text("metrics-bind-address", withPort(c.MetricsBindAddress, "10249"), &p.Metrics)
	if (c.IPTables.MasqueradeAll || c.NFTables.MasqueradeAll) && !set("masquerade-all") {
		p.masqueradeAll = true
	}
	number := func(flag string, from *int32, to *int) {
		if from != nil && !set(flag) {
			*to = int(*from)
		}
	}
	number("conntrack-max-per-core", c.Conntrack.MaxPerCore, &p.limits.MaxPerCore)
	number("conntrack-min", c.Conntrack.Min, &p.limits.Min)
	for _, t := range []struct {
		flag string
		from *metav1.Duration
		to   *time.Duration
	}{
		{"conntrack-tcp-timeout-established", c.Conntrack.TCPEstablishedTimeout, &p.limits.Established},
		{"conntrack-tcp-timeout-close-wait", c.Conntrack.TCPCloseWaitTimeout, &p.limits.CloseWait},
		{"conntrack-udp-timeout", &c.Conntrack.UDPTimeout, &p.limits.UDP},
		{"conntrack-udp-timeout-stream", &c.Conntrack.UDPStreamTimeout, &p.limits.UDPStream},
		{"ipvs-tcp-timeout", &c.IPVS.TCPTimeout, &p.timeouts.TCP},
		{"ipvs-tcpfin-timeout", &c.IPVS.TCPFinTimeout, &p.timeouts.TCPFin},
		{"ipvs-udp-timeout", &c.IPVS.UDPTimeout, &p.timeouts.UDP},
	} {
		if t.from != nil && (t.from.Duration != 0 || strings.Contains(t.flag, "tcp-timeout-")) && !set(t.flag) {
			*t.to = t.from.Duration
		}
	}
	if c.Conntrack.TCPBeLiberal && !set("conntrack-tcp-be-liberal") {
		p.limits.Liberal = true
	}
}

// withPort adds the usual port to an address that has none.
func withPort(address, port string) string {
	if address == "" {
		return ""
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return net.JoinHostPort(strings.Trim(address, "[]"), port)
	}
	return address
}
