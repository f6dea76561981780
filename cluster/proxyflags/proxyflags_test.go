package proxyflags

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// The configuration that kubeadm writes, in so far as it sets anything.
const kubeadms = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: 4096
  tcpCloseWaitTimeout: 0s
  tcpEstablishedTimeout: null
  tcpBeLiberal: true
  udpStreamTimeout: 30s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: lc
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 15m
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
metricsBindAddress: 127.0.0.1
mode: ipvs
nftables:
  masqueradeAll: true
nodePortAddresses: [10.1.0.0/16, 10.2.0.0/16]
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
`

func load(t *testing.T, yaml string, args ...string) (*Flags, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Flags{}
	f := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	p.Bind(f)
	if err := f.Parse(append(args, "--config", file)); err != nil {
		t.Fatal(err)
	}
	return p, p.Load()
}

func TestConfiguration(t *testing.T) {
	p, err := load(t, kubeadms, "--ipvs-scheduler=sh")
	if err != nil {
		t.Fatal(err)
	}
	for what, is := range map[string]bool{
		"kubeconfig": p.Kubeconfig == "/var/lib/kube-proxy/kubeconfig.conf", "mode": p.mode == "ipvs", "a flag wins": p.scheduler == "sh",
		"health": p.Healthz == "0.0.0.0:10256", "metrics": p.Metrics == "127.0.0.1:10249", "cluster": len(p.clusterCIDRs) == 1,
		"node ports": len(p.nodePortRanges) == 2, "masquerade all": p.masqueradeAll, "least": p.limits.Min == 4096, "per core": p.limits.MaxPerCore == 32<<10,
		"close wait stays": p.limits.CloseWait == 0, "established": p.limits.Established == 24*time.Hour, "streams": p.limits.UDPStream == 30*time.Second,
		"liberal": p.limits.Liberal, "tcp": p.timeouts.TCP == 15*time.Minute,
	} {
		if !is {
			t.Errorf("%s: %+v", what, p)
		}
	}
}

func TestRefusals(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for yaml, want := range map[string]string{
		"kind: KubeProxyConfiguration\napiVersion: v1\n": "no kind \"KubeProxyConfiguration\" of version",
		head + "mode: kernelspace\n":                     `--proxy-mode: no mode "kernelspace"; there are nftables, iptables, ipvs, userspace`,
		head + "mods: ipvs\n":                            `unknown field "mods"`,
		head + "detectLocalMode: BridgeInterface\n":      "detectLocalMode: \"BridgeInterface\" is not known here; use ClusterCIDR",
		head + "iptables: {masqueradeBit: 3}\n":          "iptables.masqueradeBit: is 14 here",
		head + "nftables: {masqueradeBit: 3}\n":          "nftables.masqueradeBit: is 14 here",
		head + "ipvs: {scheduler: best}\n":               `--ipvs-scheduler: no scheduler "best"`,
		head + "ipvs: {strictARP: true}\n":               "ipvs.strictARP: is not set here",
		head + "clusterCIDR: 10.0.0.0\n":                 "--cluster-cidr: \"10.0.0.0\" is not a range",
		head + "nodePortAddresses: [all]\n":              "--nodeport-addresses: \"all\" is not a range",
		head + "conntrack: {min: -1}\n":                  "a number of connections is not negative",
	} {
		if _, err := load(t, yaml); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", yaml, err, want)
		}
	}
}

func TestParse(t *testing.T) {
	p, err := Parse([]string{"proxy-mode=iptables", "--masquerade-all=true"})
	if err != nil || p.mode != "iptables" || !p.masqueradeAll {
		t.Errorf("%+v, %v", p, err)
	}
	for arg, want := range map[string]string{
		"proxy-mode":           "is not of the form key=value",
		"mode=ipvs":            `there is no "mode"; there are `,
		"cluster-cidr=10/8":    "cluster-cidr is the cluster's; use --cluster-cidr",
		"hostname-override=n1": "use --node-name",
		"proxy-mode=best":      "no mode",
		"conntrack-min=some":   "invalid",
	} {
		if _, err := Parse([]string{arg}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}
